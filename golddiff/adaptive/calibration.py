"""How many images an error takes, measured.

What is measured at a noise level is the RMSE between the estimator over a small support and over
all images, for a few queries: training images that are left out and noised, and points that
sampling passes. The first are harder at low noise, where a generated image lies nearer to the
training images than a photograph does; the second at medium noise, where it is a blur of many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.drawing import drawn
from golddiff.adaptive.plan import FULL, Curve, Kind, Plan
from golddiff.adaptive.ranking import Ranking
from golddiff.denoisers.base import Estimator
from golddiff.kernels.lowest import lowest
from golddiff.noise import bits
from golddiff.posterior import Posterior
from golddiff.schedules import PaperSchedule
from golddiff.support import Support, TiledSupport

if TYPE_CHECKING:
    from golddiff.denoisers.golddiff import Schedule

Allowed = Sequence[NDArray[np.float64]]

HIGHEST = 80.0
NINETEEN_IN_TWENTY = 1.645
SMALLEST = 32
GROWTH = 1.25


@dataclass(frozen=True)
class Probe:
    """A query that errors are measured on.

    Attributes:
        place: where among the rows is the image that it is, noised, which is then left out; None
            for a query that is no training image.
        x: (D,) the query.
        exact: (D,) its posterior mean over all the other rows.
    """

    place: int | None
    x: NDArray[np.float32]
    exact: NDArray[np.float32]


@dataclass(frozen=True)
class Way:
    """A kind of support, its ranking of the images, and its cost.

    Attributes:
        kind: the way to choose.
        ranking: of the images, as its tiles see them.
        each: work of weighing one more image.
        choosing: work of ranking and choosing.
    """

    kind: Kind
    ranking: Ranking
    each: float
    choosing: float


def cheapest(
    estimator: Estimator,
    ways: Iterable[Way],
    sigma: float,
    given: list[Probe],
    allowed: Allowed,
    full: Plan,
    full_cost: float,
) -> Plan:
    """The plan with the least work whose errors on the probes are within what is allowed.

    Args:
        estimator: what weighs the images.
        ways: to choose them; a way is given up once it costs more than the best so far.
        sigma: noise level.
        given: the probes.
        allowed: mean squared errors for each probe; all of these sets are kept to.
        full: the plan to fall back on.
        full_cost: its work.
    """
    best, least = full, full_cost
    for way in ways:
        affordable = int((least - way.choosing) // way.each)
        plan = curve(estimator, way, sigma, given, allowed, affordable).smallest()
        if plan is not None and way.each * plan.k + way.choosing < least:
            best, least = plan, way.each * plan.k + way.choosing
    return best


def probes(
    estimator: Estimator, rows: NDArray[np.int64], sigma: float, label: int | None
) -> list[Probe]:
    """Half of them noised images, half points that sampling passes; the same every time."""
    count = estimator.probes
    generator = np.random.default_rng([0, bits(sigma)])
    made = []
    for place in generator.permutation(len(rows))[: count // 2]:
        clean = estimator.store.values(rows[[place]])
        noise = generator.standard_normal(clean.shape, np.float32)
        x = clean + np.float32(sigma) * noise
        exact = estimator.denoise_over(x, sigma, Support(np.delete(rows, place)))
        made.append(Probe(int(place), x[0], exact[0]))
    noise = generator.standard_normal((count - count // 2, estimator.store.d), np.float32)
    passed = sampled(estimator, noise, sigma, label)
    exact = estimator.denoise_over(passed, sigma, Support(rows))
    return made + [Probe(None, x, mean) for x, mean in zip(passed, exact, strict=True)]


def sampled(
    estimator: Estimator, noise: NDArray[np.float32], sigma: float, label: int | None
) -> NDArray[np.float32]:
    """Where sampling from noise (b, D) comes by at a level, over the released code's subsets.

    Levels halve down to sigma from 80 or above; each step is DDIM's (Song et al. 2021).
    """
    schedule = PaperSchedule(variant="released")
    halvings = max(0, math.ceil(math.log2(HIGHEST / sigma)))
    x = noise * np.float32(sigma * 2**halvings)
    for k in range(halvings, 0, -1):
        level = sigma * 2**k
        supports = schedule.supports(estimator.store, x, level, label, 0)
        mean = estimator.denoise_each(x, level, supports)
        if estimator.store.is_pixels:
            mean = mean.clip(-1, 1)
        x = (x + mean) / 2
    return x


def errors_of(
    schedule: Schedule, estimator: Estimator, sigma: float, label: int | None, given: list[Probe]
) -> NDArray[np.float64]:
    """Each probe's mean squared error over another schedule's support, less the left-out image."""
    rows = estimator.store.rows_of(label)
    squares = []
    for probe in given:
        (support,) = schedule.supports(estimator.store, probe.x[None], sigma, label, 0)
        assert isinstance(support, Support)
        kept = support.rows != (-1 if probe.place is None else rows[probe.place])
        weights = None if support.log_weights is None else support.log_weights[kept]
        mean = estimator.denoise_over(probe.x[None], sigma, Support(support.rows[kept], weights))
        squares.append(np.mean((mean[0] - probe.exact) ** 2))
    return np.array(squares, np.float64)


def curve(
    estimator: Estimator,
    way: Way,
    sigma: float,
    given: list[Probe],
    allowed: Allowed,
    affordable: int,
) -> Curve:
    """RMSE over the probes for growing k, up to the first that is within what is allowed.

    Args:
        estimator: what weighs the images.
        way: how they are chosen.
        sigma: noise level.
        given: the probes.
        allowed: mean squared errors for each probe.
        affordable: the k to stop above.
    """
    # A ranking of images that lie elsewhere weighs them there.
    grow = getattr(way.ranking, "grow", _nearest if way.kind.name == "nearest" else _drawn)
    growing = [grow(estimator, way, sigma, i, probe) for i, probe in enumerate(given)]
    sizes, errors, enough = [], [], []
    for k in _sizes(len(way.ranking.rows) - 1):
        means = [mean_of(k) for mean_of in growing]
        squares = np.array([np.mean((m - p.exact) ** 2) for m, p in zip(means, given, strict=True)])
        sizes.append(k)
        errors.append(float(np.sqrt(np.mean(squares))))
        enough.append(all(_below(squares, most) for most in allowed))
        if enough[-1] or k > affordable:
            break
    return Curve(way.kind, sizes, errors, enough)


def _below(squares: NDArray[np.float64], most: NDArray[np.float64]) -> bool:
    """Whether squares are below their bounds on average, as sure as 19 times in 20.

    Pair by pair: probes that are hard for one schedule are hard for another.
    """
    excess = squares - most
    spread = float(np.std(excess, ddof=1)) if len(excess) > 1 else 0.0
    return float(np.mean(excess)) + NINETEEN_IN_TWENTY * spread / math.sqrt(len(excess)) <= 0


def _nearest(
    estimator: Estimator, way: Way, sigma: float, number: int, probe: Probe
) -> Callable[[int], NDArray[np.floating]]:
    """The mean over the nearest k, for k that grow from call to call: each image weighed once."""
    distances = way.ranking.distances(probe.x)
    if probe.place is not None:
        distances[:, probe.place] = np.inf
    before = [np.empty(0, np.int64)] * len(distances)
    posterior: Posterior | None = None

    def mean_of(k: int) -> NDArray[np.floating]:
        nonlocal before, posterior
        now = [lowest(tile, k) for tile in distances]
        parts = [
            Support(way.ranking.rows[np.setdiff1d(places, old, assume_unique=True)])
            for places, old in zip(now, before, strict=True)
        ]
        part = _posterior(estimator, probe.x, sigma, parts, way.kind.side)
        posterior = part if posterior is None else posterior.merge(part)
        before = now
        mean: NDArray[np.floating] = posterior.mean()[0]
        return mean

    return mean_of


def _drawn(
    estimator: Estimator, way: Way, sigma: float, number: int, probe: Probe
) -> Callable[[int], NDArray[np.floating]]:
    """The mean over about k images drawn by weight."""
    left_out = [] if probe.place is None else [probe.place]
    distances = np.delete(way.ranking.distances(probe.x), left_out, axis=1)
    others = np.delete(way.ranking.rows, left_out)
    generator = np.random.default_rng([1, number, bits(sigma)])
    uniform = generator.random(len(others), np.float32)

    def mean_of(k: int) -> NDArray[np.floating]:
        parts = drawn(distances, others, k, sigma, uniform)
        posterior = _posterior(estimator, probe.x, sigma, parts, way.kind.side)
        mean: NDArray[np.floating] = posterior.mean()[0]
        return mean

    return mean_of


def _posterior(
    estimator: Estimator,
    x: NDArray[np.float32],
    sigma: float,
    parts: list[Support],
    side: int | None,
) -> Posterior:
    if side is None:
        return estimator.posterior(x[None], sigma, parts[0])
    return estimator.tiled_posterior(x[None], sigma, TiledSupport(side, parts))


def _sizes(n: int) -> Iterator[int]:
    """32, 40, 50 ... below n, and n."""
    size = float(SMALLEST)
    while size < n:
        yield int(size)
        size *= GROWTH
    yield n


def full_scan(n: int) -> Plan:
    """The plan of weighing all n images."""
    return Plan(FULL, n, 0.0)
