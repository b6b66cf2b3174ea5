"""Pictures restored without training: each output's softmax weighs a measurement, too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.attribution import Attribution
from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.measurement import EXACT, Measurement
from golddiff.estimators.pca import PCA, Masks
from golddiff.estimators.shared import UnitMasks, advised_share, is_grey
from golddiff.kernels.contributions import Contribution, outputs_at, values_at
from golddiff.kernels.pca_logits import masked_logits
from golddiff.kernels.stored import Stored
from golddiff.noise import Labels, Sigma, precision
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.support import AnySupport, LogWeights, Prior, Support
from golddiff.supports.paper import PaperSchedule
from golddiff.system.numbers import F32, F64

CLIPPED = 8  # times that an estimate outside [-1, 1] is clipped and put back, in turn
AGAIN = 8  # iterations of each; of a blur only the first time takes more
UNIT_SIGMA = math.sqrt(0.5)  # whose precision is 1
# Thresholds of masks, of colour pictures and grey ones (docs/results/restoring.md).
COLOUR, GREY = 0.07, 0.01
COLOUR_OF_FEW, SCARCE = 0.2, 1000  # that of colour pictures, of fewer than so many


def for_restoring(store: ImageStore) -> PCA:
    """PCA with the masks that restore best: narrow ones, since what is known holds it together.

    Nothing is measured. :func:`golddiff.restore` takes it for a store, and adds golden subsets.
    """
    colour = COLOUR_OF_FEW if store.n < SCARCE else COLOUR
    threshold = GREY if is_grey(store.shape) else colour
    return PCA(store, threshold, share=advised_share(store.shape))


class Restoring(Estimator):
    """PCA whose softmaxes weigh one measurement besides, and whose means are put back onto it.

    Args:
        base: has the masks.
        schedule: chooses golden subsets.
        measured: the measurement.
        likelihood: of it under all images.
        given: the denoiser as it was given, whose log weights count too.
        softness: standard deviation that images are from x beside its noise.
    """

    merges = False  # its mean is put back

    def __init__(
        self,
        base: PCA,
        schedule: PaperSchedule,
        measured: Measurement,
        likelihood: LogWeights,
        given: Denoiser,
        softness: float,
    ) -> None:
        super().__init__(base.store, base.memory_limit)
        self.base, self.schedule, self.measured = base, schedule, measured
        self.softness = softness
        self.priors, self.batch = given.priors, given.batch
        self.seed = getattr(given, "seed", 0)
        self._likelihood = likelihood
        self.joining, self.sums = base.joining, base.sums

    def make_ready(self, sigma: float) -> tuple[Masks | UnitMasks, F32 | None]:
        """The masks of a noise level, those of ``base``, and of units their W, (m, U)."""
        masks, shares = self.base.ready(sigma), self.measured.operator.shares
        return masks, shares.T @ masks.shares if isinstance(masks, UnitMasks) else None

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """The means (b, D) over golden subsets, put back."""
        supports = [support for _, support in self.estimator_supports(x, sigma, prior)]
        return self._put_back(self.denoise_over(x, sigma, supports)).astype(np.float32)

    def estimator_supports(
        self, x: F32, sigma: float, prior: Prior
    ) -> list[tuple[Estimator, AnySupport]]:
        """The nearest images under both terms, with no weights but those that were given."""
        both, given = self._likelihood, np.zeros(self.store.n)
        if isinstance(prior, LogWeights):
            both, given = LogWeights.of(both.values + prior.values), prior.values
        elif prior is not None:
            both = both.of_class(prior, self.store.rows_of(prior))
        soft = math.hypot(sigma, self.softness)
        near = self.schedule.supports(self.store, x, soft, both, self.seed)
        return [(self, Support(one.rows, given[one.rows])) for one in near]

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over some images."""
        terms = [next(self.contributions(one, sigma, part)) for one in x]
        logits, values = np.stack([one.logits for one in terms]), terms[0].values
        highest = logits.max(axis=2)
        weights = np.exp(logits - highest[..., None])  # (b, L, k)
        by_channel = values.reshape(len(values), -1, logits.shape[1])
        weighted = np.einsum("blk,kcl->bcl", weights, by_channel).reshape(len(x), -1)
        return Posterior(highest, weights.sum(axis=2), weighted)

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,); see the base class."""
        assert isinstance(support, Support)
        for part in support.split(self.part_size):
            logits = self._logits(self.images.values(part.rows), x, sigma)
            logits += part.log_importance()
            if pixel is not None:
                own = [pixel] if self.base.share else outputs_at(self.images, pixel)
                logits = logits[own]
            shown = values_at(self.images, part.rows, pixel)
            yield Contribution(part.rows, logits, self.base.summands(shown, pixel))

    def attribute(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None, top: int = 16, tile: int = 4
    ) -> list[Attribution]:
        """The sources of the means; their ``total`` is put back, as the output is."""
        found = super().attribute(x, sigma, labels, top, tile)
        return [replace(one, total=self._put_back(one.total[None])[0]) for one in found]

    def working_bytes(self, images: int) -> tuple[int, int]:
        """Of a part, and of one query: see the base class."""
        some = min(images, self.part_size)
        return 4 * (12 * self.images.d + self.sums) * some, 24 * self.images.d * some

    def _logits(self, values: F32, x: F32, sigma: float) -> F64:
        """One query's logits (L, k): both terms are sums over the same masks."""
        (masks, weights), penalties = self.ready(sigma), self.measured.penalties(values)
        gain = np.float32(precision(math.hypot(sigma, self.softness)))
        terms = np.square(values - x) * gain
        if isinstance(masks, UnitMasks):
            of_units = terms @ masks.shares + penalties @ weights
            return -masks.at_pixels(of_units).T.astype(np.float64)
        terms += (self.measured.operator.shares @ penalties.T).T
        rows, nothing = np.arange(len(terms)), np.zeros_like(x)
        return masked_logits(Stored(np.sqrt(terms)), rows, nothing, UNIT_SIGMA, masks.tree)

    def _put_back(self, means: NDArray[np.floating[Any]]) -> F64:
        found = self.measured.fitted(means)
        for _ in range(CLIPPED if self.store.is_pixels else 0):
            clipped = found.clip(-1, 1)
            if np.abs(clipped - found).max() <= EXACT:
                break
            found = self.measured.put_back(clipped, AGAIN)
        return found.clip(-1, 1) if self.store.is_pixels else found
