"""Adaptive supports: each query's support grows until its estimated error is small enough."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from golddiff.noise import precision, seed_of_sigma
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Metric
from golddiff.store.training_set import TrainingSet
from golddiff.support import (
    AnySupport,
    LogWeights,
    Prior,
    RandomSample,
    RuleSupport,
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
from golddiff.supports.index.distances import IndexedBlocks, IndexedNumbers, TileBlocks
from golddiff.supports.index.drawing import groups
from golddiff.supports.index.image_index import Index, open_or_build
from golddiff.supports.index.search import NeighborSearch, Search, ShardedSearch
from golddiff.system.arguments import check_not_negative
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64
from golddiff.system.parallel import keep_newest, map_ordered

INDEXED_ABOVE = 100_000  # images; smaller stores are compared by all pixels
MAX_DISTANCE_BYTES = 1e8  # distances in memory at once
LEVELS_CACHED = 32
NO_IMAGES = Support(np.empty(0, np.int64))


@dataclass(eq=False)
class AdaptiveSchedule:
    """Weighs as few images as keep each query's estimated error within ``tol``.

    The error is the RMSE to the full scan. Each query starts with a small importance sample and
    estimates its error from that sample. It draws more images, or takes each tile's nearest images
    if a few images carry most of the weight, until the estimate is within ``tol`` or all images
    are weighed (:mod:`golddiff.supports.enlarging`). Queries are independent of each other. The
    estimate can miss a rare image that decides a few outputs among many near copies of another.

    Args:
        tol: RMSE to the full scan, in units of x0 in [-1, 1]; 0 is the full scan.
        index: search through the store's index instead of comparing all pixels; None: only for
            stores of more than 100,000 images. Without an index ``Optimal`` weighs all images,
            since comparing images costs it as much as weighing them.
        guarantee: prove the error bound instead of estimating it (``Optimal`` only). Images are
            added until the bound of :mod:`golddiff.supports.certificate` is at most ``tol``. If
            1% of the images do not suffice, as at high noise, all are weighed.

    Raises:
        ArgumentError: tol is not a finite number >= 0.
    """

    tol: float = 0.02
    _: KW_ONLY
    index: bool | None = None
    guarantee: bool = False

    def __post_init__(self) -> None:
        self.tol = check_not_negative("tol", self.tol)

    def fitted(self, estimator: Any) -> FittedSchedule:
        """The schedule for one estimator, as :class:`golddiff.GoldDiff` uses it.

        Raises:
            ArgumentError: ``index=True`` or ``guarantee=True`` with a sharded store.
        """
        single = isinstance(estimator.store, ImageStore)
        if not single and (self.index or self.guarantee):
            name = "index" if self.index else "guarantee"
            raise ArgumentError(
                f"{name}: got True over a store in shards; that works on a single store "
                "(golddiff.ImageStore)"
            )
        schedule_class = getattr(estimator, "fitted_schedule", FittedSchedule)
        return schedule_class(estimator, self)


@dataclass(frozen=True)
class QueryResult:
    """The result of one query."""

    mean: F64  # (D,) posterior mean over the support
    error: float  # estimated or proved RMSE to the full scan; 0 for all images
    support: AnySupport  # the images weighed


class FittedSchedule:
    """An :class:`AdaptiveSchedule` for one estimator."""

    def __init__(self, estimator: Any, settings: AdaptiveSchedule) -> None:
        self.estimator, self.settings = estimator, settings
        self._comparisons: dict[float, tuple[Metric, bool]] = {}
        large = estimator.store.n > INDEXED_ABOVE and isinstance(estimator.store, ImageStore)
        self.indexed = large if settings.index is None else settings.index

    def __repr__(self) -> str:
        return repr(self.settings)

    @cached_property
    def index(self) -> Index:
        """The index of the store; built if it does not exist."""
        return open_or_build(self.estimator.store)

    def results(self, x: F32, sigma: float, prior: Prior, seed: int) -> list[QueryResult]:
        """The result of each query (b, D), independent of the other queries."""
        results = self._of_subsets(x, sigma, prior, seed)
        left = [i for i, result in enumerate(results) if result is None]
        if left:
            everything = self.estimator.store.everything(prior)
            for i, mean in zip(left, self.estimator.denoise(x[left], sigma, prior), strict=True):
                results[i] = QueryResult(mean.astype(np.float64), 0.0, everything)
        return [result for result in results if result is not None]

    def _of_subsets(
        self, x: F32, sigma: float, prior: Prior, seed: int
    ) -> list[QueryResult | None]:
        """The result of each query (b, D) that a subset answers; None: all images are needed."""
        if self.settings.guarantee:
            return [self._certified(query, sigma, prior) for query in x]
        if self.uses_subsets(prior):
            return _LevelSearch(self, sigma, prior, seed).results(x)
        return [None] * len(x)

    def supports(
        self, store: TrainingSet, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The support that was weighed for each query (b, D)."""
        everything = store.everything(label)
        results = self._of_subsets(x, sigma, label, seed)
        return [result.support if result else everything for result in results]

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(images compared, maximum number of images kept), out of n."""
        return n, n

    def uses_subsets(self, prior: Prior) -> bool:
        """Whether queries may be answered from a subset of the images."""
        joint = self.estimator.joint
        if joint and not self.indexed:
            return False  # ranking all images costs as much as weighing them
        if isinstance(prior, LogWeights) and (
            joint or not isinstance(self.estimator.store, ImageStore)
        ):
            return False  # the index and sharded stores do not support log weights
        large = self.estimator.store.count_of(prior) > rule.MIN_IMAGES
        return large and self.settings.tol > 0 and self.estimator.merges

    def _certified(self, query: F32, sigma: float, prior: Prior) -> QueryResult | None:
        """The result of a query (D,) with a proved error; None: all images are needed."""
        assert not isinstance(prior, LogWeights)  # given() refuses guaranteed denoisers
        root = math.sqrt(self.estimator.store.d)
        most = self.settings.tol * root
        enough = rule.MAX_SHARE_PROVED * self.estimator.store.count_of(prior)
        proof = certify(self.index, query, sigma, label=prior, most=most, enough=enough)
        if proof.bound > most:
            return None
        return QueryResult(proof.mean, proof.bound / root, Support(proof.rows))

    def comparison(self, sigma: float) -> tuple[Metric, bool]:
        """The metric that ranks images for each tile, and whether masks are narrow; cached.

        The metric compares the store's pixels, or the numbers of the index.
        """
        found = self._comparisons.get(sigma)
        if found is None:
            estimator = self.estimator
            width = float(estimator.relevance(sigma).mean())
            sides = estimator.tile_sides
            # The index stores 8x8 blocks. Smaller tiles would gain little from it, at four times
            # the memory and time.
            sides = (SIDE,) if self.indexed and SIDE in sides else sides
            side = rule.side_of(sides, width)
            relevance = estimator.relevance(sigma, side)
            metric: Metric
            if not self.indexed:
                metric = TileBlocks.of(estimator.store.shape, relevance, side)
            elif estimator.joint:
                metric = IndexedNumbers(self.index)
            else:
                metric = IndexedBlocks.of(self.index, relevance, side)
            found = self._comparisons[sigma] = metric, width < rule.WIDE_MASKS
            keep_newest(self._comparisons, LEVELS_CACHED)
        return found


class _LevelSearch:
    """Answers queries of one noise level and prior, from ever larger samples of the images."""

    def __init__(self, schedule: FittedSchedule, sigma: float, prior: Prior, seed: int) -> None:
        self._estimator, self._tol, self._sigma = schedule.estimator, schedule.settings.tol, sigma
        self._metric, self._narrow = schedule.comparison(sigma)
        self._gain = precision(sigma)
        self._everything = self._estimator.store.everything(prior)
        self._prior = prior if isinstance(prior, LogWeights) else None
        self._seeds = (seed, seed_of_sigma(sigma), stream_of(prior))

    def results(self, x: F32) -> list[QueryResult | None]:
        """The result of each query (b, D); None: all images are needed."""
        images, results = len(self._everything), list[QueryResult | None]([None] * len(x))
        samples = [] if self._prior else rule.samples_of(images, self._estimator.joint)
        rules = (RandomSample(size, (3, *self._seeds)) for size in samples)
        for within in (*map(self._everything.sampled, rules), self._everything):
            left = [i for i, result in enumerate(results) if result is None]
            for i, result in zip(left, self._outcomes(x[left], within), strict=True):
                results[i] = result
        return results

    def _outcomes(self, x: F32, within: Support | RuleSupport) -> Iterator[QueryResult | None]:
        """The result of each query (b, D) over the candidates ``within``; None: too few."""
        store, metric = self._estimator.store, self._metric
        tiles = tile_count(store.shape, metric.side)
        at_once = max(1, int(MAX_DISTANCE_BYTES // (4 * tiles * len(within))))
        weights = within.log_weights
        offsets = None if weights is None else (weights / -self._gain).astype(np.float32)
        for start in range(0, len(x), at_once):
            batch = x[start : start + at_once]
            search: Search
            if isinstance(store, ImageStore):
                search = NeighborSearch(store, metric, batch, within.rows, self._gain, offsets)
            else:
                search = ShardedSearch(store, metric, batch, within, self._gain)
            yield from map_ordered(partial(self._from_draws, batch, search), range(len(batch)))

    def _from_draws(self, x: F32, search: Search, query: int) -> QueryResult | None:
        """Answer a query from draws; from its nearest images if a few have most of the weight."""
        images, joint = len(self._everything), self._estimator.joint
        most = rule.MAX_SHARE_DRAWN * images
        if search.images < images:
            most = search.summary(query).effective  # more draws add no information
        elif joint and search.summary(query).effective * rule.DECISIVE_SHARE < 1:
            return self._from_nearest(x, search, query)
        if most < rule.FIRST_DRAW:
            return None

        def draw(count: int, turn: int) -> Support:
            return search.drawn(query, count, (2, *self._seeds, turn))

        def weigh(supports: Sequence[Support]) -> Posterior:
            return self._posterior(x, query, [self._with_prior(support) for support in supports])

        compose = partial(self._estimator.composed, sigma=self._sigma)
        group_of = partial(groups, (4, *self._seeds))
        drawn = DrawnImages(draw, group_of, weigh, images / search.images, compose)
        count = rule.FIRST_DRAW
        while True:
            drawn.enlarge(count)
            square, directions = drawn.square()
            excess = square * rule.margin(directions) ** 2 / self._tol**2
            decisive = drawn.largest_share() > rule.DECISIVE_SHARE
            if decisive and (joint or self._narrow):
                # Draws cannot detect that they lack a decisive image: the index may rank it too
                # low, or it decides a few outputs alone.
                # Of many images of low prior, none moves the mean enough to be seen in a ring.
                return self._from_nearest(x, search, query) if self._prior is None else None
            if excess <= 1:
                support = self._with_prior(drawn.support())
                if joint and isinstance(search, NeighborSearch) and search.images == images:
                    # An image so near that it has a decisive share of all the weight
                    nearest = -(drawn.log_total() + math.log(rule.DECISIVE_SHARE)) / self._gain
                    if search.overlooked(query, support.rows, nearest) >= rule.MAX_OVERLOOKED:
                        return self._from_nearest(x, search, query)
                return QueryResult(drawn.mean(), math.sqrt(square), support)
            count = int(count * min(max(rule.DRAW_OVERSHOOT * excess, 1.5), rule.MAX_DRAW_GROWTH))
            if count > most:
                return None

    def _from_nearest(self, x: F32, search: Search, query: int) -> QueryResult | None:
        """Answer a query from the nearest images of each tile, or of the whole image."""
        side, store = self._metric.side, self._estimator.store
        if search.images < len(self._everything) or (side is None and not self._estimator.joint):
            return None  # a sample may lack the nearest; without tiles all images are weighed
        tile = np.zeros(store.d, np.int64) if side is None else tile_of_each(store.shape, side)
        share = np.bincount(tile) / len(tile)

        def combined(parts: Mapping[int, Support]) -> AnySupport:
            tiles = [parts.get(t, NO_IMAGES) for t in range(len(share))]
            return tiles[0] if side is None else TiledSupport(side, tiles)

        def weigh(parts: Mapping[int, Support]) -> Posterior:
            return self._posterior(x, query, [combined(parts)])

        def converged(squares: F64) -> bool:
            within_tol = bool(share @ squares * rule.NEAREST_MARGIN**2 <= self._tol**2)
            if side is not None or not within_tol:
                return within_tol
            # If the index describes the images poorly, the nearest one may have any rank.
            assert isinstance(search, NeighborSearch)  # sharded stores have no index
            rows, nearest = near.supports()[0].rows, -near.largest() / self._gain
            return search.overlooked(query, rows, nearest) < rule.MAX_OVERLOOKED

        near = NearestImages(partial(search.rings, query), weigh, tile, search.images)
        while True:
            squares = near.squares()
            if converged(squares):
                error = math.sqrt(share @ squares)
                return QueryResult(near.mean(), error, combined(near.supports()))
            target = (self._tol / rule.NEAREST_MARGIN) ** 2
            more = near.tiles_to_enlarge(squares, target)
            images = share @ near.counts + share[more] @ near.counts[more]
            if images > rule.MAX_SHARE_OF_TILES * search.images:
                return None
            near.enlarge(more)

    def _with_prior(self, support: Support) -> Support:
        """The support with the log weights of the prior added."""
        if self._prior is None:
            return support
        return Support(support.rows, support.log_importance() + self._prior.values[support.rows])

    def _posterior(self, x: F32, query: int, supports: Sequence[AnySupport]) -> Posterior:
        """The partial posterior of one query, with one row for each support."""
        estimator, copies = self._estimator, np.repeat(x[query : query + 1], len(supports), axis=0)
        return estimator.store.posterior(estimator, copies, self._sigma, supports)
