"""Masks made once for all sizes and methods of a run, whose stores share a factor."""

from __future__ import annotations

from pathlib import Path

from golddiff.denoiser import Denoiser
from golddiff.estimators.kept_masks import tree_of
from golddiff.estimators.pca import PCA, Masks
from golddiff.store.artifacts import Artifacts


def share_masks(denoiser: Denoiser, sigma: float, folder: Path) -> None:
    """Give PCA its masks of a level from a folder of the run, or make them and keep them there.

    Trees of masks at 3 x 64 x 64 take minutes for all levels, and the same for each size.

    Args:
        denoiser: PCA, a method over PCA, or another, which is left alone.
        sigma: the level.
        folder: of the run.
    """
    estimator = getattr(denoiser, "base", denoiser)
    if not isinstance(estimator, PCA) or sigma in estimator._ready:
        return
    # A file says of which factor it is.
    shared = Artifacts(folder, "all sizes")
    tree = tree_of(estimator.store, sigma, estimator.mask_threshold, shared)
    estimator._ready[sigma] = Masks(tree, estimator.store.shape)
