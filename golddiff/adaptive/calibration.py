"""How many images an error takes, measured.

What is measured at a noise level is the RMSE between the estimator over a small support and over
all images, for a few queries: training images that are left out and noised, and points that
sampling passes. The first are harder at low noise, where a generated image lies nearer to the
training images than a photograph does; the second at medium noise, where it is a blur of many.

Where an error is promised by a number, noised collages come on top: what an estimator that weighs
pixel by pixel makes at low noise, and what networks are compared at, is no training image, and
which of them is nearest to it coordinates tell badly. An estimator with one logit an image is given
them at every level, others where few images decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.looking import Looker, chosen
from golddiff.adaptive.places import Place, means_at
from golddiff.adaptive.plan import FULL, Plan
from golddiff.denoiser import Estimator
from golddiff.noise import bits, ddim_sigmas
from golddiff.support import Support, listed, whole

if TYPE_CHECKING:
    from golddiff.golden import Schedule

STEPS = 10  # of the run that sampling's points are from
LEAST_STEP = 1.1  # times the level that they are wanted at, its levels count as above
SAMPLED_FROM = 2048  # images a step, for points that sampling passes
DRAWN_ABOVE = 2.0  # noise level from which these are drawn by weight, not the nearest
FEW_DECIDE = 1.5  # noise level below which few images decide, and some queries' errors are large
PARTS, CELLS = 4, 4  # images of a collage; of a side's parts
NOISED, SAMPLED, COLLAGE = range(3)
MORE = 3  # times as many probes there
REFERENCE = 32_768  # images of each of two draws that stand for a full scan of many times as many
FEWEST_SCANNED = 8 * REFERENCE  # images
SURE = 1 / 8  # of the error that is asked for: how far the draws' mean may be from the full scan


@dataclass(frozen=True)
class Probe:
    """A query that errors are measured on.

    Attributes:
        kind: ``NOISED``, ``SAMPLED`` (a point of a run) or ``COLLAGE``.
        row: of the store, the image that it is, noised, which is then left out; None for a query
            that is no training image.
        x: (D,) the query.
        place: the outputs that errors are measured on.
        exact: the posterior mean over all other images at these outputs.
    """

    kind: int
    row: int | None
    x: NDArray[np.float32]
    place: Place
    exact: NDArray[np.float32]

    def square(self, mean: NDArray[np.float32]) -> float:
        """Mean squared difference to the full scan."""
        return float(np.mean((mean - self.exact) ** 2))


def probes(
    estimator: Estimator,
    looker: Looker,
    sigma: float,
    label: int | None,
    collages: bool = False,
    tol: float | None = None,
) -> list[Probe]:
    """Half of them noised images, half points that sampling passes; the same every time.

    Args:
        estimator: what weighs the images.
        looker: of the whole image, by which sampling chooses images.
        sigma: noise level.
        label: the class; None for all images.
        collages: whether half as many collages come on top.
        tol: the error that will be asked for, where it is known: what a full scan's mean may be
            replaced by is judged by it.
    """
    count = estimator.probes * (MORE if sigma < FEW_DECIDE else 1)
    generator = np.random.default_rng([0, bits(sigma)])
    n = looker.images
    places = sorted(generator.choice(n, min(count // 2, n), replace=False).tolist())
    left_out: list[int | None] = [int(estimator.store.rows_of(label)[place]) for place in places]
    clean = estimator.store.values(np.array(left_out, np.int64))
    noised = clean + np.float32(sigma) * generator.standard_normal(clean.shape, np.float32)
    noise = generator.standard_normal((count - len(places), estimator.store.d), np.float32)
    x = np.concatenate([noised, _sampled(estimator, looker, noise, sigma)])
    kinds = [NOISED] * len(noised) + [SAMPLED] * len(noise)
    few_decide = sigma < FEW_DECIDE or not estimator.tile_sides()
    if collages and few_decide and len(estimator.store.shape) == 3:
        made = _collages(estimator, looker, label, generator, count // 2)
        disturbed = np.float32(sigma) * generator.standard_normal(made.shape, np.float32)
        x = np.concatenate([x, made + disturbed])
        kinds += [COLLAGE] * len(made)
    left_out += [None] * (len(x) - len(left_out))
    where = [Place.drawn(estimator, generator) for _ in x]
    exact = None
    if tol is not None and sigma > DRAWN_ABOVE and n >= FEWEST_SCANNED:
        exact = _by_draws(estimator, looker, x, sigma, where, left_out, SURE * tol)
    if exact is None and where[0].root is None:
        exact = list(estimator.means_without(x, sigma, label, left_out))
    elif exact is None:
        supports = [
            listed(estimator.store.everything(label, () if row is None else (row,)))
            for row in left_out
        ]
        exact = means_at(estimator, x, sigma, where, supports)
    return [Probe(*probe) for probe in zip(kinds, left_out, x, where, exact, strict=True)]


def _by_draws(
    estimator: Estimator,
    looker: Looker,
    x: NDArray[np.float32],
    sigma: float,
    where: Sequence[Place],
    left_out: Sequence[int | None],
    most: float,
) -> list[NDArray[np.float32]] | None:
    """The mean of two large draws' means, instead of full scans; None where they are not alike.

    Both are unbiased but for the ratio, and independent: half their root mean squared difference is
    the error of their mean, which must be at most ``most`` for every probe. What is left of it is
    added to the errors that are measured against it, so that these come out too large, if at all.
    """
    means = []
    for half in range(2):
        stream = 4, half, bits(sigma)
        supports = [
            looker.look(query, None, row).drawn(REFERENCE, sigma, (*stream, number))[0]
            for number, (query, row) in enumerate(zip(x, left_out, strict=True))
        ]
        means.append(means_at(estimator, x, sigma, where, supports))
    pairs = list(zip(*means, strict=True))
    if any(np.mean((one - other) ** 2) > (2 * most) ** 2 for one, other in pairs):
        return None
    return [(one + other) / 2 for one, other in pairs]


def _collages(
    estimator: Estimator,
    looker: Looker,
    label: int | None,
    generator: np.random.Generator,
    count: int,
) -> NDArray[np.float32]:
    """Images (count, D) put together from parts of four training images each."""
    store = estimator.store
    _, height, width = store.shape
    rows = generator.integers(looker.images, size=(count, PARTS))
    made = np.empty((count, store.d), np.float32)
    grid = [np.arange(side) * CELLS // side for side in (height, width)]
    for i, places in enumerate(rows):
        images = store.values(store.rows_of(label)[places])
        whose = generator.integers(PARTS, size=(CELLS, CELLS))[np.ix_(*grid)]
        whole = images.reshape(PARTS, *store.shape)
        made[i] = np.take_along_axis(whole, np.broadcast_to(whose, store.shape)[None], 0).ravel()
    return made


def _sampled(
    estimator: Estimator, looker: Looker, noise: NDArray[np.float32], sigma: float
) -> NDArray[np.float32]:
    """Where a run of ten DDIM steps (Song et al. 2021) comes by at a level, over a few images.

    Its steps are large at low noise: what it sees there is no sharp image yet, and several training
    images are about as likely.
    """
    k = min(SAMPLED_FROM, max(1, looker.images // 4))
    above = [level for level in ddim_sigmas(STEPS) if level > sigma * LEAST_STEP]
    x = noise * np.float32(max(above, default=sigma))
    for level, following in itertools.pairwise([*above, sigma]):
        name, stream = "drawn" if level > DRAWN_ABOVE else "nearest", (3, bits(level))
        looks = [looker.look(query) for query in x]
        supports = [chosen(look, name, k, level, stream)[0] for look in looks]
        mean = estimator.denoise_each(x, level, supports)
        if estimator.store.is_pixels:
            mean = mean.clip(-1, 1)
        x = mean + np.float32(following / level) * (x - mean)
    return x


def errors_of(
    schedule: Schedule, estimator: Estimator, sigma: float, label: int | None, given: list[Probe]
) -> NDArray[np.float64]:
    """Each probe's mean squared error over another schedule's support, less the left-out image."""
    supports = []
    for probe in given:
        (support,) = schedule.supports(estimator.store, probe.x[None], sigma, label, 0)
        kept = whole(support)
        if probe.row is not None:
            others = kept.rows != probe.row
            kept = Support(kept.rows[others], kept.log_importance()[others])
        supports.append(kept)
    x, places = np.stack([p.x for p in given]), [p.place for p in given]
    means = means_at(estimator, x, sigma, places, supports)
    return np.array([p.square(mean) for p, mean in zip(given, means, strict=True)])


def kinds_of(given: Sequence[Probe]) -> list[NDArray[np.int64]]:
    """Noised images, points of a run, collages; a kind has two or more.

    Each kind has to be within the error by itself: what is easy for one can be hard for the other.
    """
    of = np.array([probe.kind for probe in given])
    kinds = [np.flatnonzero(of == kind) for kind in range(3)]
    return [kind for kind in kinds if len(kind) > 1] or [np.arange(len(given))]


def full_scan(n: int) -> Plan:
    """The plan of weighing all n images."""
    return Plan(FULL, n, 0.0)
