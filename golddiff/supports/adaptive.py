"""Supports of the size that each query's own error takes, not a fixed share of the images."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from typing import Any

import numpy as np

from golddiff.noise import bits, precision
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Metric
from golddiff.store.training_set import TrainingSet
from golddiff.support import (
    AnySupport,
    DescribedSupport,
    LogWeights,
    Prior,
    RandomSample,
    Support,
    TiledSupport,
    stream_of,
    tile_count,
    tile_of_each,
)
from golddiff.supports import rule
from golddiff.supports.certificate import certify
from golddiff.supports.enlarging import DrawnImages, NearestImages
from golddiff.supports.index.blocks import SIDE
from golddiff.supports.index.distances import KeptBlocks, KeptNumbers, TileBlocks
from golddiff.supports.index.drawing import groups
from golddiff.supports.index.image_index import Index, open_or_build
from golddiff.supports.index.search import NeighborSearch
from golddiff.supports.index.search_parts import Search, SearchInParts
from golddiff.system.arguments import check_not_negative
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64
from golddiff.system.parallel import map_ordered

INDEXED_FROM = 100_000  # images; of fewer all pixels are compared
HELD = 1e8  # bytes of distances that are in memory at once
KEPT = 32
NO_IMAGES = Support(np.empty(0, np.int64))

log = logging.getLogger("golddiff")


class AdaptiveSchedule:
    """As few images as keep each query's error within ``tol``, by an estimate of its own.

    The error is the RMSE to the full scan. A query starts with a few images drawn by weight;
    estimates from them how far their mean is from that of all; and takes more, or for each tile
    the nearest where single images decide, until the estimate is within ``tol``, or all were
    weighed (:mod:`golddiff.supports.enlarging`). Nothing is measured beforehand, and no query
    depends on another.

    Args:
        tol: RMSE to the full scan, in units of x0 in [-1, 1]; 0 is the full scan.
        index: whether images are looked for through the store's index instead of comparing all as
            finely; None: where there are more than 100,000 of them. Without it ``Optimal`` weighs
            all, which takes no longer than to compare them.
        guarantee: prove it instead of estimating it (``Optimal`` alone): each query's images are
            added until the bound of :mod:`golddiff.supports.certificate` is at most ``tol``. Where
            a hundredth of them does not prove it, as at high noise, all are weighed.

    Raises:
        ArgumentError: tol is no finite number of 0 or more.
    """

    def __init__(
        self, tol: float = 0.02, *, index: bool | None = None, guarantee: bool = False
    ) -> None:
        check_not_negative("tol", tol)
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
        kind = getattr(estimator, "fitted_schedule", FittedSchedule)
        fitted: FittedSchedule = kind(estimator, self)
        return fitted

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index!r}"
        guarantee = ", guarantee=True" if self.guarantee else ""
        return f"AdaptiveSchedule(tol={self.tol!r}{index}{guarantee})"


@dataclass(frozen=True)
class Weighed:
    """What was made of one query."""

    mean: F64  # (D,) float64, the posterior mean over the images weighed
    error: float  # estimated RMSE to the full scan; 0 where all images were weighed
    images: float  # how many were weighed, on average over the outputs
    support: AnySupport | None  # what was weighed; None: all images


class FittedSchedule:
    """An :class:`AdaptiveSchedule` over one estimator."""

    def __init__(self, estimator: Any, settings: AdaptiveSchedule) -> None:
        self.estimator, self.settings = estimator, settings
        self._comparisons: dict[float, tuple[Metric, bool]] = {}
        self._said = False
        large = estimator.store.n > INDEXED_FROM and isinstance(estimator.store, ImageStore)
        self.indexed = large if settings.index is None else settings.index

    def __repr__(self) -> str:
        return repr(self.settings)

    @cached_property
    def index(self) -> Index:
        """The store's; built where there is none."""
        store = self.estimator.store
        assert isinstance(store, ImageStore)
        return open_or_build(store)

    def weighed(self, x: F32, sigma: float, label: Prior, seed: int) -> list[Weighed]:
        """Posterior means of queries (b, D) and what is known of them; each by itself."""
        made: dict[int, Weighed] = {}
        if self.settings.guarantee:
            made = self._proved(x, sigma, label)
        elif self.saves(label):
            made = _Level(self, sigma, label, seed).weighed(x)
        left = [i for i in range(len(x)) if i not in made]
        if left:
            images = float(self.estimator.store.count_of(label))
            for i, mean in zip(left, self.estimator.denoise(x[left], sigma, label), strict=True):
                made[i] = Weighed(mean.astype(np.float64), 0.0, images, None)
        return [made[i] for i in range(len(x))]

    def means(self, x: F32, sigma: float, label: Prior, seed: int) -> F32:
        """Posterior means (b, D) of queries (b, D)."""
        return np.stack([w.mean for w in self.weighed(x, sigma, label, seed)]).astype(np.float32)

    def supports(
        self, store: TrainingSet, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D): all that was weighed for it."""
        everything = store.everything(label)
        if not (self.saves(label) or self.settings.guarantee):
            return [everything] * len(x)
        found = self.weighed(x, sigma, label, seed)
        return [everything if one.support is None else one.support for one in found]

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(images compared, images kept at most) of n."""
        return n, n

    def describe(self, sigma: float, label: Prior = None) -> str:
        """How a noise level's images are chosen, in words."""
        images = self.estimator.store.count_of(label)
        if self.settings.guarantee:
            return f"weighs what proves an RMSE of {self.settings.tol:g}, or all {images:,} images"
        if not self.saves(label):
            return f"weighs all {images:,} images"
        metric, narrow = self.comparison(sigma)
        side = metric.side
        tiles = f"{side}x{side}" if isinstance(side, int) else str(side)
        each = "" if side is None else f" for each tile ({tiles})"
        chosen = f"the nearest{each}" if side or self.estimator.one_logit else "all"
        decided = f"; where single ones decide, {chosen}"
        return (
            f"draws some of {images:,} images by weight, until the estimated RMSE is within "
            f"{self.settings.tol:g}{decided if narrow or self.estimator.one_logit else ''}"
        )

    def saves(self, label: Prior) -> bool:
        """Whether fewer images than all are tried."""
        one_logit = self.estimator.one_logit
        if one_logit and not self.indexed:
            return False  # to choose images takes as long as to weigh them all
        if isinstance(label, LogWeights) and (
            one_logit or not isinstance(self.estimator.store, ImageStore)
        ):
            return False  # neither an index nor shards know log weights
        enough = self.estimator.store.count_of(label) > rule.FEWEST
        return enough and self.settings.tol > 0 and self.estimator.merges

    def _proved(self, x: F32, sigma: float, label: Prior) -> dict[int, Weighed]:
        """What is made of queries (b, D), by number; not of those that take all images."""
        assert not isinstance(label, LogWeights)  # which weigh all; given() refuses a guarantee
        root, made = math.sqrt(self.estimator.store.d), {}
        most = self.settings.tol * root
        enough = rule.MOST_PROVED * self.estimator.store.count_of(label)
        for i, query in enumerate(x):
            one = certify(self.index, query, sigma, label=label, most=most, enough=enough)
            if one.bound <= most:
                images = float(len(one.rows))
                made[i] = Weighed(one.mean, one.bound / root, images, Support(one.rows))
        return made

    def comparison(self, sigma: float) -> tuple[Metric, bool]:
        """Distances as each tile sees the images, and whether masks hold few of the inputs.

        The store's or the index's; made once a noise level and kept.
        """
        if sigma not in self._comparisons:
            while len(self._comparisons) >= KEPT:
                self._comparisons.pop(next(iter(self._comparisons)))
            estimator = self.estimator
            width = float(estimator.relevance(sigma).mean())
            sides = estimator.tile_sides
            # An index keeps blocks of 8x8: it tells little more of smaller tiles, whose distances
            # to 1.28 million images take four times the memory and time.
            sides = (SIDE,) if self.indexed and SIDE in sides else sides
            side = rule.side_of(sides, width)
            relevance = estimator.relevance(sigma, side)
            metric: Metric
            if not self.indexed:
                metric = TileBlocks.of(estimator.store.shape, relevance, side)
            elif estimator.one_logit:
                metric = KeptNumbers(self.index)
            else:
                metric = KeptBlocks.of(self.index, relevance, side)
            self._comparisons[sigma] = metric, width < rule.WIDE
        return self._comparisons[sigma]

    def say_all(self, sigma: float) -> None:
        """Say, once, that some queries take all images."""
        if not self._said:
            self._said = True
            log.info(
                "tol=%g takes all images for some queries, first at sigma %.3g",
                self.settings.tol, sigma,
            )  # fmt: skip


