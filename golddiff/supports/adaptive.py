"""Supports of the size that each query's own error takes, not a fixed share of the images."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.noise import bits, precision
from golddiff.posterior import Float, Posterior
from golddiff.store.images import ImageStore
from golddiff.store.training_set import TrainingSet
from golddiff.support import (
    AnySupport,
    LogWeights,
    Prior,
    Side,
    Support,
    TiledSupport,
    stream_of,
    tile_of_each,
)
from golddiff.supports.enlarging import DrawnImages, NearestImages, Tiles
from golddiff.supports.index.distances import KeptBlocks, Metric, TileBlocks
from golddiff.supports.index.image_index import Index, open_or_build
from golddiff.supports.index.search import NeighborSearch, Search
from golddiff.supports.index.search_parts import SearchInParts
from golddiff.supports.rule import (
    DRAWN_MARGIN,
    FEWEST,
    MOST,
    MOST_OF_TILES,
    NEAREST_MARGIN,
    drawn_from,
    side_of,
)
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import map_ordered

INDEXED_FROM = 100_000  # images; of fewer all pixels are compared
HELD = 1e8  # bytes of distances that are in memory at once
KEPT = 32
NO_IMAGES = Support(np.empty(0, np.int64))

log = logging.getLogger("golddiff")


class AdaptiveSchedule:
    """As few images as keep each query's error within ``tol``, by an estimate of its own.

    The error is the RMSE to the full scan. A query starts with a short list of images, the nearest
    or drawn by weight, for the whole image or for each tile of it; estimates from them how far
    their mean is from that of all; and takes more until the estimate is within ``tol``, or all were
    weighed (:mod:`golddiff.supports.enlarging`). Nothing is measured beforehand, and no query
    depends on another.

    Args:
        tol: RMSE to the full scan, in units of x0 in [-1, 1]; 0 is the full scan.
        index: whether images are looked for through the store's index instead of comparing all as
            finely; None: where there are more than 100,000 of them.
        guarantee: prove it instead of estimating it (``Optimal`` alone): each query's images are
            added until the bound of :mod:`golddiff.supports.certificate` is at most ``tol``. At
            high noise that takes nearly all of them.

    Raises:
        ArgumentError: tol is no finite number of 0 or more.
    """

    def __init__(
        self, tol: float = 0.02, *, index: bool | None = None, guarantee: bool = False
    ) -> None:
        number = isinstance(tol, int | float | np.number) and not isinstance(tol, bool)
        if not (number and math.isfinite(tol) and tol >= 0):
            raise ArgumentError(f"tol: got {tol!r}, expected a finite number of 0 or more")
        self.tol = float(tol)
        self.index = index
        self.guarantee = guarantee

    def fitted(self, estimator: Any) -> FittedSchedule:
        """The schedule for one estimator; :class:`golddiff.GoldDiff` asks for it.

        Raises:
            ArgumentError: over a store in shards, with ``index=True`` or ``guarantee=True``.
        """
        single = isinstance(estimator.store, ImageStore)
        if not single and (self.index or self.guarantee):
            name = "index" if self.index else "guarantee"
            raise ArgumentError(
                f"{name}: got True over a store in shards; that works on a single store "
                "(golddiff.ImageStore)"
            )
        return FittedSchedule(estimator, self)

    def __repr__(self) -> str:
        return f"AdaptiveSchedule(tol={self.tol!r})"


@dataclass(frozen=True)
class Weighed:
    """What was made of one query.

    Attributes:
        mean: (D,) float64, the posterior mean over the images weighed.
        error: estimated RMSE to the full scan; 0 where all images were weighed.
        images: how many were weighed, on average over the outputs.
        support: what was weighed; None: all images.
    """

    mean: Float
    error: float
    images: float
    support: AnySupport | None


@dataclass(frozen=True)
class Comparison:
    """How the images of a noise level are compared and chosen.

    Attributes:
        side: of the tiles that choose for themselves; None: the whole image does.
        tiles: which outputs lie in which.
        metric: cheap distances, as each tile sees them.
        drawn_from: effective images from which on a tile's are drawn.
    """

    side: Side | None
    tiles: Tiles
    metric: Metric
    drawn_from: int

    @classmethod
    def of(cls, estimator: Any, sigma: float, index: Index | None) -> Comparison:
        """By the estimator's masks, and by all pixels where there is no index."""
        store, relevance = estimator.store, estimator.relevance(sigma)
        width = float(relevance.mean())
        side = side_of(estimator.tile_sides, width)
        if side is None:
            tiles = Tiles(np.zeros(store.d, np.int64))
        else:
            tiles, relevance = (
                Tiles(tile_of_each(store.shape, side)),
                estimator.relevance(sigma, side),
            )
        metric: Metric = (
            TileBlocks.of(store.shape, relevance, side)
            if index is None
            else KeptBlocks.of(index, relevance, side)
        )
        return cls(side, tiles, metric, drawn_from(width))

    def support(self, parts: Mapping[int, Support]) -> AnySupport:
        """Of every tile's images."""
        if self.side is None:
            return parts[0]
        return TiledSupport(self.side, [parts[t] for t in range(len(self.tiles))])


