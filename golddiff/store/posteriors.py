"""The posterior of queries over images of a store: threads, memory and the exact merge.

An estimator weighs some images for some queries on one thread; which ones, here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from golddiff.posterior import Posterior
from golddiff.support import AnySupport, Support, TiledSupport, grouped, listed, one_each
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32
from golddiff.system.parallel import map_ordered
from golddiff.system.units import byte_size

Task = tuple[int, Support]


def weighed(
    estimator: Any, x: F32, sigma: float, supports: AnySupport | Sequence[AnySupport]
) -> Posterior:
    """The posterior of queries (b, D), each over the images of its support.

    Queries that share a support (the same object) go through its images together; parts of
    different supports go side by side. Sums are added in the order of the images, so the result
    does not depend on the number of threads.
    """
    groups: list[list[int]] = []
    tasks: list[Task] = []
    totals: dict[int, Posterior] = {}
    for support, queries in grouped(one_each(supports, len(x))):
        if isinstance(support, TiledSupport):
            groups.append(queries)
            totals[len(groups) - 1] = estimator.tiled_posterior(x[queries], sigma, support)
            continue
        images = listed(support)
        step = queries_at_once(estimator, len(images))
        parts = images.split(estimator.part_size)
        for i in range(0, len(queries), step):
            tasks += [(len(groups), part) for part in parts]
            groups.append(queries[i : i + step])

    def weigh(task: Task) -> Posterior:
        group, part = task
        made: Posterior = estimator.weigh(x[groups[group]], sigma, part)
        return made

    for (group, _), part in zip(tasks, map_ordered(weigh, tasks, estimator.in_flight), strict=True):
        if group in totals:
            totals[group].add(part)
        else:
            totals[group] = part
    if len(totals) < len(groups):
        raise ZeroDivisionError("the posterior of no images is not defined")
    made = [totals[group] for group in range(len(groups))]
    return Posterior.of_queries(made, [query for queries in groups for query in queries])


def queries_at_once(estimator: Any, images: int) -> int:
    """How many queries can be weighed over so many images within the memory limit."""
    fixed, each = estimator.working_bytes(images)
    if fixed + each > estimator.memory_limit:
        raise ArgumentError(
            f"memory_limit: got {byte_size(int(estimator.memory_limit))}, but one query over "
            f"{images:,} images needs {byte_size(fixed + each)}"
        )
    return max(1, int((estimator.memory_limit - fixed) // each))


def whole(support: AnySupport) -> Support:
    """The support, which must be one for the whole image."""
    if isinstance(support, TiledSupport):
        raise ArgumentError("support: got one for each tile, expected one for the whole image")
    return listed(support)


class Unsaved(dict[Any, Any]):
    """A cache that copies of its owner share, and that a pickle or a deep copy begins anew."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Unsaved, ()


def at_level(estimator: Any, sigma: float) -> Any:
    """A copy for one noise level without any images: what goes to other machines."""
    made = copy.copy(estimator)
    made._ready = {sigma: estimator.ready(sigma)}
    del made.images, made.store
    return made


def over(estimator: Any, images: Any) -> Any:
    """The same over other images of the same shape; what is ready stays so."""
    made = copy.copy(estimator)
    made.images = images
    return made