class _Else(Enum):
    """What a query takes whose error is not small enough."""

    LARGER_SAMPLE = 1
    ALL_COMPARED = 2  # since single images decide, which no sample is sure to hold
    EVERYTHING = 3


_Within = Support | DescribedSupport
_Outcome = Weighed | _Else


class _Level:
    """Queries of one noise level and prior: draws from ever larger samples, or the nearest."""

    def __init__(self, schedule: FittedSchedule, sigma: float, label: Prior, seed: int) -> None:
        self._schedule, self._sigma = schedule, sigma
        self._estimator, self._tol = schedule.estimator, schedule.settings.tol
        self._metric, self._narrow = schedule.comparison(sigma)
        self._gain = precision(sigma)
        self._everything = self._estimator.store.everything(label)
        self._prior = label if isinstance(label, LogWeights) else None
        self._seeds = (seed, bits(sigma), stream_of(label))

    def weighed(self, x: F32) -> dict[int, Weighed]:
        """What is made of queries (b, D), by number; not of those that take all images."""
        outcome: dict[int, _Outcome] = dict.fromkeys(range(len(x)), _Else.LARGER_SAMPLE)

        def search(within: _Within, *wanted: _Else) -> None:
            queries = [i for i, found in outcome.items() if found in wanted]
            outcome.update(zip(queries, self._searched(x[queries], within), strict=True))

        images, one_logit = len(self._everything), self._estimator.one_logit
        *samples, _ = rule.samples_of(images, one_logit) if self._prior is None else [images]
        for size in samples:
            within = self._everything.sampled(RandomSample(size, (3, *self._seeds)))
            search(within, _Else.LARGER_SAMPLE)
        search(self._everything, _Else.LARGER_SAMPLE, _Else.ALL_COMPARED)
        made = {i: found for i, found in outcome.items() if isinstance(found, Weighed)}
        if len(made) < len(x):
            self._schedule.say_all(self._sigma)
        return made

    def _searched(self, x: F32, within: _Within) -> Iterator[_Outcome]:
        """What is made of queries (b, D) from their distances to some images."""
        store, metric = self._estimator.store, self._metric
        tiles = 1 if metric.side is None else tile_count(store.shape, metric.side)
        at_once = max(1, int(HELD // (4 * tiles * len(within))))
        weights = within.log_weights
        further = None if weights is None else (weights / -self._gain).astype(np.float32)
        for start in range(0, len(x), at_once):
            some = x[start : start + at_once]
            search: Search
            if isinstance(store, ImageStore):
                search = NeighborSearch(store, metric, some, within.rows, self._gain, further)
            else:
                assert isinstance(within, DescribedSupport)
                search = SearchInParts(store, metric, some, within, self._gain)
            yield from map_ordered(partial(self._drawn, some, search), range(len(some)))

    def _drawn(self, x: F32, search: Search, query: int) -> _Outcome:
        """From draws out of the images that were compared, a sample or all; or the nearest."""
        images, one_logit = len(self._everything), self._estimator.one_logit
        sample = search.images < images
        most, beyond = rule.MOST * images, _Else.EVERYTHING

        def ranked() -> _Outcome:
            return _Else.ALL_COMPARED if sample else self._ranked(x, search, query)

        if sample or one_logit:
            effective = search.summary(query).effective
            if one_logit and effective * rule.SHARED < 1:
                return ranked()
            if sample:
                # As many images as share its weight are all that a sample is worth.
                most, beyond = effective, _Else.LARGER_SAMPLE
        if most < rule.FIRST_DRAW:
            return beyond

        def draw(count: int, turn: int) -> Support:
            return search.drawn(query, count, (2, *self._seeds, turn))

        def weigh(supports: Sequence[Support]) -> list[Posterior]:
            return self._weighed(x, query, [self._under(support) for support in supports])

        compose = partial(self._estimator.composed, sigma=self._sigma)
        group_of = partial(groups, (4, *self._seeds))
        drawn = DrawnImages(draw, group_of, weigh, images / search.images, compose)
        count = rule.FIRST_DRAW
        while True:
            drawn.enlarge(count)
            square, directions = drawn.square()
            excess = square * rule.margin(directions) ** 2 / self._tol**2
            alone = drawn.largest_share() > rule.SHARED
            if one_logit and alone:
                # The index may mistake one image for another, and the draw would not tell.
                return ranked()
            if alone and self._narrow and self._metric.side is None:
                # Each output has its own, which the draw may lack and not tell.
                return beyond
            if excess <= 1:
                return Weighed(
                    drawn.mean(), math.sqrt(square), float(count), self._under(drawn.support())
                )
            if alone and self._narrow:
                return ranked()
            count = int(count * min(max(rule.AIM * excess, 1.5), rule.MOST_AT_ONCE))
            if count > most:
                return beyond

    def _ranked(self, x: F32, search: Search, query: int) -> _Outcome:
        """From the nearest images, of each tile or of the whole image."""
        side, store = self._metric.side, self._estimator.store
        tile = np.zeros(store.d, np.int64) if side is None else tile_of_each(store.shape, side)
        share = np.bincount(tile) / len(tile)

        def together(parts: Mapping[int, Support]) -> AnySupport:
            each = [self._under(parts.get(t, NO_IMAGES)) for t in range(len(share))]
            return each[0] if side is None else TiledSupport(side, each)

        def weigh(parts: Mapping[int, Support]) -> Posterior:
            return self._weighed(x, query, [together(parts)])[0]

        def settled(squares: F64) -> bool:
            still = bool(share @ squares * rule.MARGIN**2 <= self._tol**2)
            if side is not None or not still:
                return still
            # Of images that the index tells little of, the one that decides may be anywhere.
            assert isinstance(search, NeighborSearch)  # parts have no index
            expected = search.overlooked(query, int(near.counts[0]), -near.largest() / self._gain)
            return expected < rule.OVERLOOKED

        near = NearestImages(partial(search.rings, query), weigh, tile, search.images)
        while True:
            squares, images = near.squares(), float(share @ near.counts)
            if settled(squares):
                error = math.sqrt(share @ squares)
                return Weighed(near.mean(), error, images, together(near.supports()))
            more = [0] if side is None else near.short_of(squares, (self._tol / rule.MARGIN) ** 2)
            if images + share[more] @ near.counts[more] > rule.MOST_OF_TILES * search.images:
                return _Else.EVERYTHING
            near.enlarge(more)

    def _under(self, support: Support) -> Support:
        """The same with the images' own log weights."""
        return support if self._prior is None else self._prior.added_to(support)

    def _weighed(self, x: F32, query: int, supports: Sequence[AnySupport]) -> list[Posterior]:
        """The partial posterior of one query over each of some supports."""
        copies = np.repeat(x[query : query + 1], len(supports), axis=0)
        made = self._estimator.store.posterior(self._estimator, copies, self._sigma, supports)
        return [made.of([i]) for i in range(len(supports))]
