"""Full scans of an estimator, the ground truth for the errors of faster methods."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.pca import PCA
from golddiff.estimators.registry import default_mask_threshold
from golddiff.support import Support

TRIED = 256  # rows timed to estimate the duration of a scan

Level = tuple[float, torch.Tensor]
Watch = Callable[[int, int], None]


def reference_of(denoiser: Denoiser, threshold: float | None) -> Estimator:
    """The full scan that a method approximates: its own base estimator, or else PCA with "ss".

    ``threshold`` is the mask threshold for methods without a base; None for the default.
    """
    store = denoiser.store
    base: Any = denoiser
    while base is not None and not isinstance(base, Estimator):
        base = getattr(base, "base", None)
    if isinstance(base, PCA):
        return PCA(store, base.mask_threshold)
    if base is not None:
        return base
    return PCA(store, default_mask_threshold(store.shape) if threshold is None else threshold)


def text_of(reference: Estimator) -> str:
    """The estimator and its settings as text, such as 'PCA(store, mask_threshold=0.05)'."""
    return repr(reference).replace(repr(reference.store), "store")


def full_scans(
    reference: Estimator,
    levels: Sequence[Level],
    seconds: float = math.inf,
    watch: Watch = lambda done, levels: None,
) -> list[torch.Tensor]:
    """``reference(x, sigma)`` of the first b <= B queries x (B, *shape) of each level, (b, *shape).

    The approximate time limit ``seconds`` is divided equally among the levels. If a level would
    take longer, only its first queries are computed, or none.
    """
    scans = []
    for done, (sigma, x) in enumerate(levels, 1):
        affordable = x
        if len(x) and seconds < math.inf:
            affordable = x[: _affordable(reference, x[:1], sigma, seconds / len(levels))]
        scans.append(reference(affordable, sigma) if len(affordable) else affordable)
        watch(done, len(levels))
    return scans


def rmse(images: torch.Tensor, truth: torch.Tensor) -> float:
    """Root mean squared difference over all values, in [-1, 1] units."""
    return float((images.double() - truth.double()).square().mean().sqrt())


def _affordable(reference: Estimator, x: torch.Tensor, sigma: float, seconds: float) -> int:
    """Estimated number of queries that can be scanned in ``seconds``."""
    store = reference.store
    query = np.ascontiguousarray(x.reshape(1, -1).numpy())
    sample = Support(store.rows_of(None)[:TRIED])
    reference.denoise_over(query, sigma, sample)  # computes masks
    start = time.perf_counter()
    reference.denoise_over(query, sigma, sample)
    per_query = (time.perf_counter() - start) * store.n / len(sample)
    return int(seconds / max(per_query, 1e-9))
