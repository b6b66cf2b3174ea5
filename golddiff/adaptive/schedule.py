"""Supports of the size that an error needs, instead of a fixed share of the data set."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.coordinates import Coordinates, pooled, principal
from golddiff.adaptive.drawing import drawn
from golddiff.adaptive.memory import recall, remember
from golddiff.adaptive.plan import FULL, Kind, Plan
from golddiff.adaptive.ranking import Ranking, nearest
from golddiff.errors import ArgumentError
from golddiff.noise import bits
from golddiff.store import ImageStore
from golddiff.support import AnySupport, Support, TiledSupport

if TYPE_CHECKING:
    from golddiff.adaptive.calibration import Allowed, Probe, Way
    from golddiff.denoisers.base import Estimator
    from golddiff.denoisers.golddiff import Schedule

LEVELS_A_DECADE = 20
MARGIN = 0.9  # the way that measures cheapest is in part the luckiest
FEWEST = 256  # images; below that the full scan costs little and measuring tells little
RANKINGS_KEPT = 32
ROUGH = 32  # coordinates for drawing by the whole image's weight: a rough one does no harm

# In the unit of an estimator's cost, for a tile and an image: drawing by weight (two exponentials),
# finding the nearest, and each coordinate of the product that ranks.
COST_OF_CHOOSING = {"drawn": 150.0, "nearest": 16.0}
COST_OF_A_COORDINATE = 0.3

log = logging.getLogger("golddiff")


class AdaptiveSchedule:
    """For each noise level the cheapest support whose expected error is at most ``tol``.

    The error is the RMSE to the full scan. Images drawn at random by weight, which are unbiased,
    compete with the nearest ones, chosen once for the whole image or by each tile of it: at high
    noise thousands of images weigh about the same, and the nearest are a biased sample of them; at
    low noise a pixel's few decisive images are not the whole image's nearest ones. Which way is
    cheapest, and how many images it takes, is measured once for each noise level, on
    training images that are left out and noised and on points that sampling passes, and kept with
    the store.

    The measuring takes full scans: on 50,000 images of 3 x 32 x 32 some seconds for each noise
    level that is new to the store, later calls none. Noise levels are rounded to 20 a decade for
    it.

    Args:
        tol: expected RMSE to the full scan, in units of x0; 0 is the full scan. Or one or more
            schedules: at each noise level no more than the smallest of their errors, measured on
            the same images.

    Raises:
        ArgumentError: tol negative or not finite, or neither a number nor schedules.
    """

    def __init__(self, tol: float | Schedule | Sequence[Schedule] = 0.02) -> None:
        self.tol = _checked(tol)

    def fitted(self, estimator: Estimator) -> FittedSchedule:
        """The schedule for one estimator; :class:`golddiff.GoldDiff` asks for it."""
        if estimator.store.shards is not None:
            from golddiff.cluster.adaptive import ShardedSchedule

            return ShardedSchedule(estimator, self)
        return FittedSchedule(estimator, self)

    def __repr__(self) -> str:
        return f"AdaptiveSchedule(tol={self.tol!r})"


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
        self._rankings: dict[tuple[float, int | None, int | None, bool], Ranking] = {}
        self._plans: dict[tuple[float, int | None], Plan] = {}

    def plan(self, sigma: float, label: int | None = None) -> Plan:
        """How the images of a noise level (and class) are chosen; measured when first asked for."""
        store = self.estimator.store
        if self.tol == 0:
            return Plan(FULL, store.count_of(label), 0.0)
        level = lattice(sigma)
        if (level, label) not in self._plans:
            key = f"{self.estimator.signature()} tol={self.tol!r} sigma={level!r} label={label}"
            plan = recall(store, key)
            if plan is None:
                plan = self._measured(level, label)
                log.info("sigma %.3g: %s", level, plan)
                remember(store, key, plan)
            self._plans[level, label] = plan
        return self._plans[level, label]

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(images ranked, images kept for each query or tile) at a noise level."""
        return n, min(n, self.plan(sigma).k)

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D); a query's does not depend on the others."""
        plan = self.plan(sigma, label)
        rows = store.rows_of(label)
        if plan.kind == FULL or plan.k >= len(rows):
            return [Support(rows)] * len(x)
        ranking = self.ranking(sigma, label, plan.kind)
        # One draw decides for all queries of a noise level and class, whatever their batch.
        uniform = _generator(seed, sigma, label).random(len(rows), np.float32)
        supports: list[AnySupport] = []
        for query in x:
            distances = ranking.distances(query)
            tiles = (
                drawn(distances, rows, plan.k, sigma, uniform)
                if plan.kind.name == "drawn"
                else nearest(distances, rows, plan.k)
            )
            side = plan.kind.side
            supports.append(tiles[0] if side is None else TiledSupport(side, tiles))
        return supports

    def _measured(self, sigma: float, label: int | None) -> Plan:
        from golddiff.adaptive.calibration import cheapest, full_scan, probes

        rows = self.estimator.store.rows_of(label)
        full = full_scan(len(rows))
        if len(rows) < FEWEST:
            return full
        given = probes(self.estimator, rows, sigma, label)
        log.info("sigma %.3g: measuring how many images an RMSE of %s takes", sigma, self.tol)
        cost = self.estimator.cost(sigma) * len(rows)
        allowed = self._allowed(sigma, label, given)
        ways = self._ways(sigma, label)
        plan = cheapest(self.estimator, ways, sigma, given, allowed, full, cost)
        # Those of the ways that lost are not asked for again, and a tile's term is N numbers.
        self._rankings.clear()
        return plan

    def _allowed(self, sigma: float, label: int | None, given: list[Probe]) -> Allowed:
        """Mean squared errors allowed for each probe: one number, or what other schedules have."""
        from golddiff.adaptive.calibration import errors_of

        if isinstance(self.tol, float):
            return [np.full(len(given), (MARGIN * self.tol) ** 2)]
        return [
            MARGIN**2 * errors_of(schedule, self.estimator, sigma, label, given)
            for schedule in self.tol
        ]

    def _ways(self, sigma: float, label: int | None) -> Iterator[Way]:
        """The ways that compete, coarse tiles first: what they cost bounds the finer ones."""
        from golddiff.adaptive.calibration import Way

        for side in (None, *sorted(self.estimator.tile_sides(), reverse=True)):
            each = self.estimator.cost(sigma, side)
            for name in ("drawn", "nearest"):
                kind = Kind(name, side)
                ranking = self.ranking(sigma, label, kind)
                compared = COST_OF_CHOOSING[name] + COST_OF_A_COORDINATE * ranking.coordinates
                yield Way(kind, ranking, each, ranking.tiles * len(ranking.rows) * compared)

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

    def ranking(self, sigma: float, label: int | None, kind: Kind) -> Ranking:
        """What ranks the images of a class (or all) at a noise level, for a kind of support."""
        coordinates = self.coordinates
        rough = kind == Kind("drawn")
        key = (sigma, label, kind.side, rough)
        if key not in self._rankings:
            if len(self._rankings) >= RANKINGS_KEPT:
                self._rankings.pop(next(iter(self._rankings)))
            store = self.estimator.store
            relevance = self.estimator.relevance(sigma, kind.side)
            self._rankings[key] = Ranking(
                store,
                self._rough if rough and self._rough else coordinates,
                relevance,
                store.rows_of(label),
            )
        return self._rankings[key]


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


def lattice(sigma: float) -> float:
    """The nearest of 20 noise levels a decade, at which supports are measured."""
    return float(10 ** (round(LEVELS_A_DECADE * math.log10(sigma)) / LEVELS_A_DECADE))


def _generator(seed: int, sigma: float, label: int | None) -> np.random.Generator:
    """A stream of its own for each noise level and class."""
    return np.random.default_rng([2, seed, bits(sigma), 0 if label is None else label + 1])
