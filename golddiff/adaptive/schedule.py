"""Supports of the size that an error needs, instead of a fixed share of the data set."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.blocks import BlockRanking, comparing_blocks
from golddiff.adaptive.comparing import ByCoordinates, Comparing
from golddiff.adaptive.coordinates import Coordinates, pooled, principal
from golddiff.adaptive.looking import (
    IndexLooker,
    LinearLooker,
    Look,
    Looker,
    Stream,
    chosen,
    few_and_rest,
)
from golddiff.adaptive.memory import recall, remember
from golddiff.adaptive.plan import DRAWN, FULL, Kind, Plan, as_compared, few_of
from golddiff.adaptive.ranking import Ranking
from golddiff.adaptive.sweeping import ROUGH_ABOVE, SweepLooker
from golddiff.adaptive.tilesweep import TileSweepLooker
from golddiff.errors import ArgumentError
from golddiff.index.files import Index, open_or_build
from golddiff.kernels.mask_tiles import Side
from golddiff.noise import bits, ddim_sigmas
from golddiff.store.images import ImageStore
from golddiff.support import AnySupport, TiledSupport
from golddiff.supports.certificate import Certified, certify
from golddiff.system.parallel import in_order
from golddiff.system.units import duration

if TYPE_CHECKING:
    from golddiff.denoiser import Estimator
    from golddiff.golden import Schedule

LEVELS_A_DECADE = 20
USUAL_STEPS = 10
LOOKERS_KEPT = 32
MOST_TRIED = 16  # a larger share of all images takes about as long as all
STARTED_WITH = 32  # images, of those that a proof may take
INDEXED_FROM = 100_000  # images; fewer are all compared
QUERIES_AT_ONCE = 8  # whose distances to all images are in memory
ROUGH = 32  # coordinates for drawing by the whole image's weight: a rough one does no harm

log = logging.getLogger("golddiff")

T = TypeVar("T")


class AdaptiveSchedule:
    """For each noise level the cheapest support whose expected error is at most ``tol``.

    The error is the RMSE to the full scan. Images drawn at random by weight, which are unbiased,
    compete with the nearest ones, chosen once for the whole image or by each tile of it: at high
    noise thousands of images weigh about the same, and the nearest are a biased sample of them; at
    low noise a pixel's few decisive images are not the whole image's nearest ones. Which way is
    cheapest, and how many images it takes, is measured once for each noise level, on
    training images that are left out and noised and on points that sampling passes, and kept with
    the store.

    Through an index a way may be enough for some queries alone: those whose mean hardly moves
    between an eighth of its images and all of them. Others are given twice as many, again and
    again, and the whole store where a sixteenth of it is not enough.

    The measuring takes full scans: on 50,000 images of 3 x 32 x 32 some seconds for each noise
    level that is new to the store, later calls none. Noise levels are rounded to 20 a decade for
    it.

    Args:
        tol: expected RMSE to the full scan, in units of x0; 0 is the full scan. Or one or more
            schedules: at each noise level no more than the smallest of their errors, measured on
            the same images.

        index: whether images are looked for through the store's index instead of comparing all as
            finely; None: where there are more than 100,000 of them.

        guarantee: prove it instead of expecting it (``Optimal`` alone): each query's images are
            added until the bound (:mod:`golddiff.supports.certificate`) is at most ``tol``. At
            high noise that takes nearly all of them.

    Raises:
        ArgumentError: tol negative or not finite, or neither a number nor schedules, or not a
            number with ``guarantee``. Where it is fitted to a store in shards: ``index=True`` or
            ``guarantee=True``, which take a single store.
    """

    def __init__(
        self,
        tol: float | Schedule | Sequence[Schedule] = 0.02,
        *,
        index: bool | None = None,
        guarantee: bool = False,
    ) -> None:
        self.tol = _checked(tol)
        if guarantee and not isinstance(self.tol, float):
            raise ArgumentError(f"tol: got {tol!r}, expected a number with guarantee=True")
        self.index = index
        self.guarantee = guarantee

    def fitted(self, estimator: Estimator) -> FittedSchedule:
        """The schedule for one estimator; :class:`golddiff.GoldDiff` asks for it."""
        if not isinstance(estimator.store, ImageStore):
            raise ArgumentError(
                "schedule: AdaptiveSchedule works on a single store (golddiff.ImageStore) for now; "
                "over a store in shards give PaperSchedule"
            )
        return FittedSchedule(estimator, self)

    def __repr__(self) -> str:
        return f"AdaptiveSchedule(tol={self.tol!r})"


@dataclass(frozen=True)
class Choice:
    """How one query's images are chosen.

    Attributes:
        look: what its locations see.
        kind: the way.
        sigma: noise level.
        stream: decides what is drawn.
    """

    look: Look
    kind: Kind
    sigma: float
    stream: Stream

    def of(self, k: int) -> AnySupport:
        """Its k images, or each tile's."""
        tiles = chosen(self.look, self.kind.name, k, self.sigma, self.stream)
        return tiles[0] if self.kind.side is None else TiledSupport(self.kind.side, tiles)

    def few_and_rest(self, few: int, k: int) -> tuple[TiledSupport, TiledSupport]:
        """Each tile's nearest few images, and the others of the nearest k."""
        assert self.kind.side is not None
        first, others = few_and_rest(self.look, few, k)
        return TiledSupport(self.kind.side, first), TiledSupport(self.kind.side, others)


