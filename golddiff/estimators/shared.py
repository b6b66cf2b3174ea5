"""One softmax for several output values: PCA's masks averaged over units of neighbouring pixels.

The mean of its values' logits is a unit's logit, -sum_n S_nu (x_n - x_in)^2 / (2 sigma^2), with
S_nu the share of the unit's masks that hold input n: one dense product a query, D x U wide. Of
large units every fifth value's mask stands for all (docs/results/restoring.md). Where outputs are
seamless a pixel's logit is interpolated between those of the four units around it, which is a mask
averaged over a neighbourhood of its own; pictures then show no edges of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.estimators.kept_masks import counts_of
from golddiff.estimators.masks import outputs_of, unit_counts
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.statistics import Factor
from golddiff.store.training_set import TrainingSet
from golddiff.support import Side, Support, as_image, tile_of_each
from golddiff.system.numbers import F32, F64, I64

# Of the units, by the name of ``share``.
SIDES = {"pixel": 1, "2x2": 2, "4x4": 4, "seamless": 4}
Given = Callable[[NDArray[Any]], NDArray[Any]]
LEAST = -1e30  # log weight next to a part's heaviest: nothing
SMALLEST = 16  # pixels a side that an image has for units of several pixels


@dataclass(frozen=True)
class UnitMasks:
    """The averaged masks of one noise level.

    Attributes:
        shares: (D, U) float32 share of a unit's masks that hold each input, in [0, 1].
        unit: (P,) int64 unit of each pixel, row by row; of points each value is a pixel.
        between: (U, P) float32 share of each unit's logit in each pixel's; None: that of its unit.
    """

    shares: F32
    unit: I64
    between: F32 | None = None

    @classmethod
    def of_thresholds(
        cls, factor: Factor, sigma: float, thresholds: F64, shape: tuple[int, ...], share: str
    ) -> Iterator[UnitMasks]:
        """The masks of some ascending thresholds, all from one Wiener matrix."""
        unit = _units(shape, share)
        every = unit_counts(factor, sigma, thresholds, unit)
        yield from cls._of_counts(every, unit, shape, share)

    @classmethod
    def of_store(cls, store: TrainingSet, sigma: float, threshold: float, share: str) -> UnitMasks:
        """Those of one threshold; kept with the store."""
        unit = _units(store.shape, share)
        counts = counts_of(store, sigma, threshold, unit)
        return next(cls._of_counts(counts[None], unit, store.shape, share))

    @classmethod
    def _of_counts(
        cls, every: NDArray[np.unsignedinteger], unit: I64, shape: tuple[int, ...], share: str
    ) -> Iterator[UnitMasks]:
        """Of counts (T, D, U) as :func:`unit_counts` makes them."""
        side, (height, width), between = SIDES[share], as_image(shape)[1:], None
        if share == "seamless":
            along = _between(height, side)[:, None, :, None], _between(width, side)[:, None]
            between = (along[0] * along[1]).reshape(-1, height * width)
        members = np.bincount(unit[outputs_of(unit)]).astype(np.float32)
        for counts in every:
            yield cls(counts.astype(np.float32) / members, unit[: height * width], between)

    def mean(self, side: Side | None) -> F32:
        """The masks averaged over all outputs, (1, D); there are no tiles."""
        averaged: F32 = self.at_pixels(self.shares).mean(axis=1)
        return averaged[None]

    def logits_of(
        self, images: Any, x: F32, sigma: float, pixel: int | None
    ) -> Callable[[I64], F64]:
        """One query's (D,) logits (P, k) of images by their rows, in float64; or of one pixel."""
        masks = self if pixel is None else self._of_pixel(pixel)
        return lambda rows: masks.float64_logits(images.values(rows), x, sigma)

    def _of_pixel(self, pixel: int) -> UnitMasks:
        between = None if self.between is None else self.between[:, pixel : pixel + 1]
        return UnitMasks(self.shares, self.unit[pixel : pixel + 1], between)

    def at_pixels(self, of_units: NDArray[np.floating]) -> NDArray[np.floating]:
        """What units (k, U) have, as their pixels have it, (k, P)."""
        if self.between is None:
            return of_units[:, self.unit]
        found: NDArray[np.floating] = of_units @ self.between
        return found

    def summed(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Squared differences (k, D) to what a pixel's logit is of, (k, P), in torch."""
        shares = torch.from_numpy(self.shares).double()
        unit = torch.from_numpy(self.unit)
        between = None if self.between is None else torch.from_numpy(self.between).double()

        def of(squares: torch.Tensor) -> torch.Tensor:
            of_units = squares @ shares
            return of_units[:, unit] if between is None else of_units @ between

        return of

    def float64_logits(self, values: F32, x: F32, sigma: float) -> F64:
        """One query's (D,) logits of images (k, D) at every pixel, (P, k), in float64."""
        terms = np.square(values.astype(np.float64) - x)
        logits = self.at_pixels(terms @ self.shares).T
        return -precision(sigma) * logits.astype(np.float64)

    def posterior(
        self, images: Any, part: Support, x: F32, sigma: float, given: Given
    ) -> Posterior:
        """The partial posterior of queries (b, D) over some images; every pixel is a location.

        ``given`` makes of images (k, D) what is weighted and summed, (k, V).

        Above sigma 1 logits lack x^2, which all images share and which would only cost digits.
        """
        values = images.values(part.rows)
        summed = given(values)
        by_channel = summed.reshape(len(values), -1, len(self.unit))
        prior = part.log_importance()
        heaviest = prior.max()
        # Log weights may be lower than float32 reaches, in all of a part too.
        beside = (prior - heaviest).clip(min=LEAST).astype(np.float32)[:, None]
        log_max, total = np.empty((2, len(x), len(self.unit)))
        weighted = np.empty((len(x), summed.shape[1]))
        for q, query in enumerate(x):
            terms = values * (values - 2 * query) if sigma > 1 else np.square(values - query)
            logits = self.at_pixels(terms @ self.shares)
            logits *= np.float32(-precision(sigma))
            logits += beside
            highest = logits.max(axis=0)
            weights = np.exp(logits - highest)
            log_max[q], total[q] = highest + heaviest, weights.sum(axis=0)
            weighted[q] = np.einsum("kp,kcp->cp", weights, by_channel).ravel()
        return Posterior(log_max, total, weighted)


def advised_share(shape: tuple[int, ...]) -> str:
    """Neighbours that share keep a picture's colours together; grey pictures they only blur."""
    large = len(shape) == 3 and min(shape[1:]) >= SMALLEST
    return "seamless" if large and not is_grey(shape) else "pixel"


def is_grey(shape: tuple[int, ...]) -> bool:
    """Whether images of a shape have one channel."""
    return len(shape) == 3 and shape[0] == 1


def _units(shape: tuple[int, ...], share: str) -> I64:
    """The unit of each output value, (D,)."""
    return tile_of_each(as_image(shape), SIDES[share])


def _between(pixels: int, side: int) -> F32:
    """Linear interpolation from the middles of units of a side to pixels, (units, pixels)."""
    units = -(-pixels // side)
    middles = np.clip((np.arange(pixels) + 0.5) / side - 0.5, 0, units - 1)
    shares: F32 = np.maximum(0, 1 - np.abs(middles - np.arange(units)[:, None])).astype(np.float32)
    return shares
