"""Samples from an exact posterior over a training set, in one store or in shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from golddiff.noise import hash_bits
from golddiff.store.posteriors import as_support, for_one_level, with_images
from golddiff.support import AnySupport, Support, grouped
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import map_ordered

# 52-bit Gumbel noise lies between -3.6 and 37: a logit this far below the largest cannot win.
OUT_OF_REACH = 41.0
IMAGES_AT_ONCE = 512


@dataclass(frozen=True)
class TopImages:
    """Score and row of the highest-scoring image for each query and draw, both (b, n)."""

    scores: F64
    rows: I64  # in the whole training set

    def merge(self, other: TopImages) -> TopImages:
        """The higher of the two scores; of equal ones the first, whose row is lower."""
        replaced = other.scores > self.scores
        return TopImages(
            np.where(replaced, other.scores, self.scores), np.where(replaced, other.rows, self.rows)
        )


class PosteriorDraw:
    """A question: images drawn by posterior weight with the Gumbel-max trick.

    Each draw takes the image with the largest log weight + Gumbel noise (Gumbel 1954; Yellott
    1977). The noise depends only on the seed, the query's position in the batch, the draw and the
    image's row, so shards draw the same images as a single store.
    """

    def __init__(
        self, estimator: Any, sigma: float, n: int, seed: int, positions: tuple[int, ...]
    ) -> None:
        self._estimator = for_one_level(estimator, sigma)
        self._sigma, self._n, self._seed, self._positions = sigma, n, seed, positions

    def answer_shard(self, images: Any, x: F32, within: Sequence[AnySupport]) -> TopImages:
        """See :class:`golddiff.store.training_set.Question`."""
        estimator, shape = with_images(self._estimator, images), (len(x), self._n)
        best = TopImages(np.full(shape, -np.inf), np.full(shape, np.iinfo(np.int64).max))
        tasks = [
            (queries, part)
            for support, queries in grouped(within)
            for part in as_support(support).split(IMAGES_AT_ONCE)
        ]

        def highest_of(task: tuple[list[int], Support]) -> TopImages:
            queries, part = task
            logits = estimator.logits(x[queries], self._sigma, part)
            rows = part.rows + images.first_row
            highest = [self._highest(q, rows, row) for q, row in zip(queries, logits, strict=True)]
            return TopImages(*map(np.stack, zip(*highest, strict=True)))

        for (queries, _), part_best in zip(tasks, map_ordered(highest_of, tasks), strict=True):
            merged = TopImages(best.scores[queries], best.rows[queries]).merge(part_best)
            best.scores[queries], best.rows[queries] = merged.scores, merged.rows
        return best

    def _highest(self, query: int, rows: I64, logits: F64) -> tuple[F64, I64]:
        """The highest score of each draw (n,) among the images at ``rows``, and its row."""
        reachable = logits >= logits.max() - OUT_OF_REACH
        rows, logits = rows[reachable], logits[reachable]
        top, chosen = np.empty(self._n), np.empty(self._n, np.int64)
        for draw in range(self._n):
            bits = hash_bits((3, self._seed, self._positions[query], draw), rows)
            uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
            scores = logits - np.log(-np.log(uniform))
            best = int(np.argmax(scores))
            top[draw], chosen[draw] = scores[best], rows[best]
        return top, chosen

    def merge(self, answers: Sequence[TopImages]) -> TopImages:
        """See :class:`golddiff.store.training_set.Question`."""
        return reduce(TopImages.merge, answers)