class FittedSchedule:
    """An :class:`AdaptiveSchedule` over one estimator.

    Args:
        estimator: what weighs the images.
        settings: the schedule's.
    """

    def __init__(self, estimator: Estimator, settings: AdaptiveSchedule) -> None:
        self.estimator = estimator
        self.settings = settings
        self.tol = settings.tol
        self._coordinates: Coordinates | None = None
        self._rough: Coordinates | None = None
        self._index: Index | None = None
        self._lookers: dict[tuple[float, int | None, Kind, bool], Looker] = {}
        self._plans: dict[tuple[float, int | None], Plan] = {}

    def plan(self, sigma: float, label: int | None = None) -> Plan:
        """How the images of a noise level (and class) are chosen; measured when first asked for."""
        store = self.estimator.store
        if self.tol == 0:
            return Plan(FULL, store.count_of(label), 0.0)
        level = lattice(sigma)
        if (level, label) not in self._plans:
            key = self._key(level, label)
            plan = recall(store, key)
            if plan is None:
                plan = self._measured(level, label)
                log.info("sigma %.3g: %s", level, self._told(plan, level, label))
                self.forget(level, plan.kind.side)
                remember(store, key, plan)
            self._plans[level, label] = plan
        return self._plans[level, label]

    def describe(self, sigma: float, label: int | None = None) -> str:
        """The plan of a noise level (and class), and the seconds that it is predicted to take."""
        return self._told(self.plan(sigma, label), sigma, label)

    def predicted(self, sigma: float, label: int | None = None) -> float:
        """Seconds of one query, all threads at it, by :mod:`golddiff.machine`."""
        return self._predicted(self.plan(sigma, label), sigma, label)

    def _predicted(self, plan: Plan, sigma: float, label: int | None) -> float:
        weighing = plan.average * self.estimator.cost(sigma, plan.kind.side)
        if plan.kind == FULL:
            return weighing
        return weighing + self.looker(sigma, label, plan.kind).work(plan.kind.name, plan.k)

    def _told(self, plan: Plan, sigma: float, label: int | None) -> str:
        return f"{plan}, predicted {duration(self._predicted(plan, sigma, label))} a query"

    def is_known(self, sigma: float, label: int | None = None) -> bool:
        """Whether the plan of a noise level and class need not be measured any more."""
        if self.tol == 0:
            return True
        place = lattice(sigma), label
        return place in self._plans or recall(self.estimator.store, self._key(*place)) is not None

    def _key(self, level: float, label: int | None) -> str:
        through = " blocks" if self.indexed(self.estimator.store.count_of(label)) else ""
        wanted = f"tol={self.tol!r} sigma={level!r} label={label}{through}"
        return f"{self.estimator.signature()} {wanted}"

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(images ranked, images kept for each query or tile) at a noise level."""
        return n, min(n, self.plan(sigma).k)

    def guaranteed(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> list[Certified]:
        """Posterior means of queries (b, D) whose error is proved to be at most ``tol``."""
        assert isinstance(self.tol, float)
        store = self.estimator.store
        most = self.tol * math.sqrt(store.d)
        looker = IndexLooker(
            self.index,
            None,
            self.estimator.relevance(sigma),
            None if label is None else store.rows_of(label),
        )
        count = min(STARTED_WITH, looker.images)
        starts = [looker.look(query).nearest(count)[0].rows for query in x]
        return [
            certify(self.index, query, sigma, rows, label, most)
            for query, rows in zip(x, starts, strict=True)
        ]

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D); a query's does not depend on the others."""
        plan, images = self.plan(sigma, label), store.count_of(label)
        if plan.kind == FULL or plan.k >= images:
            return [store.everything(label)] * len(x)

        def choose(query: NDArray[np.float32], choice: Choice) -> AnySupport:
            if plan.steady is None:
                return choice.of(plan.k)
            found = self._settled(query, sigma, plan, choice, images)
            return store.everything(label) if found is None else choice.of(found[0])

        return self._each(x, sigma, label, seed, choose)

    def means(
        self, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> NDArray[np.float32]:
        """Posterior means (b, D) of queries (b, D), each over its support.

        Where these are checked, what the check weighs is not weighed again.
        """
        plan = self.plan(sigma, label)
        if plan.steady is None:
            supports = self.supports(self.estimator.store, x, sigma, label, seed)
            return self.estimator.denoise_each(x, sigma, supports)
        images = self.estimator.store.count_of(label)

        def weigh(query: NDArray[np.float32], choice: Choice) -> NDArray[np.float64] | None:
            found = self._settled(query, sigma, plan, choice, images)
            return None if found is None else found[1]

        found = self._each(x, sigma, label, seed, weigh)
        out = np.empty_like(x)
        for i, mean in enumerate(found):
            if mean is not None:
                out[i] = mean
        moved = [i for i, mean in enumerate(found) if mean is None]
        if moved:
            out[moved] = self.estimator.denoise(x[moved], sigma, label)
        return out

    def _settled(
        self,
        query: NDArray[np.float32],
        sigma: float,
        plan: Plan,
        choice: Choice,
        images: int,
    ) -> tuple[int, NDArray[np.float64]] | None:
        """How many images are enough for a query, and the mean (D,) over them; None: all of them.

        As many as the plan says, or twice that, again and again: until the mean is the one over an
        eighth of them.
        """
        assert plan.steady is not None
        weigh, k = partial(self.estimator.tiled_posterior, query[None], sigma), plan.k
        while True:
            few, rest = choice.few_and_rest(few_of(k), k)
            some = weigh(few)
            mean = some.merge(weigh(rest)).mean()[0]
            if float(np.mean((mean - some.mean()[0]) ** 2)) <= plan.steady**2:
                return k, mean
            k *= 2
            if k > images // MOST_TRIED:
                return None

    def _each(
        self,
        x: NDArray[np.float32],
        sigma: float,
        label: int | None,
        seed: int,
        function: Callable[[NDArray[np.float32], Choice], T],
    ) -> list[T]:
        """What a function makes of each query (D,) and of how its images are chosen."""
        kind, stream = self.plan(sigma, label).kind, stream_of(seed, sigma, label)
        looker = self.looker(sigma, label, kind)

        def one(pair: tuple[NDArray[np.float32], Look]) -> T:
            query, look = pair
            return function(query, Choice(look, kind, sigma, stream))

        made: list[T] = []
        for start in range(0, len(x), QUERIES_AT_ONCE):
            some = x[start : start + QUERIES_AT_ONCE]
            pairs = zip(some, looker.looks(some), strict=True)
            # Tiles go side by side, and where there is one, queries do.
            made += in_order(one, pairs) if looker.tiles == 1 else map(one, pairs)
        return made

    def _measured(self, sigma: float, label: int | None) -> Plan:
        from golddiff.adaptive.measuring import measured  # takes estimators, which take schedules

        return measured(self, sigma, label)

    def forget(self, sigma: float, side: Side | None) -> None:
        """Let go of what measuring made, but for the tiles of the side that won.

        What lost is not asked for again, and a tile's term is N numbers.
        """
        if not self.estimator.alike:
            self._lookers.clear()
        self.estimator.forget_tiles(sigma, side)

    @property
    def coordinates(self) -> Coordinates:
        """What ranking compares; made once."""
        if self._coordinates is None:
            if self.estimator.tile_sides():
                self._coordinates = principal(self.estimator.store)
                self._rough = self._coordinates.first(ROUGH)
            else:  # pooled values are not in the order of their variance
                self._coordinates = self._rough = pooled(self.estimator.store)
        return self._coordinates

    def looker(self, sigma: float, label: int | None, kind: Kind) -> Looker:
        """What compares the images of a class (or all) at a noise level, for a kind of support."""
        # Where the noise level changes nothing of what is compared, one serves all levels.
        level = 0.0 if self.estimator.alike else sigma
        key = (level, label, as_compared(kind), sigma < ROUGH_ABOVE)
        if key not in self._lookers:
            if len(self._lookers) >= LOOKERS_KEPT:
                self._lookers.pop(next(iter(self._lookers)))
            self._lookers[key] = self._looker(sigma, label, kind)
        return self._lookers[key]

    def _looker(self, sigma: float, label: int | None, kind: Kind) -> Looker:
        store = self.estimator.store
        rows = store.rows_of(label)
        relevance = self.estimator.relevance(sigma, kind.side)
        if self.indexed(len(rows)):
            of_class = None if label is None else rows
            if kind.by_blocks:
                return TileSweepLooker(self.index.screen, relevance, of_class)
            sweep = self.index.sweep if kind.side is None else None
            if sweep is not None:
                fine = kind == DRAWN and sigma < ROUGH_ABOVE
                numbers = sweep.numbers if fine else sweep.first
                return SweepLooker(self.index, sweep, relevance, of_class, numbers)
            return IndexLooker(self.index, kind.side, relevance, of_class)
        if kind.by_blocks:
            return LinearLooker(BlockRanking(store, relevance, rows))
        return LinearLooker(Ranking(store, self._coordinates_of(kind), relevance, rows))

    def comparing(self, kind: Kind) -> Comparing:
        """What comparing all images takes, for a kind of support."""
        if kind.by_blocks:
            return comparing_blocks(self.estimator.store.shape)
        return ByCoordinates(len(self._coordinates_of(kind).basis))

    def _coordinates_of(self, kind: Kind) -> Coordinates:
        coordinates = self.coordinates
        return self._rough if kind == DRAWN and self._rough is not None else coordinates

    def indexed(self, images: int) -> bool:
        """Whether so many images are looked for through the index."""
        wanted = self.settings.index
        return images > INDEXED_FROM if wanted is None else wanted

    @property
    def index(self) -> Index:
        """The store's index, built where there is none."""
        if self._index is None:
            self._index = open_or_build(self.estimator.store)
        return self._index


def _checked(tol: object) -> float | tuple[Schedule, ...]:
    if isinstance(tol, int | float) and not isinstance(tol, bool):
        if not 0 <= tol < math.inf:
            raise ArgumentError(
                f"tol: got {tol!r}, expected an RMSE of 0 (which is the full scan) or more"
            )
        return float(tol)
    schedules = tuple(tol) if isinstance(tol, Sequence) else (tol,)
    if not schedules or not all(callable(getattr(s, "supports", None)) for s in schedules):
        raise ArgumentError(f"tol: got {tol!r}, expected an RMSE, or schedules to do as well as")
    return schedules


def stream_of(seed: int, sigma: float, label: int | None) -> tuple[int, ...]:
    """Seeds of the draw that decides for all queries of a noise level and class, in any batch."""
    return 2, seed, bits(sigma), 0 if label is None else label + 1


@cache
def lattice(sigma: float) -> float:
    """The level that stands for a noise level, at which supports are measured: 20 a decade.

    Where the usual run of ten DDIM steps has a level among those it stands for, it is that one:
    that run needs its masks anyway.
    """
    place = _place(sigma)
    usual = [level for level in ddim_sigmas(USUAL_STEPS) if _place(level) == place]
    return usual[0] if usual else float(10 ** (place / LEVELS_A_DECADE))


def _place(sigma: float) -> int:
    return round(LEVELS_A_DECADE * math.log10(sigma))
