"""One query's posterior over more and more images, until what is there is good enough.

Each tile's images are the nearest, ring after ring, or draws; both estimate how wrong they are:

- **Nearest.** The mean moves as rings are added. What is still to come is as much again and a bit,
  where movements are independent of each other (an image here and there decides); a multiple of
  it where they all go one way, as they do where thousands of images weigh alike.
- **Drawn.** Images are in one of four groups at random. The mean without one of the groups, the
  others standing for it, differs from the mean as one draw does from another (the jackknife).

Partial posteriors merge exactly, so nothing is weighed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from golddiff.posterior import Float, Posterior
from golddiff.support import Support
from golddiff.supports.index.drawing import GROUPS, Drawn, Sums
from golddiff.supports.index.search import Search
from golddiff.supports.rule import ALIGNED, BEYOND, FIRST_DRAW, FIRST_RING, UNKNOWN

Weigh = Callable[[Mapping[int, Support]], Posterior | None]  # None: of no images
MOST = 8  # times as many images are drawn at once


class Tiles:
    """Which tile each output lies in.

    Args:
        of_output: (D,) tile numbers from 0.
    """

    def __init__(self, of_output: NDArray[np.int64]) -> None:
        self.of_output = of_output
        self.sizes = np.bincount(of_output)

    def __len__(self) -> int:
        return len(self.sizes)

    def mean_squares(self, values: Float) -> Float:
        """Of values (D,), tile by tile, (T,)."""
        squares: Float = np.bincount(self.of_output, values**2, len(self)) / self.sizes
        return squares


class NearestImages:
    """The tiles of one query that take their nearest images.

    Args:
        search: what the queries see.
        query: which of them.
        weigh: images of each tile to a partial posterior.
        tiles: of the outputs.
        chosen: the tiles meant.

    Attributes:
        counts: (T,) images of each tile.
    """

    def __init__(
        self,
        search: Search,
        query: int,
        weigh: Weigh,
        tiles: Tiles,
        chosen: Sequence[int],
    ) -> None:
        self._search, self._query, self._weigh, self._tiles = search, query, weigh, tiles
        self.chosen = list(chosen)
        self.counts = np.zeros(len(tiles), np.int64)
        self._last, self._before = (np.full(len(tiles.of_output), np.nan) for _ in range(2))
        self._posterior: Posterior | None = None
        self._add(dict.fromkeys(chosen, FIRST_RING))
        self.enlarge(dict.fromkeys(chosen, 2 * FIRST_RING))

    def enlarge(self, counts: Mapping[int, int]) -> None:
        """Take as many images for some tiles."""
        old = self.mean()
        self._add(counts)
        here = np.isin(self._tiles.of_output, list(counts))
        self._before[here] = self._last[here]
        self._last[here] = (self.mean() - old)[here]

    def next_counts(self, tiles: Sequence[int], excess: Float) -> dict[int, int]:
        """How many images to take next, of all tiles' ``excess``, squared errors in tolerances."""
        return {t: min(2 * int(self.counts[t]), self._search.images) for t in tiles}

    def mean(self) -> Float:
        """(D,), 0 at other tiles' outputs."""
        assert self._posterior is not None
        return _mean(self._posterior)

    def squares(self) -> Float:
        """(T,) estimated mean squared errors, 0 for other tiles."""
        last, before = np.nan_to_num(self._last), np.nan_to_num(self._before)
        both = ~np.isnan(self._before)
        lengths = np.linalg.norm(last[both]) * np.linalg.norm(before[both])
        aligned = UNKNOWN if not both.any() else last @ before / lengths if lengths else 0.0
        factor = BEYOND * (1 + ALIGNED * max(0.0, float(aligned)))
        squares = factor**2 * self._tiles.mean_squares(last)
        squares[self.counts >= self._search.images] = 0.0
        return squares

    def supports(self) -> dict[int, Support]:
        """What was weighed."""
        spans = {t: (0, int(self.counts[t])) for t in self.chosen}
        return {t: Support(rows) for t, rows in self._search.rings(self._query, spans).items()}

    def _add(self, counts: Mapping[int, int]) -> None:
        spans = {t: (int(self.counts[t]), count) for t, count in counts.items()}
        rings = self._search.rings(self._query, spans)
        for t, count in counts.items():
            self.counts[t] = min(count, self._search.images)
        self._posterior = _joined(
            [self._posterior, self._weigh({t: Support(rows) for t, rows in rings.items()})]
        )


