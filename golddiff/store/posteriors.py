"""Posteriors over the images of a store: cuts the work into tasks for threads and merges the sums.

An estimator weighs one part of a support for one group of queries on one thread.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from golddiff.posterior import Posterior
from golddiff.support import (
    AnySupport,
    RuleSupport,
    Support,
    Supports,
    TiledSupport,
    grouped,
    per_query,
)
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32
from golddiff.system.parallel import IN_FLIGHT, map_ordered

MERGED = 5  # results beside those in flight: the sums so far, and those that are returned


def weighed(estimator: Any, x: F32, sigma: float, supports: Supports) -> Posterior:
    """The posterior of queries (b, D), each over its own support.

    Queries that share a support (the same object) are weighed together; parts run in parallel. Sums
    are added in row order, so the result does not depend on the number of threads.
    """
    estimator.ready(sigma)  # once, before threads ask for it
    tasks: list[tuple[list[int], Support]] = []
    sums: list[tuple[list[int], Posterior]] = []
    threads = torch.get_num_threads()
    for support, queries in grouped(per_query(supports, len(x))):
        if isinstance(support, TiledSupport):
            sums.append((queries, estimator.tiled_posterior(x[queries], sigma, support)))
            continue
        images = as_support(support)
        at_once, step = fitting(estimator, len(images))
        threads = min(threads, at_once)
        for i in range(0, len(queries), step):
            batch, of_batch = queries[i : i + step], images
            if images.log_weights is not None and images.log_weights.ndim == 2:  # one row per query
                of_batch = Support(images.rows, images.log_weights[i : i + step])
            tasks += [(batch, part) for part in of_batch.split(estimator.part_size)]

    def weigh(task: tuple[list[int], Support]) -> Posterior:
        queries, part = task
        posterior = estimator.weigh(x[queries], sigma, part)
        if not isinstance(posterior, Posterior) or not posterior.fits(len(queries)):
            raise ArgumentError(
                f"weigh: {type(estimator).__name__} returned {posterior!r:.200}, expected a "
                f"Posterior of ({len(queries)}, L), ({len(queries)}, L) and ({len(queries)}, D)"
            )
        return posterior

    for (queries, _), part in zip(tasks, map_ordered(weigh, tasks, threads), strict=True):
        if sums and sums[-1][0] is queries:
            sums[-1][1].add(part)
        else:
            sums.append((queries, part))
    order = [query for queries, _ in sums for query in queries]
    if len(order) < len(x):
        raise ArgumentError("support: got no images, expected at least one")
    return Posterior.of_queries([posterior for _, posterior in sums], order)


def check_supports(supports: Any, queries: int, images: int) -> None:
    """Raise ArgumentError unless there is a support of rows below ``images`` for every query.

    The compiled loops trust the rows. Supports by tile or by a rule are the package's own.
    """
    if isinstance(supports, AnySupport) or not hasattr(supports, "__len__"):
        supports = [supports]
    elif len(supports) != queries:
        raise ArgumentError(f"supports: got {len(supports)}, expected one for each of {queries}")
    for support, _ in grouped(supports):
        if isinstance(support, TiledSupport | RuleSupport):
            continue
        if not isinstance(support, Support):
            raise ArgumentError(
                f"support: got {type(support).__name__}, expected a golddiff.support.Support"
            )
        rows, weights = support.rows, support.log_weights
        if not (isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == np.int64):
            got = f"{rows.dtype}" if isinstance(rows, np.ndarray) else type(rows).__name__
            raise ArgumentError(f"support: got rows of {got}, expected an array (k,) of int64")
        if not len(rows):
            raise ArgumentError("support: got no rows, expected at least one image")
        if rows.min() < 0 or rows.max() >= images:
            raise ArgumentError(
                f"support: got rows {rows.min()} to {rows.max()}, expected 0 to {images - 1}"
            )
        if weights is not None and np.shape(weights)[-1:] != rows.shape:
            raise ArgumentError(
                f"support: got log weights {np.shape(weights)}, expected ({len(rows)},)"
            )
        if weights is not None and not np.all(np.asarray(weights) < np.inf):
            raise ArgumentError("support: got log weights of NaN or +inf, expected numbers or -inf")


def fitting(estimator: Any, images: int) -> tuple[int, int]:
    """The numbers of threads, and of queries at once, whose working memory is within the limit.

    If the limit is too small for one thread and one query, both are 1.

    Raises:
        ArgumentError: less memory is free than one query needs.
    """
    part, each = (max(1, size) for size in estimator.working_bytes(images))
    one = part + (IN_FLIGHT + MERGED) * each  # one thread and one query
    if one > estimator.memory_limit:
        require_memory(one, f"one picture over {images:,} images", "use smaller pictures")
        return 1, 1
    more = int((estimator.memory_limit - one) // (part + IN_FLIGHT * each))
    threads = min(torch.get_num_threads(), 1 + more)
    per_query = (IN_FLIGHT * threads + MERGED) * each
    return threads, max(1, int((estimator.memory_limit - threads * part) // per_query))


def as_support(support: AnySupport) -> Support:
    """The support with its rows; raises ArgumentError if it differs by tile."""
    if isinstance(support, TiledSupport):
        raise ArgumentError("support: got one for each tile, expected one for the whole image")
    return support if isinstance(support, Support) else support.with_rows


class TransientCache(dict[Any, Any]):
    """A dict that shallow copies of its owner share; a pickle or a deep copy of it is empty."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return TransientCache, ()


def for_one_level(estimator: Any, sigma: float) -> Any:
    """A copy of the estimator for one noise level, without images, to send to other machines.

    What is later derived from its prepared state is freed with the copy.
    """
    copied = copy.copy(estimator)
    copied._ready = {sigma: copy.copy(estimator.ready(sigma))}
    del copied.images, copied.store
    return copied


def with_images(estimator: Any, images: Any) -> Any:
    """A copy of the estimator over other images of the same shape; prepared state is shared."""
    copied = copy.copy(estimator)
    copied.images = images
    return copied
