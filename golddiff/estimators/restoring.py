"""Pictures restored without training: each output's softmax weighs a measurement, too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff import sampling
from golddiff.attribution import Attribution
from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.measurement import Measurement, measurements
from golddiff.estimators.pca import PCA, Masks
from golddiff.estimators.shared import UnitMasks
from golddiff.kernels.contributions import Contribution, outputs_at, values_at
from golddiff.kernels.pca_logits import masked_logits
from golddiff.noise import Labels, Sigma, precision
from golddiff.posterior import Float, Posterior
from golddiff.sampling import Samples
from golddiff.store.exact import ImagesPosterior
from golddiff.store.likelihood import check_noise, log_likelihood
from golddiff.support import AnySupport, LogWeights, Prior, Support
from golddiff.supports.paper import PaperSchedule
from golddiff.system.arguments import check_count, check_dense
from golddiff.system.errors import ArgumentError

SOFTNESS = 0.3
GOLDEN = 1500  # images a golden subset of plain PCA has
PARTS = 512  # images whose logits are in memory
UNIT_SIGMA = math.sqrt(0.5)  # whose precision is 1

_EXPECTED = "expected PCA with weighting 'ss', or GoldDiff over it with a PaperSchedule"


def restore(
    denoiser: Denoiser,
    y: torch.Tensor,
    operator: Any,
    noise: float,
    *,
    softness: float = SOFTNESS,
    n: int = 1,
    steps: int = 10,
    seed: int = 0,
    labels: Labels = None,
    attribution: bool = False,
    on_step: sampling.OnStep = lambda images: None,
) -> Samples:
    """Pictures x0 of which y = A x0 + noise * eps is known, made of training images.

    Output q weighs image i by its masks M (input n, output q) and by the measured values c::

        l_q(i) = - sum_n M_nq (x_n - x_in)^2 / (2 sigma^2) - sum_c W_cq (y_c - (A x_i)_c)^2 / (2 s^2)
        W_cq = sum_n |A_cn| M_nq / sum_n |A_cn|,   s^2 = noise^2 + softness^2

    After each step the estimate is put back onto the measurement: x0 + a A^+ (y - A x0), with the
    least a that brings A x0 within ``noise`` of y. The golden subset is the nearest under both.

    Args:
        denoiser: PCA, or GoldDiff over it, such as :func:`golddiff.recommended`.
        y: (B, *measured) measurements of B images.
        operator: A, linear and of local footprint: a callable on (b, *shape) in [-1, 1], or a
            deepinv physics.
        noise: standard deviation of y's noise, >= 0, in its units.
        softness: how far training images may be from y, as a standard deviation, beside the noise:
            no image fits exactly. More mixes more images.
        n: restorations of each measurement.
        steps: denoising steps.
        seed: of the starting noise.
        labels: a class that all are made of, as in a denoiser's call.
        attribution: also find out which training images each restoration is made of.
        on_step: called after each step with the number of images in it.

    Returns:
        Samples whose images (B * n, *shape) are the n of the first measurement, then of the next.
        ``novelty`` says whether they are new or copies.

    Raises:
        ArgumentError: another method, a store of points, an operator that is not linear or whose
            output is not of y's shape, noise or softness out of range, both 0; as ``sample``.
    """
    base, schedule = _parts_of(denoiser)
    check_noise(noise)
    if isinstance(softness, bool) or not isinstance(softness, int | float) or not (
        0 <= softness < math.inf
    ):
        raise ArgumentError(f"softness: got {softness!r}, expected a finite number of 0 or more")
    soft = math.hypot(noise, softness)
    if soft == 0:
        raise ArgumentError("noise: got 0, and softness 0; expected one of them above 0")
    if not isinstance(y, torch.Tensor) or y.ndim < 2 or not len(y) or not y.is_floating_point():
        got = tuple(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__
        raise ArgumentError(f"y: got {got}, expected a float tensor (B, *measured)")
    check_dense("y", y)
    if not torch.isfinite(y).all():
        raise ArgumentError("y: got NaN or infinity, expected finite values")
    check_count("n", n)
    store = base.store
    sampling.check_settings(n * len(y), steps, "ddim", seed)
    sampling.check_room(n * len(y), store.shape, 0)
    found = measurements(operator, y, store.shape, float(noise), soft)
    logs = log_likelihood(store, operator, y, soft)
    starts = sampling.initial_noise(n * len(y), store.shape, seed).split(n)
    runs = [
        sampling.sample(
            Restoring(base, schedule, measured, LogWeights.of(of_images), denoiser),
            n, steps, labels=labels, trajectory=False, on_step=on_step, attribution=attribution,
            x_init=start,
        )
        for measured, of_images, start in zip(found, logs.numpy(), starts, strict=True)
    ]  # fmt: skip
    if len(runs) == 1:
        return replace(runs[0], about={**runs[0].about, "seed": f"seed {seed}"})
    return replace(
        runs[0],
        images=torch.cat([run.images for run in runs]),
        x_init=torch.cat([run.x_init for run in runs]),
        attribution=[one for run in runs for one in run.attribution or []] or None,
        subsets=None,
        about={**runs[0].about, "seed": f"seed {seed}"},
    )


def _parts_of(denoiser: Any) -> tuple[PCA, PaperSchedule]:
    """The masks' estimator and what chooses its golden subsets.

    Raises:
        ArgumentError: another method; a store of points.
    """
    base = denoiser.base if isinstance(denoiser, GoldDiff) else denoiser
    schedule = denoiser.schedule if isinstance(denoiser, GoldDiff) else None
    if not isinstance(base, PCA) or base.weighting != "ss":
        raise ArgumentError(f"denoiser: got {denoiser!r:.60}, {_EXPECTED}")
    if schedule is None:
        k = min(GOLDEN, base.store.n)
        schedule = PaperSchedule(k, k)
    if not isinstance(schedule, PaperSchedule):
        raise ArgumentError(f"denoiser: its schedule is {schedule!r:.60}, {_EXPECTED}")
    if len(base.store.shape) != 3:
        raise ArgumentError("denoiser: its store holds points, expected images (C, H, W)")
    return base, schedule


class Restoring(Estimator):
    """PCA whose softmaxes weigh one measurement besides, and whose means are put back onto it.

    Args:
        base: has the masks.
        schedule: chooses golden subsets.
        measured: the measurement.
        likelihood: of it under all images.
        given: the denoiser as it was given, whose log weights count too.
    """

    merges = False  # its mean is put back

    def __init__(
        self,
        base: PCA,
        schedule: PaperSchedule,
        measured: Measurement,
        likelihood: LogWeights,
        given: Denoiser,
    ) -> None:
        super().__init__(base.store, base.memory_limit)
        self.base, self.schedule, self.measured = base, schedule, measured
        self.priors = given.priors
        self.seed = getattr(given, "seed", 0)
        self._likelihood = likelihood
        self._both: dict[Prior, LogWeights] = {None: likelihood}

    def make_ready(self, sigma: float) -> Masks | UnitMasks:
        """The masks of a noise level, those of ``base``."""
        made: Masks | UnitMasks = self.base.ready(sigma)
        return made

    def denoise(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> NDArray[np.float32]:
        """The means (b, D) over golden subsets, put back."""
        supports = [support for _, support in self.estimator_supports(x, sigma, prior)]
        return self._put_back(self.denoise_over(x, sigma, supports)).astype(np.float32)

    def estimator_supports(
        self, x: NDArray[np.float32], sigma: float, prior: Prior
    ) -> list[tuple[Estimator, AnySupport]]:
        """The nearest images under both terms, with no weights but those that were given."""
        if prior not in self._both:
            if isinstance(prior, LogWeights):
                both = LogWeights.of(self._likelihood.values + prior.values)
            else:
                assert prior is not None
                both = self._likelihood.of_class(prior, self.store.rows_of(prior))
            self._both[prior] = both
        near = self.schedule.supports(self.store, x, sigma, self._both[prior], self.seed)
        given = prior.values if isinstance(prior, LogWeights) else np.zeros(self.store.n)
        return [(self, Support(one.rows, given[one.rows])) for one in near]

    def weigh(self, x: NDArray[np.float32], sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over some images."""
        values = self.images.values(part.rows)
        penalties, prior = self.measured.penalties(values), part.log_importance()
        logits = np.stack([self._logits(values, penalties, one, sigma) for one in x])
        logits += prior
        highest = logits.max(axis=2)
        weights = np.exp(logits - highest[..., None])  # (b, L, k)
        by_channel = values.reshape(len(values), -1, logits.shape[1])
        weighted = np.einsum("blk,kcl->bcl", weights, by_channel).reshape(x.shape)
        return Posterior(highest, weights.sum(axis=2), weighted)

    def contributions(
        self,
        x: NDArray[np.float32],
        sigma: float,
        support: AnySupport,
        top: int = 1,
        pixel: int | None = None,
    ) -> Iterator[Contribution]:
        """The terms of one query (D,); see the base class."""
        assert isinstance(support, Support)
        for part in support.split(PARTS):
            values = self.images.values(part.rows)
            logits = self._logits(values, self.measured.penalties(values), x, sigma)
            logits += part.log_importance()
            if pixel is not None:
                own = [pixel] if self.base.share else outputs_at(self.images, pixel)
                logits = logits[own]
            yield Contribution(part.rows, logits, values_at(self.images, part.rows, pixel))

    def attribute(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None, top: int = 16, tile: int = 4
    ) -> list[Attribution]:
        """The sources of the means; their ``total`` is put back, as the output is."""
        found = super().attribute(x, sigma, labels, top, tile)
        return [replace(one, total=self._put_back(one.total[None])[0]) for one in found]

    def exact(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> ImagesPosterior:
        """Refused: what is put back is no posterior mean."""
        raise ArgumentError("posterior: a restoration has none; given() has, of log weights")

    def working_bytes(self, images: int) -> tuple[int, int]:
        """Of a part, and of one query: see the base class."""
        some = min(images, PARTS)
        return 48 * self.images.d * some, 24 * self.images.d * some

    def _logits(
        self,
        values: NDArray[np.float32],
        penalties: NDArray[np.float32],
        x: NDArray[np.float32],
        sigma: float,
    ) -> Float:
        """One query's logits (L, k): both terms are sums over the same masks, so one sum."""
        terms = np.square(values - x) * np.float32(precision(sigma)) + penalties
        masks: Masks | UnitMasks = self.ready(sigma)
        if isinstance(masks, UnitMasks):
            return -masks.at_pixels(terms @ masks.shares).T.astype(np.float64)
        return masked_logits(
            np.sqrt(terms), np.arange(len(terms)), np.zeros_like(x), UNIT_SIGMA, masks.tree, 1.0, 0.0
        )  # fmt: skip

    def _put_back(self, means: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        found = self.measured.put_back(means)
        return found.clip(-1, 1) if self.store.is_pixels else found
