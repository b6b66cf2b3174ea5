"""Masks made once for all sizes and methods of a run, whose stores share a factor."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from golddiff.denoisers.base import Denoiser
from golddiff.denoisers.pca import PCA
from golddiff.files import written_whole
from golddiff.kernels.mask_tree import MaskTree


def share_masks(denoiser: Denoiser, sigma: float, folder: Path) -> None:
    """Give PCA its masks of a level from a file, or make them and write it.

    Trees of masks at 3 x 64 x 64 take minutes for all levels, and the same for each size.

    Args:
        denoiser: PCA, a method over PCA, or another, which is left alone.
        sigma: the level.
        folder: where the files are; their names say what they hold.
    """
    estimator = getattr(denoiser, "base", denoiser)
    if not isinstance(estimator, PCA) or estimator.has_tree(sigma):
        return
    factor = estimator.store.factor()
    digest = hashlib.sha256(factor.eigenvalues.tobytes() + factor.eigenvectors[:1].tobytes())
    digest.update(f"{sigma!r} {estimator.mask_threshold!r} {estimator.store.shape}".encode())
    path = folder / f"masks-{digest.hexdigest()[:24]}.safetensors"
    try:
        estimator.keep_tree(sigma, MaskTree(**load_file(path)))
    except (OSError, SafetensorError, TypeError):
        tree = estimator.tree(sigma)
        with written_whole("cache", path) as temporary:
            save_file({field.name: getattr(tree, field.name) for field in fields(tree)}, temporary)
