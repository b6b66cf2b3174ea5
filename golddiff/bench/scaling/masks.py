"""Masks made once for all sizes and methods of a run, whose stores share a factor."""

from __future__ import annotations

from pathlib import Path

from golddiff.denoiser import Denoiser
from golddiff.estimators.kept_masks import tree_of
from golddiff.estimators.pca import PCA, Masks


def share_masks(denoiser: Denoiser, sigma: float, folder: Path) -> None:
    """Give PCA its masks of a level from a folder of the run, or make them and keep them there.

    Trees of masks at 3 x 64 x 64 take minutes for all levels, and the same for each size.

    Args:
        denoiser: PCA, a method over PCA, or another, which is left alone.
        sigma: the level.
        folder: of the run; masks of each factor have a folder of their own in it.
    """
    estimator = getattr(denoiser, "base", denoiser)
    if not isinstance(estimator, PCA) or sigma in estimator._ready:
        return
    mark = estimator.store.factor_mark()
    if mark is None:
        return
    root = folder / f"factor-{mark[:16]}"
    root.mkdir(exist_ok=True)
    tree = tree_of(estimator.store, sigma, estimator.mask_threshold, root)
    estimator._ready[sigma] = Masks(tree, estimator.store.shape)
