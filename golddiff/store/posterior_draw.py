"""Draws from an exact posterior, wherever its images are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from golddiff.kernels.terms import Known
from golddiff.noise import hashed, precision
from golddiff.store.posteriors import at_level, over
from golddiff.support import Support
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
    """Images drawn by their posterior weights: of each draw the highest log weight + Gumbel noise.

    The noise hangs on the seed, the query's place, the draw and the image's row alone, so parts of
    a training set draw what the whole would (Gumbel 1954; Yellott 1977).
    """

    def __init__(
        self, estimator: Any, sigma: float, n: int, seed: int, places: tuple[int, ...]
    ) -> None:
        self._estimator = at_level(estimator, sigma)
        self._sigma, self._n, self._seed, self._places = sigma, n, seed, places

    def summary(self, images: Any, x: F32, within: Sequence[Support]) -> Best:
        """The best of a part's images."""
        estimator, first = over(self._estimator, images), images.first_row
        queries = torch.from_numpy(x.astype(np.float64))
        gain = torch.full((1, 1), precision(self._sigma), dtype=torch.float64)

        def best_of(task: tuple[int, Support]) -> Best:
            q, part = task
            one = queries[q : q + 1]
            unknown = Known(one, torch.full((1, 1), -torch.inf, dtype=one.dtype))
            found = self._none()
            for _, places, logits, _ in estimator.terms(one, gain, self._sigma, part, unknown):
                rows = part.rows[places] + first
                scores = logits[0, :, 0].numpy() + part.log_importance()[places]
                near = scores >= scores.max() - OUT_OF_REACH
                found = found.merge(self._of(q, rows[near], scores[near]))
            return found

        made = []
        for q, support in enumerate(within):
            tasks = [(q, part) for part in support.split(IMAGES_AT_ONCE)]
            best = self._none()
            for found in map_ordered(best_of, tasks):
                best = best.merge(found)
            made.append(best)
        return Best(
            np.concatenate([b.scores for b in made]), np.concatenate([b.rows for b in made])
        )

    def _of(self, query: int, rows: I64, scores: F64) -> Best:
        top, chosen = np.empty((1, self._n)), np.empty((1, self._n), np.int64)
        for draw in range(self._n):
            bits = hashed((3, self._seed, self._places[query], draw), rows)
            uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
            noisy = scores - np.log(-np.log(uniform))
            best = int(np.argmax(noisy))
            top[0, draw], chosen[0, draw] = noisy[best], rows[best]
        return Best(top, chosen)

    def _none(self) -> Best:
        return Best(np.full((1, self._n), -np.inf), np.full((1, self._n), np.iinfo(np.int64).max))

    def chosen(self, images: Any, x: Any, within: Any, total: Best) -> Sequence[Any]:
        """Nothing: the summary tells all."""
        return ()
