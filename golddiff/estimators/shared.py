"""One softmax for several output values: PCA's masks averaged over units of neighbouring pixels.

The mean of its values' logits is a unit's logit, -sum_n S_nu (x_n - x_in)^2 / (2 sigma^2), with
S_nu the share of the unit's masks that hold input n: one dense product a query, D x U wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.estimators.masks import unit_counts
from golddiff.kernels.mask_tiles import tile_of_each
from golddiff.noise import precision
from golddiff.posterior import Float, Posterior
from golddiff.store.images import ImageStore
from golddiff.store.statistics import Factor
from golddiff.support import Support

SIDES = {"pixel": 1, "2x2": 2, "4x4": 4}  # of the units, by the name of ``share``


@dataclass(frozen=True)
class UnitMasks:
    """The averaged masks of one noise level.

    Attributes:
        unit: (P,) int64 unit of each pixel, row by row; of points each value is a pixel.
        shares: (D, U) float32 share of a unit's masks that hold each input, in [0, 1].
    """

    unit: NDArray[np.int64]
    shares: NDArray[np.float32]

    @classmethod
    def of_thresholds(
        cls,
        factor: Factor,
        sigma: float,
        thresholds: NDArray[np.float64],
        shape: tuple[int, ...],
        share: str,
    ) -> list[UnitMasks]:
        """The masks of some ascending thresholds, all from one Wiener matrix."""
        image = shape if len(shape) == 3 else (1, 1, shape[0])
        of_value = tile_of_each(image, SIDES[share])
        members = np.bincount(of_value).astype(np.float32)
        pixels = image[1] * image[2]
        return [
            cls(of_value[:pixels], counts.astype(np.float32) / members)
            for counts in unit_counts(factor, sigma, thresholds, of_value)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the shares."""
        return self.shares.nbytes

    def mean(self) -> NDArray[np.float32]:
        """The masks averaged over all outputs, (D,)."""
        sizes = np.bincount(self.unit).astype(np.float32)
        averaged: NDArray[np.float32] = self.shares @ (sizes / sizes.sum())
        return averaged

    def of_pixel(self, pixel: int | None) -> UnitMasks:
        """Those of one pixel alone (y * W + x), or all for None."""
        if pixel is None:
            return self
        unit = self.unit[pixel]
        return UnitMasks(np.zeros(1, np.int64), self.shares[:, unit : unit + 1])

    def float64_logits(
        self, values: NDArray[np.float32], x: NDArray[np.float32], sigma: float
    ) -> Float:
        """One query's (D,) logits of images (k, D) at every pixel, (P, k), in float64."""
        terms = np.square(values.astype(np.float64) - x)
        logits: Float = -precision(sigma) * (self.shares.T.astype(np.float64) @ terms.T)
        return logits[self.unit]

    def posterior(
        self, store: ImageStore, support: Support, x: NDArray[np.float32], sigma: float
    ) -> Posterior:
        """The partial posterior of queries (b, D) over a support; every pixel is a location.

        Above sigma 1 logits lack x^2, which all images share and which would only cost digits.
        """
        values = store.values(support.rows)
        by_channel = values.reshape(len(values), -1, len(self.unit))
        log_weights = support.log_importance().astype(np.float32)[:, None]
        log_max, total = np.empty((2, len(x), len(self.unit)))
        weighted = np.empty(x.shape)
        for q, query in enumerate(x):
            terms = values * (values - 2 * query) if sigma > 1 else np.square(values - query)
            logits = terms @ self.shares
            logits *= np.float32(-precision(sigma))
            logits += log_weights
            highest = logits.max(axis=0)
            weights = np.exp(logits - highest)
            log_max[q] = highest[self.unit]
            total[q] = weights.sum(axis=0)[self.unit]
            weighted[q] = np.einsum("kp,kcp->cp", weights[:, self.unit], by_channel).ravel()
        return Posterior(log_max, total, weighted)
