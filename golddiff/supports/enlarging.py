"""One query's posterior over a growing set of images, with an estimate of its error.

Images are drawn at random for the whole image, or each tile takes its nearest images:

- **Drawn.** Each image is in one of four random groups. The error is estimated by the jackknife,
  from the means that leave out one group and reweigh the other three.
- **Nearest.** The mean moves as rings of images are added. The remaining movement is estimated from
  the last two rings, and is larger if their movements are aligned. A single ring is not enough: a
  tile would stop when its movement happens to be small. If movements shrink by g per ring and have
  cosine c with the next, the squared remaining movement is (1 + c g) / (1 - c g) times that of
  orthogonal movements.

Partial posteriors merge exactly, so only new images are weighed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.posterior import Posterior
from golddiff.support import Support
from golddiff.supports import rule
from golddiff.supports.index.drawing import GROUPS
from golddiff.system.numbers import F64, I64

Weigh = Callable[[Sequence[Support]], Posterior]
Draw = Callable[[int, int], Support]  # (number of images, round) -> support
Rings = Callable[[Mapping[int, tuple[int, int]]], dict[int, I64]]  # {tile: (first, stop) rank}

# Orthonormal contrasts of four vectors: independent of each other and of the common mean.
_CONTRASTS = np.array([[1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]]) / 2


class DrawnImages:
    """Images drawn by weight, in rounds.

    Args:
        draw: draws about the given number of images; the second argument is the round.
        group_of: maps rows (k,) to groups. An image drawn in two rounds must have the same group in
            both: groups that share images would differ too little.
        weigh: maps supports to a partial posterior with one row for each.
        stands_for: number of training images per candidate; above 1 if the candidates are a random
            sample of the training set.
        compose: maps posterior means (n, V) to outputs (n, D); see ``Estimator.composed``.

    Attributes:
        count: approximate number of images drawn.
    """

    def __init__(
        self,
        draw: Draw,
        group_of: Callable[[I64], NDArray[np.uint8]],
        weigh: Weigh,
        stands_for: float = 1.0,
        compose: Callable[[F64], F64] = lambda means: means,
    ) -> None:
        self._draw, self._group_of, self._weigh = draw, group_of, weigh
        self._log_stands_for = np.log(stands_for)
        self._compose = compose
        self.count = 0
        self._rounds: list[tuple[int, Support]] = []
        # One row for the images drawn with certainty, then one for each group.
        self._posterior: Posterior | None = None

    def enlarge(self, count: int) -> None:
        """Draw until there are about ``count`` images; rounds are weighted by their sizes."""
        more = count - self.count
        drawn = self._draw(more, len(self._rounds))
        support = Support(drawn.rows, drawn.log_importance() + self._log_stands_for)
        part = np.where(support.log_importance() <= 0, 0, 1 + self._group_of(drawn.rows))
        parts = np.unique(part).tolist()
        weighed = self._weigh([support.at(np.flatnonzero(part == p)) for p in parts])
        weighed.log_max += np.log(more / count)
        if self._posterior is None:
            locations, width = weighed.log_max.shape[1], weighed.weighted.shape[1]
            self._posterior = Posterior.empty(1 + GROUPS, locations, width)
        else:
            self._posterior.log_max += np.log(self.count / count)
        self._posterior.add_to(parts, weighed)
        self.count = count
        self._rounds.append((more, support))
        # Sums of weights (n, L) and of weighted values (n, D), relative to the largest weight.
        log_max, totals, sums = vars(self._posterior).values()
        scale = np.exp(log_max - log_max.max(axis=0))
        self._totals = totals * scale
        by_channel = sums.reshape(len(sums), -1, scale.shape[1])
        self._sums = (by_channel * scale[:, None]).reshape(sums.shape)

    def mean(self) -> F64:
        """The posterior mean, (D,)."""
        return self._compose(_ratio(self._sums.sum(axis=0), self._totals.sum(axis=0))[None])[0]

    def square(self) -> tuple[float, float]:
        """The estimated mean squared error, and the effective number of directions of the error.

        Returns (inf, 1) if a single group holds all images of an output.
        """
        totals, sums = self._totals, self._sums
        # Each row leaves out one group and scales up the other three.
        scale = np.where(np.eye(GROUPS), 0.0, GROUPS / (GROUPS - 1))
        total = totals[0] + scale @ totals[1:]
        if not (total > 0).all():
            return np.inf, 1.0
        left_out = self._compose(_ratio(sums[0] + scale @ sums[1:], total))
        moved = left_out - self.mean()
        square = (GROUPS - 1) / GROUPS * float(np.square(moved).sum()) / moved.shape[1]
        return square, _directions(_CONTRASTS @ moved)

    def log_total(self) -> float:
        """The log of the estimated sum of all images' weights, the largest over the outputs."""
        assert self._posterior is not None
        log_max = self._posterior.log_max.max(axis=0)
        return float((log_max + np.log(self._totals.sum(axis=0))).max())

    def largest_share(self) -> float:
        """The largest weight share of one drawn image, averaged over the outputs."""
        return float(np.mean(1 / self._totals.sum(axis=0)))

    def support(self) -> Support:
        """The images weighed; the weights of an image drawn repeatedly are added."""
        drawn = np.concatenate([support.rows for _, support in self._rounds])
        rows, position = np.unique(drawn, return_inverse=True)
        weights = np.full(len(rows), -np.inf)
        per_round = [s.log_importance() + np.log(n / self.count) for n, s in self._rounds]
        np.logaddexp.at(weights, position, np.concatenate(per_round))
        return Support(rows, weights)


