"""The k nearest images of all shards, exactly, for a few counts from each shard.

No list of candidates travels. Every shard counts how many of its distances fall into each of
``BINS`` equal parts of the range in question; the sums tell in which part the k-th smallest of all
lies, and that part is the next range. Distances are compared as ordered integers, so that this ends
at one exact number (after 8 rounds at most, usually 3 or 4: as soon as k of them lie up to the edge
of a part). Of several images at exactly that distance the first in row order are taken, as a single
store takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.cluster.pool import Pool
from golddiff.cluster.recipes import Below, Stage

BINS = 256
ALL = np.iinfo(np.int64).max


@dataclass
class Extent:
    """The distances of each problem, over all shards.

    Attributes:
        low, high: (P,) least and largest key.
        images: (P,) how many images compete.
    """

    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    images: NDArray[np.int64]


def extent(pool: Pool, stages: Sequence[Stage]) -> Extent:
    """The range of the distances; ``stages`` has each shard's."""
    found = [a for a in pool.gather("extent", lambda shard: (stages[shard],)) if a is not None]
    lows, highs, images = zip(*found, strict=True)
    return Extent(
        np.min(lows, axis=0), np.max(highs, axis=0), np.sum(np.array(images, np.int64), axis=0)
    )


def nearest(pool: Pool, stages: Sequence[Stage], count: int) -> list[Below]:
    """For each shard which of its images are among the ``count`` nearest of all shards.

    Args:
        pool: the shards.
        stages: each shard's images and distances.
        count: how many, of each query and tile; all where there are fewer.
    """
    found = extent(pool, stages)
    problems = len(found.low)
    keys = found.high.copy()
    ties = np.full((len(stages), problems), ALL)
    low, span = found.low.copy(), found.high - found.low
    below = np.zeros(problems, np.int64)
    open_ = np.flatnonzero(found.images > count)
    while len(open_):
        width = span[open_] // np.uint64(BINS) + np.uint64(1)
        start = low[open_]
        answers = pool.gather("counts_between", lambda s: (stages[s], open_, start, width, BINS))  # noqa: B023
        pool.traffic.histograms += len(open_) * len(pool.present)
        here = [
            np.zeros((len(open_), BINS), np.int64) if a is None else a.astype(np.int64)
            for a in answers
        ]
        counts = np.sum(here, axis=0)
        upto = below[open_, None] + np.cumsum(counts, axis=1)
        inside = np.argmax(upto >= count, axis=1)
        still = []
        for i, problem in enumerate(open_.tolist()):
            part, edge = int(inside[i]), int(start[i]) + int(width[i]) * int(inside[i])
            reached = int(upto[i, part])
            before = reached - int(counts[i, part])
            if reached == count:
                keys[problem] = edge + int(width[i]) - 1
            elif int(width[i]) == 1:
                keys[problem] = edge
                ties[:, problem] = _shared(count - before, [int(h[i, part]) for h in here])
            else:
                low[problem], span[problem] = edge, int(width[i]) - 1
                below[problem] = before
                still.append(problem)
        open_ = np.array(still, np.int64)
    return [Below(stage, keys, ties[shard]) for shard, stage in enumerate(stages)]


def _shared(wanted: int, there: Sequence[int]) -> list[int]:
    """How many of equals each shard may take, the first shards first."""
    taken = []
    for number in there:
        taken.append(min(wanted, number))
        wanted -= taken[-1]
    return taken