class FittedSchedule:
    """An :class:`AdaptiveSchedule` over one estimator.

    Args:
        estimator: what weighs the images.
        settings: the schedule's.
    """

    def __init__(self, estimator: Any, settings: AdaptiveSchedule) -> None:
        self.estimator, self.settings = estimator, settings
        self._comparisons: dict[float, Comparison] = {}
        self._told = False
        indexed = settings.index
        if indexed is None:
            indexed = estimator.store.n > INDEXED_FROM and isinstance(estimator.store, ImageStore)
        self.indexed = indexed

    @cached_property
    def index(self) -> Index:
        """The store's; built where there is none."""
        store = self.estimator.store
        assert isinstance(store, ImageStore)
        return open_or_build(store)

    def weighed(
        self, x: NDArray[np.float32], sigma: float, label: Prior, seed: int
    ) -> list[Weighed]:
        """Posterior means of queries (b, D) and what is known of them; each by itself."""
        found: list[Weighed | None] = [None] * len(x)
        if self.saves(label):
            found = list(self._searched(x, sigma, label, seed))
        moved = [i for i, one in enumerate(found) if one is None]
        if moved:
            images = self.estimator.store.count_of(label)
            for i, mean in zip(moved, self.estimator.denoise(x[moved], sigma, label), strict=True):
                found[i] = Weighed(mean.astype(np.float64), 0.0, float(images), None)
        return [one for one in found if one is not None]

    def means(
        self, x: NDArray[np.float32], sigma: float, label: Prior, seed: int
    ) -> NDArray[np.float32]:
        """Posterior means (b, D) of queries (b, D)."""
        return np.stack([w.mean for w in self.weighed(x, sigma, label, seed)]).astype(np.float32)

    def supports(
        self, store: TrainingSet, x: NDArray[np.float32], sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D): all that was weighed for it."""
        everything = store.everything(label)
        found = self.weighed(x, sigma, label, seed)
        return [everything if one.support is None else one.support for one in found]

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(images compared, images kept at most) of n."""
        return n, n

    def describe(self, sigma: float, label: Prior = None) -> str:
        """How a noise level's images are chosen, in words."""
        images = self.estimator.store.count_of(label)
        if not self.saves(label):
            return f"weighs all {images:,} images"
        found = self.comparison(sigma)
        of = "the whole image" if found.side is None else f"each tile ({_told(found.side)})"
        return (
            f"of {images:,} images for {of} the nearest, or some drawn by weight where "
            f"{found.drawn_from} or more share the weight, until the estimated RMSE is within "
            f"{self.settings.tol:g}"
        )

    def saves(self, label: Prior) -> bool:
        """Whether fewer images than all are tried."""
        if isinstance(label, LogWeights) and not isinstance(self.estimator.store, ImageStore):
            return False  # shards do not search by log weights
        enough = self.estimator.store.count_of(label) > FEWEST
        return enough and self.settings.tol > 0 and self.estimator.merges

    def comparison(self, sigma: float) -> Comparison:
        """How the images of a noise level are compared; made once and kept."""
        if sigma not in self._comparisons:
            while len(self._comparisons) >= KEPT:
                self._comparisons.pop(next(iter(self._comparisons)))
            index = self.index if self.indexed else None
            self._comparisons[sigma] = Comparison.of(self.estimator, sigma, index)
        return self._comparisons[sigma]

    def _searched(
        self, x: NDArray[np.float32], sigma: float, label: Prior, seed: int
    ) -> Iterator[Weighed | None]:
        """What is made of each query; None: all images should be weighed."""
        store, comparison = self.estimator.store, self.comparison(sigma)
        everything = store.everything(label)
        at_once = max(1, int(HELD // (4 * len(comparison.tiles) * len(everything))))
        seeds = (2, seed, bits(sigma), stream_of(label))
        prior = label if isinstance(label, LogWeights) else None
        weights = everything.log_weights
        further = None if weights is None else (weights / -precision(sigma)).astype(np.float32)
        for start in range(0, len(x), at_once):
            some = x[start : start + at_once]
            search: Search = (
                NeighborSearch(store, comparison.metric, some, everything.rows, further=further)
                if isinstance(store, ImageStore)
                else SearchInParts(store, comparison.metric, some, everything)
            )
            one = partial(self._enlarged, some, sigma, comparison, search, prior, seeds)
            # Tiles go side by side, and where there is one, queries do.
            alone = comparison.side is None
            yield from (map_ordered if alone else map)(one, range(len(some)))

    def _enlarged(
        self,
        x: NDArray[np.float32],
        sigma: float,
        comparison: Comparison,
        search: Search,
        prior: LogWeights | None,
        seeds: tuple[int, ...],
        query: int,
    ) -> Weighed | None:
        """One query over more and more images, until the estimate is within ``tol``; or None."""
        side, tiles = comparison.side, comparison.tiles
        gain, tol = precision(sigma), self.settings.tol
        totals = search.summaries(query, gain)
        many = [t for t, sums in enumerate(totals) if sums.effective >= comparison.drawn_from]
        few = [t for t, sums in enumerate(totals) if sums.effective < comparison.drawn_from]

        def under(parts: Mapping[int, Support]) -> Mapping[int, Support]:
            if prior is None:
                return parts
            return {t: prior.added_to(part) for t, part in parts.items()}

        def weigh(parts: Mapping[int, Support]) -> Posterior | None:
            parts = under(parts)
            if side is None:
                support: AnySupport = parts[0]
            else:
                each = [parts.get(t, NO_IMAGES) for t in range(len(tiles))]
                support = TiledSupport(side, each)
            if not any(map(len, parts.values())):
                return None
            made: Posterior = self.estimator.store.posterior(
                self.estimator, x[query : query + 1], sigma, support
            )
            return made

        kinds: list[tuple[NearestImages | DrawnImages, float]] = []
        if few:
            kinds.append((NearestImages(search, query, weigh, tiles, few), NEAREST_MARGIN))
        if many:
            drawn = DrawnImages(search, query, weigh, tiles, many, gain, totals, seeds)
            kinds.append((drawn, DRAWN_MARGIN))
        share = tiles.sizes / tiles.sizes.sum()
        while True:
            squares = [kind.squares() for kind, _ in kinds]
            bounds = [s * margin**2 for s, (_, margin) in zip(squares, kinds, strict=True)]
            if share @ np.sum(bounds, axis=0) <= tol**2:
                parts = {t: s for kind, _ in kinds for t, s in kind.supports().items()}
                return Weighed(
                    np.sum([kind.mean() for kind, _ in kinds], axis=0),
                    math.sqrt(share @ np.sum(squares, axis=0)),
                    float(share @ np.sum([kind.counts for kind, _ in kinds], axis=0)),
                    comparison.support(under(parts)),
                )
            wanted = []
            for (kind, _), bound in zip(kinds, bounds, strict=True):
                open_ = [t for t in kind.chosen if bound[t] > tol**2]
                wanted.append(kind.next_counts(open_, bound / tol**2))
            after = np.sum([kind.counts for kind, _ in kinds], axis=0)
            for counts_of in wanted:
                for t, count in counts_of.items():
                    after[t] = count
            most = MOST if side is None else MOST_OF_TILES
            if share @ after > most * search.images:
                self._tell(sigma)
                return None
            for (kind, _), counts_of in zip(kinds, wanted, strict=True):
                if counts_of:
                    kind.enlarge(counts_of)

    def _tell(self, sigma: float) -> None:
        if not self._told:
            self._told = True
            log.info(
                "tol=%g takes all images for some queries, first at sigma %.3g",
                self.settings.tol, sigma,
            )  # fmt: skip


def _told(side: Side) -> str:
    return f"{side}x{side}" if isinstance(side, int) else str(side)