class NearestImages:
    """The nearest images of each tile, added in rings.

    Args:
        rings: maps {tile: (first, stop)} to the rows of the tile's images of these ranks.
        weigh: maps {tile: support} to a partial posterior.
        of_output: (D,) the tile of each output.
        images: number of candidates.

    Attributes:
        counts: (T,) number of images of each tile.
    """

    def __init__(
        self,
        rings: Rings,
        weigh: Callable[[Mapping[int, Support]], Posterior],
        of_output: I64,
        images: int,
    ) -> None:
        self._rings, self._weigh, self._tile, self._images = rings, weigh, of_output, images
        self._sizes = np.bincount(of_output)
        self.counts = np.zeros(len(self._sizes), np.int64)
        self._last, self._before = np.zeros((2, len(of_output)))
        tiles = range(len(self._sizes))
        self._posterior = self._added(dict.fromkeys(tiles, rule.FIRST_RING))
        for _ in range(2):  # the estimate needs two movements
            self.enlarge(tiles)

    def enlarge(self, tiles: Sequence[int]) -> None:
        """Double the images of the given tiles."""
        old = self.mean()
        more = self._added({t: min(2 * int(self.counts[t]), self._images) for t in tiles})
        self._posterior = self._posterior.merge(more)
        selected = np.isin(self._tile, list(tiles))
        self._before[selected] = self._last[selected]
        self._last[selected] = (self.mean() - old)[selected]

    def mean(self) -> F64:
        """The posterior mean, (D,); 0 if no images were weighed."""
        return _ratio(self._posterior.weighted[0], self._posterior.total[0])

    def squares(self) -> F64:
        """(T,) estimated mean squared errors."""
        last, before = self._last, self._before
        lengths = np.linalg.norm(last) * np.linalg.norm(before)
        c = last @ before / lengths if lengths else 0.0
        # Movements n rings apart have cosine c^n: the cross terms form a geometric series.
        ratio = max(0.0, float(c)) / np.sqrt(rule.DECAY)
        factor = rule.REMAINING_MOVEMENT * np.sqrt((1 + ratio) / (1 - ratio))
        # The squared movement of the ring before is on average DECAY times the last.
        moved = (last**2 + before**2) / (1 + rule.DECAY)
        means = np.bincount(self._tile, moved, len(self._sizes)) / self._sizes
        squares: F64 = factor**2 * means
        squares[self.counts >= self._images] = 0.0
        return squares

    def largest(self) -> float:
        """The largest logit of the images weighed."""
        return float(self._posterior.log_max.max())

    def tiles_to_enlarge(self, squares: F64, target: float) -> list[int]:
        """The tiles that need more images, given their squared errors (T,) and a target mean."""
        lacking = best_counts(squares, self.counts, self._sizes, target) / self.counts
        return np.flatnonzero(lacking >= min(rule.MIN_LACKING, lacking.max())).tolist()

    def supports(self) -> dict[int, Support]:
        """The support of each tile."""
        spans = {t: (0, int(count)) for t, count in enumerate(self.counts)}
        return {t: Support(rows) for t, rows in self._rings(spans).items()}

    def _added(self, counts: Mapping[int, int]) -> Posterior:
        spans = {t: (int(self.counts[t]), count) for t, count in counts.items()}
        rings = self._rings(spans)
        for t, count in counts.items():
            self.counts[t] = count
        return self._weigh({t: Support(rows) for t, rows in rings.items()})


def best_counts(squares: F64, counts: I64, sizes: I64, square: float) -> F64:
    """The image counts (T,) that reach a mean squared error over all outputs with fewest images.

    ``squares`` (T,) are the tiles' mean squared errors with ``counts`` (T,) images, and ``sizes``
    (T,) their numbers of outputs. A tile's error falls as a k^-p with its count k. The total count
    is least if a k^-(p + 1) is the same for all tiles.
    """
    p = np.log2(rule.DECAY)
    scale = (squares * counts**p) ** (1 / (p + 1))
    return scale * (scale @ sizes / sizes.sum() / square) ** (1 / p)


def _directions(vectors: F64) -> float:
    """Effective rank tr(S)^2 / tr(S^2) of the covariance S of independent vectors (n, D).

    The squared product of two vectors has mean tr(S^2). Its estimate from three vectors has a
    relative error of about 1, so it is averaged with the prior value ``rule.PRIOR_DIRECTIONS``.
    """
    products = vectors @ vectors.T
    square = (products.trace() / len(vectors)) ** 2
    if not square:
        return rule.PRIOR_DIRECTIONS
    pairs = np.square(products[np.triu_indices(len(vectors), 1)]).mean()
    return max(1.0, 2 / float(pairs / square + 1 / rule.PRIOR_DIRECTIONS))


def _ratio(sums: F64, totals: F64) -> F64:
    """Sums (..., D) divided by the totals (..., L) that channels share; 0 if a total is 0."""
    channels = sums.reshape(*sums.shape[:-1], -1, totals.shape[-1])
    return (channels / np.where(totals > 0, totals, np.inf)[..., None, :]).reshape(sums.shape)
