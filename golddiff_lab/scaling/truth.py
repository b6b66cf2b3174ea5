"""Full scans that share one pass over the pixels among all queries and noise levels."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from golddiff.denoiser import Estimator
from golddiff.posterior import Posterior
from golddiff.support import Support
from golddiff_lab.race import truth

Level = tuple[float, torch.Tensor]

ROWS_AT_ONCE = 2048  # rows that all queries are compared with before the next are read
TRIED = 256  # rows that the time of a scan is estimated from


def full_scans(
    reference: Estimator,
    levels: list[Level],
    seconds: float,
    watch: Callable[[int, int], None] = lambda done, images: None,
) -> list[torch.Tensor]:
    """``reference(x, sigma)`` for each level, from the cache where it is there.

    Args:
        reference: the estimator.
        levels: noise levels and queries (B, *shape).
        seconds: that this may take, about, each level an equal part. A level that would take longer
            has only its first queries answered, or none.
        watch: called with the images done and those that there are.

    Returns:
        For each level (b, *shape), b <= B.
    """
    found = [[truth.recall(reference, q, sigma) for q in x] for sigma, x in levels]
    wanted: list[Level] = []
    places: list[tuple[int, int]] = []  # of each level wanted: which, and its first query
    for i, ((sigma, x), known) in enumerate(zip(levels, found, strict=True)):
        first = next((j for j, value in enumerate(known) if value is None), len(known))
        queries = min(len(x) - first, _affordable(reference, x[:1], sigma, seconds / len(levels)))
        if queries > 0:
            wanted.append((sigma, x[first : first + queries]))
            places.append((i, first))
    if wanted:
        answers = one_pass(reference, wanted, watch)
        for (i, first), (sigma, x), values in zip(places, wanted, answers, strict=True):
            for j, (query, value) in enumerate(zip(x, values, strict=True)):
                truth.remember(reference, query, sigma, value)
                found[i][first + j] = value
    shape = reference.store.shape
    return [_leading(known, shape) for known in found]


def one_pass(
    reference: Estimator,
    levels: list[Level],
    watch: Callable[[int, int], None] = lambda done, images: None,
) -> list[torch.Tensor]:
    """``reference(x, sigma)`` for each level; every image is read once for all of them."""
    store = reference.store
    queries = [np.ascontiguousarray(x.reshape(len(x), -1).numpy()) for _, x in levels]
    totals: list[Posterior | None] = [None] * len(levels)
    for part in Support(store.rows_of(None)).split(ROWS_AT_ONCE):
        for i, (sigma, _) in enumerate(levels):
            posterior = reference.posterior(queries[i], sigma, part)
            total = totals[i]
            totals[i] = posterior if total is None else total.merge(posterior)
        watch(int(part.rows[-1]) + 1, store.n)
    return [
        torch.from_numpy(total.mean().astype(np.float32)).reshape(len(x), *store.shape)
        for total, (_, x) in zip(totals, levels, strict=True)
        if total is not None
    ]


def _affordable(reference: Estimator, x: torch.Tensor, sigma: float, seconds: float) -> int:
    """How many queries can be compared with all images in the time there is."""
    store = reference.store
    query = np.ascontiguousarray(x.reshape(1, -1).numpy())
    few = Support(store.rows_of(None)[:TRIED])
    reference.posterior(query, sigma, few)  # makes masks
    start = time.perf_counter()
    reference.posterior(query, sigma, few)
    each = (time.perf_counter() - start) * store.n / len(few)
    return int(seconds / max(each, 1e-9))


def _leading(known: list[torch.Tensor | None], shape: tuple[int, ...]) -> torch.Tensor:
    """The answers up to the first that is not known."""
    values = []
    for value in known:
        if value is None:
            break
        values.append(value)
    return torch.stack(values) if values else torch.empty(0, *shape)
