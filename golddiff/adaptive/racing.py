"""Which way to choose images is cheapest, of those whose errors are small enough.

Every way is given twice as many images again and again; the way whose next step is the cheapest
goes first. So no way is measured where it costs more than the winner.

Where tiles choose the nearest of very many images, a way may also be enough for some queries alone:
those whose mean hardly moves between an eighth of the images and all of these. What is still
missing moves it about as much again (of 1.28 million images at noise level 0.01 the logarithms of
both have a correlation of 0.8 to 0.9). Points that sampling passes are such queries, photographs
are not; those that move more are given more images, in the end all (`schedule.py`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.calibration import SAMPLED, Probe
from golddiff.adaptive.enough import Enough, NearlyAllWithin
from golddiff.adaptive.looking import Look, Looker, chosen
from golddiff.adaptive.places import mean_over_tiles, means_at
from golddiff.adaptive.plan import Kind, Plan, few_of
from golddiff.denoiser import Estimator
from golddiff.noise import bits
from golddiff.support import Support

SMALLEST = 32
REFINED = (1.2, 1.45, 1.75)  # times the last k that was too few
ROOM = 1.25  # times what sampling's points move by
ROOMIER = (1.45, 2, 3, 4, 6, 8, 12, 16)  # times the k that is enough
NEXT_TO_NOTHING = 1.1  # times its predicted seconds, which are no better known
LOOKS_KEPT = 2  # ways whose probes' distances to all images stay in memory

Mean = NDArray[np.float32]


@dataclass(frozen=True)
class Way:
    """A kind of support, what chooses its images, and its cost.

    Attributes:
        kind: the way to choose.
        looker: compares the images, as its tiles see them.
        each: predicted seconds of weighing one more image.
    """

    kind: Kind
    looker: Looker
    each: float

    def work(self, k: int, share: float = 1.0) -> float:
        """Predicted seconds of a query with a share of k images for each location."""
        return self.each * share * k + self.looker.work(self.kind.name, k)


@dataclass(frozen=True)
class Option:
    """A way that competes, made only where it can win: the tables of many tiles take time.

    Attributes:
        least: seconds that choosing takes at least, for one query.
        way: makes it.
    """

    least: float
    way: Callable[[], Way]


def cheapest(
    estimator: Estimator,
    options: Iterable[Option],
    sigma: float,
    given: list[Probe],
    enough: Enough,
    full: Plan,
    full_cost: float,
    checked: bool = False,
) -> Plan:
    """The plan of the least predicted time whose errors on the probes are small enough.

    Args:
        estimator: what weighs the images.
        options: ways to choose them.
        sigma: noise level.
        given: the probes.
        enough: whether their mean squared errors are small enough.
        full: the plan to fall back on.
        full_cost: its predicted seconds.
        checked: whether a way may be enough for some queries alone.
    """
    errors = _Errors(estimator, sigma, given, enough, full_cost if checked else None)
    best, least = full, full_cost
    waiting: list[tuple[float, int, Option | _Runner]] = [
        (option.least, number, option) for number, option in enumerate(options)
    ]
    heapq.heapify(waiting)
    while waiting:
        work, number, entry = heapq.heappop(waiting)
        if work >= least:
            break
        runner = _Runner(entry.way(), errors) if isinstance(entry, Option) else entry
        if runner is entry:
            plan = runner.step(least)
            if plan is not None:
                least = runner.way.work(plan.k, plan.average / plan.k)
                best = _roomier(plan, runner.way)
            elif runner.steady is not None and runner.steady[0] < least:
                least, best = runner.steady
        if not runner.done:
            heapq.heappush(waiting, (runner.next_work(), number, runner))
    return best


def _roomier(plan: Plan, way: Way) -> Plan:
    """The plan with more images where these take next to nothing.

    Where comparing takes nearly all the time. They help queries that no probe was like: of 49,000
    CIFAR-10 images at noise level 0.34 the nearest 32 left one photograph in 40 an RMSE of 0.53,
    the nearest 64 none. Not where k is the most: how many more would be weighed is not known.
    """
    if plan.weighed is not None:
        return plan
    most, images = NEXT_TO_NOTHING * way.work(plan.k), way.looker.images - 1
    sizes = [int(plan.k * part) for part in ROOMIER]
    larger = [k for k in sizes if k <= images and way.work(k) <= most]
    return replace(plan, k=max(larger, default=plan.k))


class _Runner:
    """One way on its course: k doubles until it is enough, then one in between is looked for."""

    def __init__(self, way: Way, errors: _Errors) -> None:
        self.way, self._errors = way, errors
        self._most = max(1, way.looker.images - 1)
        self._before, self._k = 0, min(SMALLEST, self._most)
        self._share = 1.0  # of k images that were weighed when k was last measured
        self.done = False
        self.steady: tuple[float, Plan] | None = None  # enough for some, and its predicted seconds

    def next_work(self) -> float:
        """Predicted seconds of the cheapest that is measured next."""
        k = int(self._before * REFINED[0]) if self._before else self._k
        return self.way.work(k, self._share)

    def step(self, least: float) -> Plan | None:
        """Measure the next k that costs less than ``least``; a plan where it is enough."""
        plan = self._plan(self._k, least)
        if plan is not None or self.way.work(self._k, self._share) >= least:
            self.done = True
            # What is enough with fewer images; where k is too dear, fewer may still do.
            for part in REFINED:
                fewer = int(self._before * part)
                if self._before < fewer < self._k:
                    found = self._plan(fewer, least)
                    if found is not None:
                        return found
            return plan
        self.done = self._k == self._most
        self._before, self._k = self._k, min(2 * self._k, self._most)
        return None

    def _plan(self, k: int, least: float) -> Plan | None:
        # More images are a share of k that only falls.
        if self.way.work(k, self._share) >= least:
            return None
        squares, weighed, is_enough = self._errors.of(self.way, k)
        self._share = weighed / k
        if not is_enough:
            self.steady = self._errors.steady(self.way, k, squares)
            return None
        at_most = weighed if weighed < k and self.way.kind.name != "drawn" else None
        return Plan(self.way.kind, k, float(np.sqrt(np.mean(squares))), at_most)


class _Errors:
    """The probes' mean squared errors with k images chosen in some way."""

    def __init__(
        self,
        estimator: Estimator,
        sigma: float,
        given: list[Probe],
        enough: Enough,
        full_cost: float | None,
    ) -> None:
        self._estimator, self._sigma, self._given, self._enough = estimator, sigma, given, enough
        self._full_cost = full_cost
        self._sampled = np.array([probe.kind == SAMPLED for probe in given])
        # By turns of each kind: a few tell soon where k is too small.
        turn = [sum(p.kind == probe.kind for p in given[:i]) for i, probe in enumerate(given)]
        self._order = sorted(range(len(given)), key=turn.__getitem__)
        self._looks: dict[Kind, list[_Chosen]] = {}

    def of(self, way: Way, k: int) -> tuple[NDArray[np.float64], float, bool]:
        """They, how many images a location weighed on average, and whether they are small enough.

        NaN for those that were not measured since others refuse already. Of drawn ones k, which is
        what they are on average.
        """
        looks = self._looks.pop(way.kind, None)
        if looks is None:
            while len(self._looks) >= LOOKS_KEPT:
                self._looks.pop(next(iter(self._looks)))
            looks = [
                _Chosen(self._estimator, way, self._sigma, i, probe)
                for i, probe in enumerate(self._given)
            ]
        self._looks[way.kind] = looks
        squares, weighed = np.full(len(looks), np.nan), []
        for i in self._order:
            mean, each = looks[i].mean(k)
            squares[i] = self._given[i].square(mean)
            weighed.append(each)
            if self._enough.refuses(squares):
                return squares, min(float(np.mean(weighed)), k), False
        return squares, min(float(np.mean(weighed)), k), self._enough(squares)

    def steady(self, way: Way, k: int, squares: NDArray[np.float64]) -> tuple[float, Plan] | None:
        """A plan for those queries whose mean hardly moves, and its predicted seconds.

        Of a point that sampling passes: with the share of these that moves more, counted as full
        scans. The limit is the largest at which those below are within the error, but no more than
        a quarter above what any such point moves by.
        """
        enough, sampled = self._enough, self._sampled
        by_tiles = way.kind.side is not None and way.kind.name == "nearest"
        if self._full_cost is None or not by_tiles or not isinstance(enough, NearlyAllWithin):
            return None
        looks, squares, moves = self._looks[way.kind], squares.copy(), np.zeros(len(squares))
        for i in sorted(self._order, key=lambda i: not sampled[i]):
            mean, few = looks[i].mean(k)[0], looks[i].mean_of_few(k)
            squares[i], moves[i] = self._given[i].square(mean), np.mean((mean - few) ** 2)
            if sampled[i] and 2 * np.count_nonzero(squares[sampled] > enough.tol**2) > sum(sampled):
                return None  # not even of half of these would it be enough
        for limit in np.unique(moves)[::-1]:
            kept = moves <= limit
            if kept[sampled].any() and enough(squares, kept):
                limit = min(float(limit), ROOM**2 * float(moves[sampled].max()))
                kept = moves <= limit
                missed = 1 - float(np.mean(kept[sampled]))
                work = way.work(k) + missed * self._full_cost
                error = float(np.sqrt(np.mean(squares[kept])))
                return work, Plan(way.kind, k, error, steady=math.sqrt(limit))
        return None