class DrawnImages:
    """The tiles of one query whose images are drawn; see :class:`NearestImages`.

    Args:
        gain: 1 / (2 sigma^2).
        totals: sums over all images, of every tile.
        seeds: of the random numbers that decide.
    """

    def __init__(
        self,
        search: Search,
        query: int,
        weigh: Weigh,
        tiles: Tiles,
        chosen: Sequence[int],
        gain: float,
        totals: Sequence[Sums],
        seeds: tuple[int, ...],
    ) -> None:
        self._search, self._query, self._weigh, self._tiles = search, query, weigh, tiles
        self._gain, self._totals, self._seeds = gain, totals, seeds
        self.chosen = list(chosen)
        self.counts = np.zeros(len(tiles), np.int64)
        self._rounds: list[tuple[Float, dict[int, Drawn], list[Posterior | None]]] = []
        self.enlarge(dict.fromkeys(chosen, FIRST_DRAW))

    def enlarge(self, counts: Mapping[int, int]) -> None:
        """Draw for some tiles until they have as many images."""
        more = {t: count - int(self.counts[t]) for t, count in counts.items()}
        drawn = self._search.drawn(
            self._query, more, self._gain, self._totals, (*self._seeds, len(self._rounds))
        )
        parts = [
            self._weigh({t: _part(some, group) for t, some in drawn.items()})
            for group in range(-1, GROUPS)
        ]
        share = np.zeros(len(self._tiles))
        for t, count in more.items():
            share[t] = count
            self.counts[t] += count
        self._rounds.append((share, drawn, parts))

    def next_counts(self, tiles: Sequence[int], excess: Float) -> dict[int, int]:
        """See :class:`NearestImages`; a draw's squared error falls as its images grow."""
        return {t: int(self.counts[t] * min(max(1.1 * excess[t], 1.5), MOST)) for t in tiles}

    def mean(self) -> Float:
        """(D,), 0 at other tiles' outputs."""
        merged = _joined(self._parts())
        assert merged is not None
        return _mean(merged)

    def squares(self) -> Float:
        """(T,) estimated mean squared errors, 0 for other tiles; infinite where a group is all."""
        sure, *groups = self._parts()
        mean = self.mean()
        total = np.zeros(len(mean))
        here = np.isin(self._tiles.of_output, self.chosen)
        for out in range(GROUPS):
            others = [_scaled(g, GROUPS / (GROUPS - 1)) for g in groups[:out] + groups[out + 1 :]]
            without = _joined([sure, *others])
            if without is None:
                total[here] = np.inf
                continue
            total += (_mean(without) - mean) ** 2
            total[here & (_total(without) <= 0)] = np.inf
        return (GROUPS - 1) / GROUPS * self._tiles.mean_squares(np.sqrt(total))

    def supports(self) -> dict[int, Support]:
        """What was weighed; an image that was drawn twice stands for both."""
        made = {}
        for t in self.chosen:
            some = [
                (drawn[t].rows, drawn[t].log_weights + np.log(share[t] / self.counts[t]))
                for share, drawn, _ in self._rounds
                if t in drawn
            ]
            rows, place = np.unique(np.concatenate([r for r, _ in some]), return_inverse=True)
            weights = np.full(len(rows), -np.inf)
            np.logaddexp.at(weights, place, np.concatenate([w for _, w in some]))
            made[t] = Support(rows, weights)
        return made

    def _parts(self) -> list[Posterior | None]:
        """The sure images and each group's others, rounds by their share of the images."""
        merged: list[Posterior | None] = [None] * (GROUPS + 1)
        for share, _, parts in self._rounds:
            of_tile = share / np.maximum(self.counts, 1)
            scaled = [_scaled(part, of_tile[self._tiles.of_output]) for part in parts]
            merged = [_joined(pair) for pair in zip(merged, scaled, strict=True)]
        return merged


def _part(drawn: Drawn, group: int) -> Support:
    """The sure images (group -1), or those of a group that are not."""
    sure = drawn.log_weights <= 0
    kept = sure if group < 0 else ~sure & (drawn.group == group)
    return Support(drawn.rows[kept], drawn.log_weights[kept])


def _joined(parts: Sequence[Posterior | None]) -> Posterior | None:
    return (
        reduce(Posterior.merge, [part for part in parts if part is not None])
        if any(part is not None for part in parts)
        else None
    )


def _scaled(posterior: Posterior | None, factor: float | Float) -> Posterior | None:
    """Every weight times a factor, of all or of each output (D,)."""
    if posterior is None:
        return None
    with np.errstate(divide="ignore"):
        shift = np.broadcast_to(np.log(factor), posterior.weighted.shape[1])
    # Locations that serve several outputs (channels) are those of one tile: the same for all.
    shift = shift[: posterior.log_max.shape[1]]
    return Posterior(posterior.log_max + shift, posterior.total, posterior.weighted)


def _total(posterior: Posterior) -> Float:
    """(D,) sums of weights of one query."""
    channels = posterior.weighted.shape[1] // posterior.total.shape[1]
    return np.tile(posterior.total[0], channels)


def _mean(posterior: Posterior) -> Float:
    """(D,) of one query, 0 where no images were weighed."""
    total = _total(posterior)
    mean: Float = np.divide(posterior.weighted[0], total, out=np.zeros_like(total), where=total > 0)
    return mean
