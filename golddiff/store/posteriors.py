"""Posteriors over the images of a store: cuts the work into tasks for threads and merges the sums.

An estimator weighs one part of a support for one group of queries on one thread.
"""

from __future__ import annotations

import copy
from typing import Any

from golddiff.posterior import Posterior
from golddiff.support import AnySupport, Support, Supports, TiledSupport, grouped, per_query
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32
from golddiff.system.parallel import map_ordered
from golddiff.system.units import byte_size

Task = tuple[int, Support]


def weighed(estimator: Any, x: F32, sigma: float, supports: Supports) -> Posterior:
    """The posterior of queries (b, D), each over its own support.

    Queries that share a support (the same object) are weighed together; parts run in parallel. Sums
    are added in row order, so the result does not depend on the number of threads.
    """
    estimator.ready(sigma)  # once, before threads ask for it
    groups: list[list[int]] = []
    tasks: list[Task] = []
    totals: dict[int, Posterior] = {}
    for support, queries in grouped(per_query(supports, len(x))):
        if isinstance(support, TiledSupport):
            groups.append(queries)
            totals[len(groups) - 1] = estimator.tiled_posterior(x[queries], sigma, support)
            continue
        images = as_support(support)
        step = queries_at_once(estimator, len(images))
        for i in range(0, len(queries), step):
            parts = images.of_queries(slice(i, i + step)).split(estimator.part_size)
            tasks += [(len(groups), part) for part in parts]
            groups.append(queries[i : i + step])

    def weigh(task: Task) -> Posterior:
        group, part = task
        partial: Posterior = estimator.weigh(x[groups[group]], sigma, part)
        return partial

    for (group, _), part in zip(tasks, map_ordered(weigh, tasks), strict=True):
        if group in totals:
            totals[group].add(part)
        else:
            totals[group] = part
    if len(totals) < len(groups):
        raise ZeroDivisionError("the posterior of no images is not defined")
    posteriors = [totals[group] for group in range(len(groups))]
    return Posterior.of_queries(posteriors, [query for queries in groups for query in queries])


def queries_at_once(estimator: Any, images: int) -> int:
    """Number of queries that fit in the memory limit when weighed over ``images`` images."""
    fixed, per_query = estimator.working_bytes(images)
    if fixed + per_query > estimator.memory_limit:
        raise ArgumentError(
            f"memory_limit: got {byte_size(int(estimator.memory_limit))}, but one query over "
            f"{images:,} images needs {byte_size(fixed + per_query)}"
        )
    return max(1, int((estimator.memory_limit - fixed) // per_query))


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