class _Chosen:
    """A probe's means at its place, over images chosen in one way."""

    def __init__(
        self, estimator: Estimator, way: Way, sigma: float, number: int, probe: Probe
    ) -> None:
        self._estimator, self._way, self._sigma, self._probe = estimator, way, sigma, probe
        self._stream = 1, number, bits(sigma)
        self._means: dict[int, tuple[Mean, float]] = {}
        if way.looker.together:
            _ = self._look

    @cached_property
    def _look(self) -> Look:
        # When first asked for: most ways are refused after a few probes.
        side, probe = self._way.kind.side, self._probe
        tiles = None if side is None else probe.place.tiles_of(side)
        return self._way.looker.look(probe.x, tiles, probe.row)

    def mean(self, k: int) -> tuple[Mean, float]:
        """With k images for each location, and how many it weighed."""
        if k not in self._means:
            name = self._way.kind.name
            supports = chosen(self._look, name, k, self._sigma, self._stream)
            weighed = float(np.mean([len(support.rows) for support in supports]))
            self._means[k] = self._over(supports), weighed
        return self._means[k]

    def mean_of_few(self, k: int) -> Mean:
        """With the nearest eighth of k images for each location."""
        return self._over(self._look.nearest(few_of(k), of=k))

    def _over(self, supports: list[Support]) -> Mean:
        side, place, x = self._way.kind.side, self._probe.place, self._probe.x
        if side is None:
            return means_at(self._estimator, x[None], self._sigma, [place], supports)[0]
        return mean_over_tiles(self._estimator, x, self._sigma, place, side, supports)
