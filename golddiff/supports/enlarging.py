"""One query's posterior over more and more images, until what is there is good enough.

Images are drawn for the whole image, or each tile takes its nearest; both estimate their error:

- **Drawn.** Images are in one of four groups at random. The mean without one of the groups, the
  others standing for it, differs from the mean as one draw does from another (the jackknife).
- **Nearest.** The mean moves as rings of images are added: what is still to come is about as much
  as the last two rings together moved it, more where their movements are aligned. Two rings and
  not one, since a tile stops where its movement happens to be small. With movements that shrink by
  g and have a cosine c with the next, the square of what is to come is (1 + c g) / (1 - c g) times
  that of movements at right angles.

Partial posteriors merge exactly, so nothing is weighed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.posterior import Posterior
from golddiff.support import Support
from golddiff.supports.index.drawing import GROUPS
from golddiff.supports.rule import BEYOND, FIRST_RING, GROWTH, LACKING, UNKNOWN, USUAL
from golddiff.system.numbers import F64, I64

Weigh = Callable[[Sequence[Support]], list[Posterior]]
Draw = Callable[[int, int], Support]  # of so many images, the number of the round
Rings = Callable[[Mapping[int, tuple[int, int]]], dict[int, I64]]

# Of four vectors three that are independent of each other, and of what all four share.
_CONTRASTS = np.array([[1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]]) / 2


class DrawnImages:
    """Images drawn by weight, in rounds.

    Args:
        draw: about so many images; the second number makes a round differ from the others.
        group_of: of images (k,) by their rows. One that is drawn in two rounds must be in the same
            group in both, or groups would share images and differ too little.
        weigh: some images each to their partial posteriors.
        stands_for: how many images of the training set each stands for that competes; above 1
            where a random sample of them does.
        compose: posterior means (n, V) to what is wanted (n, D); see ``Estimator.composed``.

    Attributes:
        count: images drawn, about.
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
        self._each = np.log(stands_for)
        self._compose = compose
        self.count = 0
        self._rounds: list[tuple[int, Support]] = []
        self._parts: list[Posterior | None] = [None] * (GROUPS + 1)  # the sure ones, each group's

    def enlarge(self, count: int) -> None:
        """Draw until there are about so many images; rounds count by their shares of them."""
        more = count - self.count
        drawn = self._draw(more, len(self._rounds))
        support = Support(drawn.rows, drawn.log_importance() + self._each)
        group, sure = self._group_of(drawn.rows), support.log_importance() <= 0
        parts = [sure, *(~sure & (group == g) for g in range(GROUPS))]
        held = [part for part, mask in enumerate(parts) if mask.any()]
        weighed = self._weigh([support.at(np.flatnonzero(parts[part])) for part in held])
        old = [part and _scaled(part, self.count / count) for part in self._parts]
        for part, made in zip(held, weighed, strict=True):
            mine, scaled = old[part], _scaled(made, more / count)
            old[part] = scaled if mine is None else mine.merge(scaled)
        self._parts, self.count = old, count
        self._rounds.append((more, support))
        self._totals, self._sums = _aligned(old)

    def mean(self) -> F64:
        """(D,)."""
        mean: F64 = self._compose(_ratio(self._sums.sum(axis=0), self._totals.sum(axis=0))[None])[0]
        return mean

    def square(self) -> tuple[float, float]:
        """The estimated mean squared error, and in about how many directions the error lies.

        Infinite, and 1, where a group is all there is.
        """
        totals, sums = self._totals, self._sums
        # Without a group the other three stand for it.
        rest = np.where(np.eye(GROUPS), 0.0, GROUPS / (GROUPS - 1))
        total = totals[0] + rest @ totals[1:]
        if not (total > 0).all():
            return np.inf, 1.0
        without = self._compose(_ratio(sums[0] + rest @ sums[1:], total))
        moved = without - self.mean()
        square = (GROUPS - 1) / GROUPS * float(np.square(moved).sum()) / moved.shape[1]
        return square, _directions(_CONTRASTS @ moved)

    def largest_share(self) -> float:
        """Of the weight that one image has of what was drawn, on average over the outputs."""
        return float(np.mean(1 / self._totals.sum(axis=0)))

    def support(self) -> Support:
        """What was weighed; an image that was drawn twice stands for both."""
        shares = [np.log(count / self.count) for count, _ in self._rounds]
        some = [support for _, support in self._rounds]
        rows, place = np.unique(np.concatenate([s.rows for s in some]), return_inverse=True)
        weights = np.full(len(rows), -np.inf)
        each = [s.log_importance() + share for s, share in zip(some, shares, strict=True)]
        np.logaddexp.at(weights, place, np.concatenate(each))
        return Support(rows, weights)


