"""Draws from an exact posterior, wherever its images are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from golddiff.noise import hashed
from golddiff.store.posteriors import at_level, over, whole
from golddiff.support import AnySupport, Support, grouped
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import map_ordered

# Gumbel noise of 52 bits lies between -3.6 and 37: below the best by more, no image is drawn.
OUT_OF_REACH = 41.0
IMAGES_AT_ONCE = 512


@dataclass(frozen=True)
class Best:
    """The image of the highest score for each query and draw, both (b, n)."""

    scores: F64
    rows: I64  # in the whole training set

    def merge(self, other: Best) -> Best:
        """Of both parts' images; of equal scores that of the lower row."""
        lower = (other.scores == self.scores) & (other.rows < self.rows)
        theirs = (other.scores > self.scores) | lower
        return Best(
            np.where(theirs, other.scores, self.scores), np.where(theirs, other.rows, self.rows)
        )


class PosteriorDraw:
    """A question: the images drawn by their posterior weights.

    Of each draw it is the one of the highest log weight + Gumbel noise.

    The noise hangs on the seed, the query's place, the draw and the image's row alone, so parts of
    a training set draw what the whole would (Gumbel 1954; Yellott 1977).
    """

    def __init__(
        self, estimator: Any, sigma: float, n: int, seed: int, places: tuple[int, ...]
    ) -> None:
        self._estimator = at_level(estimator, sigma)
        self._sigma, self._n, self._seed, self._places = sigma, n, seed, places

    def of_part(self, images: Any, x: F32, within: Sequence[AnySupport]) -> Best:
        """See :class:`golddiff.store.training_set.Question`."""
        estimator, shape = over(self._estimator, images), (len(x), self._n)
        best = Best(np.full(shape, -np.inf), np.full(shape, np.iinfo(np.int64).max))
        tasks = [
            (queries, part)
            for support, queries in grouped(within)
            for part in whole(support).split(IMAGES_AT_ONCE)
        ]

        def best_of(task: tuple[list[int], Support]) -> Best:
            queries, part = task
            logits = estimator.logits(x[queries], self._sigma, part)
            rows = part.rows + images.first_row
            found = [self._of(q, rows, one) for q, one in zip(queries, logits, strict=True)]
            return Best(*map(np.stack, zip(*found, strict=True)))

        for (queries, _), found in zip(tasks, map_ordered(best_of, tasks), strict=True):
            merged = Best(best.scores[queries], best.rows[queries]).merge(found)
            best.scores[queries], best.rows[queries] = merged.scores, merged.rows
        return best

    def _of(self, query: int, rows: I64, logits: F64) -> tuple[F64, I64]:
        """The highest scores (n,) of some images, and their rows."""
        near = logits >= logits.max() - OUT_OF_REACH
        rows, logits = rows[near], logits[near]
        top, chosen = np.empty(self._n), np.empty(self._n, np.int64)
        for draw in range(self._n):
            bits = hashed((3, self._seed, self._places[query], draw), rows)
            uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
            scores = logits - np.log(-np.log(uniform))
            best = int(np.argmax(scores))
            top[draw], chosen[draw] = scores[best], rows[best]
        return top, chosen

    def merged(self, answers: Sequence[Best]) -> Best:
        """See :class:`golddiff.store.training_set.Question`."""
        return reduce(Best.merge, answers)
