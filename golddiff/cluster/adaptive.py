""":class:`golddiff.AdaptiveSchedule` over shards: the same plans, measured through the shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from golddiff import describe
from golddiff.adaptive.calibration import (
    Allowed,
    Probe,
    Way,
    cheapest,
    full_scan,
    sampled,
)
from golddiff.adaptive.coordinates import COMPONENTS
from golddiff.adaptive.plan import FULL, Kind, Plan
from golddiff.adaptive.ranking import Ranking
from golddiff.adaptive.schedule import FEWEST, MARGIN, ROUGH, FittedSchedule
from golddiff.cluster.looking import ShardedLook
from golddiff.cluster.over_shards import OverShards
from golddiff.cluster.recipes import ByRank, Candidates
from golddiff.cluster.store import ShardedStore
from golddiff.cluster.streams import SHUFFLED
from golddiff.denoisers.base import Estimator
from golddiff.noise import bits
from golddiff.proxy import quarter_shape
from golddiff.store import ImageStore
from golddiff.support import AnySupport, Support


class ShardedSchedule(FittedSchedule):
    """An adaptive schedule over one estimator whose store lies in shards."""

    @property
    def store(self) -> ShardedStore:
        """The estimator's store."""
        return cast(ShardedStore, self.estimator.store)

    @property
    def shards(self) -> OverShards:
        """Its shards."""
        assert self.store.shards is not None
        return self.store.shards

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D); a query's does not depend on the others."""
        plan = self.plan(sigma, label)
        if plan.kind == FULL or plan.k >= self.store.count_of(label):
            return [self.store.everything(label)] * len(x)
        look = ShardedLook.at(self.shards, x, self.measure(sigma, label, plan.kind))
        if plan.kind.name == "nearest":
            return look.nearest(plan.k)
        # One draw decides for all queries of a noise level and class, whatever their batch.
        stream = (2, seed, bits(sigma), 0 if label is None else label + 1)
        return look.drawn(plan.k, [stream] * len(x))

    def measure(self, sigma: float, label: int | None, kind: Kind) -> ByRank:
        """How the shards rank their images at a noise level, for a kind of support."""
        shape, side = self.store.shape, kind.side
        tiles = 1 if side is None else -(-shape[1] // side) * -(-shape[2] // side)
        return ByRank(describe.describe(self.estimator), sigma, label, kind, tiles)

    def ranking(self, sigma: float, label: int | None, kind: Kind) -> Ranking:
        """What stands for a ranking of all shards' images while plans are measured."""
        measure = self.measure(sigma, label, kind)
        stands = ShardedRanking(self.shards, measure, self._compared(kind))
        return cast(Ranking, stands)

    def _compared(self, kind: Kind) -> int:
        """How many coordinates are compared, as :attr:`coordinates` of a single store has."""
        if not self.estimator.tile_sides():
            return int(np.prod(quarter_shape(self.store.shape)))
        components = min(COMPONENTS, len(self.store.factor().eigenvalues))
        return min(ROUGH, components) if kind == Kind("drawn") else components

    def _measured(self, sigma: float, label: int | None) -> Plan:
        n = self.store.count_of(label)
        full = full_scan(n)
        if n < FEWEST:
            return full
        given = self._probes(sigma, label)
        cost = self.estimator.cost(sigma) * n
        allowed = self._allowed(sigma, label, given)
        return cheapest(self.estimator, self._ways(sigma, label), sigma, given, allowed, full, cost)

    def _probes(self, sigma: float, label: int | None) -> list[Probe]:
        """As :func:`golddiff.adaptive.calibration.probes`; places are rows of the store here."""
        estimator, store, n = self.estimator, self.store, self.store.count_of(label)
        count = estimator.probes
        generator = np.random.default_rng([0, bits(sigma)])
        if n <= SHUFFLED:
            places = generator.permutation(n)[: count // 2]
        else:
            places = generator.choice(n, count // 2, replace=False, shuffle=False)
        made = []
        for place in places.tolist():
            row = store.row_at(label, place)
            clean = store.values(np.array([row]))
            noise = generator.standard_normal(clean.shape, np.float32)
            x = clean + np.float32(sigma) * noise
            others = self.shards.everything(Candidates(label, None, (row,)))
            made.append(Probe(row, x[0], estimator.denoise_over(x, sigma, others)[0]))
        noise = generator.standard_normal((count - count // 2, store.d), np.float32)
        passed = sampled(estimator, noise, sigma, label)
        exact = estimator.denoise_over(passed, sigma, store.everything(label))
        return made + [Probe(None, x, mean) for x, mean in zip(passed, exact, strict=True)]

    def _allowed(self, sigma: float, label: int | None, given: list[Probe]) -> Allowed:
        """As the base class; a probe's place is a row."""
        if isinstance(self.tol, float):
            return [np.full(len(given), (MARGIN * self.tol) ** 2)]
        allowed = []
        for schedule in self.tol:
            squares = []
            for probe in given:
                (support,) = schedule.supports(self.store, probe.x[None], sigma, label, 0)
                kept = support.rows != (-1 if probe.place is None else probe.place)
                weights = support.log_weights if isinstance(support, Support) else None
                rest = Support(support.rows[kept], None if weights is None else weights[kept])
                mean = self.estimator.denoise_over(probe.x[None], sigma, rest)
                squares.append(np.mean((mean[0] - probe.exact) ** 2))
            allowed.append(MARGIN**2 * np.array(squares, np.float64))
        return allowed


class ShardedRanking:
    """What :mod:`golddiff.adaptive.calibration` asks of a ranking, of images in shards.

    Attributes:
        rows: as many as there are images.
        tiles: how many rank them.
        coordinates: how many numbers are compared.
    """

    def __init__(self, shards: OverShards, measure: ByRank, coordinates: int) -> None:
        self._shards, self._measure = shards, measure
        self.rows = range(shards.store.count_of(measure.label))
        self.tiles, self.coordinates = measure.tiles, coordinates
        self._probes: list[Probe] = []
        self._numbers: list[int] = []
        self._look: ShardedLook | None = None
        self._means: tuple[int, NDArray[np.float32]] | None = None

    def grow(
        self, estimator: Estimator, way: Way, sigma: float, number: int, probe: Probe
    ) -> Callable[[int], NDArray[np.floating]]:
        """The mean over k images for k that grow from call to call.

        The first question with a k answers it for all probes, in one go through the shards.
        """
        place = len(self._probes)
        self._probes.append(probe)
        self._numbers.append(number)

        def mean_of(k: int) -> NDArray[np.floating]:
            if self._means is None or self._means[0] != k:
                self._means = k, self._all(estimator, way.kind, sigma, k)
            mean: NDArray[np.floating] = self._means[1][place]
            return mean

        return mean_of

    def _all(self, estimator: Estimator, kind: Kind, sigma: float, k: int) -> NDArray[np.float32]:
        x = np.stack([probe.x for probe in self._probes])
        if self._look is None:
            left_out = tuple(probe.place for probe in self._probes)
            self._look = ShardedLook.at(self._shards, x, self._measure, left_out)
        if kind.name == "nearest":
            chosen = self._look.nearest(k)
        else:
            chosen = self._look.drawn(k, [(1, i, bits(sigma)) for i in self._numbers])
        return estimator.denoise_each(x, sigma, chosen)
