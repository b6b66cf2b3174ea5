"""The rows of the paper's tables, with the settings that reproduce it."""

from __future__ import annotations

from golddiff.estimators.registry import MethodSettings
from golddiff_lab.paper.datasets import DataSet
from golddiff_lab.paper.likeness import Row


def kamb_settings(data: DataSet) -> MethodSettings:
    """The authors' patch sizes, where they calibrated any; otherwise from the data."""
    return MethodSettings(patch_size=data.kamb)


def pca_settings(data: DataSet) -> MethodSettings:
    """Lukoianov's: batch-averaged weights, their mask threshold."""
    return MethodSettings(mask_threshold=data.pca_threshold, weighting="wss")


def unbiased_settings(data: DataSet) -> MethodSettings:
    """The same with exact weights."""
    return MethodSettings(mask_threshold=data.pca_threshold, weighting="ss")


def golden_settings(data: DataSet) -> MethodSettings:
    """The released GoldDiff: its schedule and mask threshold, exact weights."""
    return MethodSettings(mask_threshold=data.golden_threshold, weighting="ss", variant="released")


def golden_biased_settings(data: DataSet) -> MethodSettings:
    """The same with batch-averaged weights."""
    return MethodSettings(mask_threshold=data.golden_threshold, weighting="wss", variant="released")


OPTIMAL = Row("Optimal", "optimal")
WIENER = Row("Wiener", "wiener")
KAMB = Row("Kamb", "kamb", kamb_settings)
PCA = Row("PCA", "pca", pca_settings)
PCA_UNBIASED = Row("PCA (Unbiased)", "pca", unbiased_settings)
GOLDDIFF = Row("GoldDiff", "golddiff-pca", golden_settings)

RECOMMENDED = Row("Recommended (ours)", "recommended")  # not in the paper

ALL = (OPTIMAL, WIENER, KAMB, PCA, GOLDDIFF)
OURS_TOO = (*ALL, RECOMMENDED)
GOLDDIFF_LESS_PCA = ((GOLDDIFF.title, PCA.title), (RECOMMENDED.title, GOLDDIFF.title))

SETTINGS_NOTE = (
    "Settings: PCA is Lukoianov's (batch-averaged weights, mask threshold 0.005 for MNIST and "
    "Fashion-MNIST, 0.05 for CIFAR-10, 0.02 otherwise); GoldDiff is the released code's (its "
    "schedule, exact weights, threshold 0.03 for CIFAR-10 and CelebA-HQ, 0.04 for AFHQ, 0.02 "
    "otherwise); Kamb has its authors' patch sizes where they calibrated any."
)
