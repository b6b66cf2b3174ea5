"""The paper's data sets, and each method's settings for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from golddiff.system.errors import ArgumentError


@dataclass(frozen=True)
class DataSet:
    """A data set that ``--data NAME=PATH`` can supply.

    Attributes:
        name: name on the command line.
        title: title in tables; the paper's if the paper uses the data set.
        side: image size for sources that are not stores yet, which are scaled and cropped.
        golden_threshold: mask threshold of the released GoldDiff.
        pca_threshold: mask threshold of the baseline, Lukoianov's PCA.
        kamb: preset of the authors' calibrated patch sizes; None: sizes come from the data.
    """

    name: str
    title: str
    side: int
    golden_threshold: float
    pca_threshold: float
    kamb: str | None


DATA_SETS = {
    data.name: data
    for data in (
        DataSet("mnist", "MNIST", 28, 0.02, 0.005, "mnist_unet_zeros"),
        DataSet("fashion-mnist", "Fashion-MNIST", 28, 0.02, 0.005, "fashion_mnist_unet_zeros"),
        DataSet("cifar10", "CIFAR-10", 32, 0.03, 0.05, "cifar10_unet_zeros"),
        DataSet("celeba-hq", "CelebA-HQ", 64, 0.03, 0.02, None),
        DataSet("celeba", "CelebA", 32, 0.03, 0.02, "celeba32_unet_zeros"),
        DataSet("afhq", "AFHQ", 64, 0.04, 0.02, None),
        DataSet("imagenet", "ImageNet-1K", 64, 0.02, 0.02, None),
        DataSet("imagenet64-100", "imagenet64-100 (100 classes)", 64, 0.02, 0.02, None),
    )
}

# Variants of a data set's network: class-conditional, or EDM's.
ORACLE_SUFFIXES = ("-conditional", "-edm-vp", "-edm-ve")


def parse_paths(
    argument: str, entries: Sequence[str], suffixes: Sequence[str] = ()
) -> dict[str, str]:
    """Parse an option's ``NAME=PATH`` entries; a name is a data set's, or that and a suffix."""
    paths: dict[str, str] = {}
    for entry in entries:
        name, sign, path = entry.partition("=")
        if not (name and sign and path):
            raise ArgumentError(f"{argument}: got {entry!r}, expected NAME=PATH")
        if name not in {data + suffix for data in DATA_SETS for suffix in ("", *suffixes)}:
            more = f"; {', '.join(suffixes)} may follow" if suffixes else ""
            raise ArgumentError(
                f"{argument}: got the name {name!r}, expected one of {', '.join(DATA_SETS)}{more}"
            )
        if name in paths:
            raise ArgumentError(f"{argument}: {name} is given twice")
        paths[name] = path
    return paths