class NearestImages:
    """The nearest images of each tile, ring after ring.

    Args:
        rings: rows of some tiles' images by rank, from one to before another.
        weigh: images of each tile to a partial posterior.
        of_output: (D,) the tile that each output lies in.
        images: how many there are.

    Attributes:
        counts: (T,) images of each tile.
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
        self._last, self._before = (np.full(len(of_output), np.nan) for _ in range(2))
        tiles = range(len(self._sizes))
        self._posterior = self._added(dict.fromkeys(tiles, FIRST_RING))
        self.enlarge(tiles)

    def enlarge(self, tiles: Sequence[int]) -> None:
        """Take twice as many images for some tiles."""
        old = self.mean()
        more = self._added({t: min(2 * int(self.counts[t]), self._images) for t in tiles})
        self._posterior = self._posterior.merge(more)
        here = np.isin(self._tile, list(tiles))
        self._before[here] = self._last[here]
        self._last[here] = (self.mean() - old)[here]

    def mean(self) -> F64:
        """(D,), 0 where no images were weighed."""
        return _ratio(self._posterior.weighted[0], self._posterior.total[0])

    def squares(self) -> F64:
        """(T,) estimated mean squared errors."""
        last = self._last
        both = ~np.isnan(self._before)
        before = np.where(both, self._before, 0.0)
        lengths = np.linalg.norm(last[both]) * np.linalg.norm(before[both])
        aligned = UNKNOWN if not both.any() else last @ before / lengths if lengths else 0.0
        # Each movement is aligned so much with the next, its power with the ones behind it.
        passed_on = max(0.0, float(aligned)) / np.sqrt(GROWTH)
        factor = BEYOND * np.sqrt((1 + passed_on) / (1 - passed_on))
        # The movement before is on average GROWTH times the last in its square.
        moved = (last**2 + np.where(both, before**2, GROWTH * last**2)) / (1 + GROWTH)
        means = np.bincount(self._tile, moved, len(self._sizes)) / self._sizes
        squares: F64 = factor**2 * means
        squares[self.counts >= self._images] = 0.0
        return squares

    def largest(self) -> float:
        """The largest logit of what was weighed."""
        return float(self._posterior.log_max.max())

    def short_of(self, squares: F64, square: float) -> list[int]:
        """The tiles to take more images for, from their errors (T,) towards one of all outputs."""
        lacking = best_counts(squares, self.counts, self._sizes, square) / self.counts
        return np.flatnonzero(lacking >= min(LACKING, lacking.max())).tolist()

    def supports(self) -> dict[int, Support]:
        """What was weighed."""
        spans = {t: (0, int(count)) for t, count in enumerate(self.counts)}
        return {t: Support(rows) for t, rows in self._rings(spans).items()}

    def _added(self, counts: Mapping[int, int]) -> Posterior:
        spans = {t: (int(self.counts[t]), count) for t, count in counts.items()}
        rings = self._rings(spans)
        for t, count in counts.items():
            self.counts[t] = count
        return self._weigh({t: Support(rows) for t, rows in rings.items()})


def best_counts(squares: F64, counts: I64, sizes: I64, square: float) -> F64:
    """(T,) the fewest images of each tile for a mean squared error over all outputs.

    A tile's mean squared error falls as a k^-p. Of all counts with the same mean over the outputs
    those are best where a k^-(p + 1) is one for all tiles: where more images are taken, the error
    is larger still.

    Args:
        squares: (T,) mean squared errors.
        counts: (T,) of so many images.
        sizes: (T,) outputs of each tile.
        square: wanted.
    """
    p = np.log2(GROWTH)
    scale = (squares * counts**p) ** (1 / (p + 1))
    best: F64 = scale * (scale @ sizes / sizes.sum() / square) ** (1 / p)
    return best


def _directions(some: F64) -> float:
    """In how many directions independent vectors (n, D) of one covariance S lie, tr(S)^2 / tr(S^2).

    The square of a product of two of them is tr(S^2) on average. That of three vectors' products
    varies by as much as it is, so ``USUAL`` directions count as much as they do.
    """
    products = some @ some.T
    square = (products.trace() / len(some)) ** 2
    if not square:
        return USUAL
    pairs = np.square(products[np.triu_indices(len(some), 1)]).mean()
    return max(1.0, 2 / float(pairs / square + 1 / USUAL))


def _aligned(parts: Sequence[Posterior | None]) -> tuple[F64, F64]:
    """Sums of weights (n, L) and of weighted values (n, D), in units of the largest weight."""
    some = [part for part in parts if part is not None]
    top = np.max([part.log_max for part in some], axis=0)
    totals = np.zeros((len(parts), top.shape[1]))
    sums = np.zeros((len(parts), some[0].weighted.shape[1]))
    for place, part in enumerate(parts):
        if part is not None:
            shrink = np.exp(part.log_max - top)
            totals[place] = part.total * shrink
            sums[place] = (part.weighted.reshape(-1, top.shape[1]) * shrink).ravel()
    return totals, sums


def _scaled(posterior: Posterior, factor: float) -> Posterior:
    """Every weight times a factor."""
    return Posterior(posterior.log_max + np.log(factor), posterior.total, posterior.weighted)


def _ratio(sums: F64, totals: F64) -> F64:
    """Sums (..., D) over the totals (..., L) that their channels share; 0 where those are."""
    each = sums.reshape(*sums.shape[:-1], -1, totals.shape[-1])
    mean: F64 = (each / np.where(totals > 0, totals, np.inf)[..., None, :]).reshape(sums.shape)
    return mean
