"""One softmax shared by several output values: PCA's masks averaged over units of pixels.

A unit's logit is the mean of its values' logits, -sum_n S_nu (x_n - x_in)^2 / (2 sigma^2), where
S_nu is the share of the unit's masks that contain input n: one dense (D, U) product per query.
Large units use every fifth value's mask only, in large images four masks each
(docs/results/restoring.md). With share="seamless" a pixel's logit is interpolated between those of
the four units around it, which averages masks over a neighbourhood centred on the pixel; pictures
then show no unit edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.estimators.masks import masks_per_unit
from golddiff.kernels.roots import squares
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore
from golddiff.store.exact import FirstPass
from golddiff.store.training_set import TrainingSet
from golddiff.support import Side, Support, as_image, tile_of_each
from golddiff.system.numbers import F32, F64, I64

# Side of a unit in pixels, by the value of ``share``.
SIDES = {"pixel": 1, "2x2": 2, "4x4": 4, "seamless": 4}
SEAMLESS_UNITS = 16  # most units along an image's shorter side: 8x8 pixels at 128 x 128
Summands = Callable[[NDArray[Any]], NDArray[Any]]  # images (k, D) -> values to sum (k, V)
LOG_ZERO = -1e30  # log of a negligible weight, relative to a part's largest, in float32's range
MIN_SIDE = 16  # smallest image side in pixels for which units of several pixels are advised


@dataclass(frozen=True)
class UnitMasks:
    """The averaged masks of one noise level.

    Attributes:
        shares: (D, U) float32 share of a unit's masks that contain each input, in [0, 1].
        unit: (P,) int64 unit of each pixel, row by row; for points each value is a pixel.
        between: (U, P) float32 weight of each unit's logit in each pixel's; None: its own unit's.
    """

    shares: F32
    unit: I64
    between: F32 | None = None

    @classmethod
    def of_counts(
        cls, counts: NDArray[np.unsignedinteger], shape: tuple[int, ...], share: str
    ) -> UnitMasks:
        """The masks of counts (D, U), see :func:`golddiff.estimators.masks.unit_counts`."""
        side, (height, width), between = _side(shape, share), as_image(shape)[1:], None
        if share == "seamless":
            axes = _between(height, side)[:, None, :, None], _between(width, side)[:, None]
            between = (axes[0] * axes[1]).reshape(-1, height * width)
        unit = units_of(shape, share)
        shares = np.divide(counts, masks_per_unit(unit), dtype=np.float32)
        return cls(shares, unit[: height * width], between)

    def mean(self, side: Side | None) -> F32:
        """The mean mask of all outputs, (1, D); ``side`` is ignored, as there are no tiles."""
        return self.at_pixels(self.shares).mean(axis=1)[None]

    def logits_of(
        self, images: Any, x: F32, sigma: float, pixel: int | None
    ) -> Callable[[I64], F64]:
        """A function: image rows (k,) -> float64 logits (P, k) of one query, all or one pixel's."""
        masks = self if pixel is None else self._of_pixel(pixel)

        def logits(rows: I64) -> F64:
            terms = np.square(images.values(rows).astype(np.float64) - x)
            return -precision(sigma) * masks.at_pixels(terms @ self.shares).T.astype(np.float64)

        return logits

    def _of_pixel(self, pixel: int) -> UnitMasks:
        between = None if self.between is None else self.between[:, pixel : pixel + 1]
        return UnitMasks(self.shares, self.unit[pixel : pixel + 1], between)

    def at_pixels(self, of_units: NDArray[np.floating]) -> NDArray[np.floating]:
        """Values per unit (k, U) expanded or interpolated to values per pixel (k, P)."""
        if self.between is None:
            return of_units[:, self.unit]
        return of_units @ self.between

    def mask_product(
        self, store: DeviceStore | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function from squared differences (k, D) to their masked sums (k, P).

        In float32 on the device of a store, else in float64 on the CPU.
        """

        def sent(array: F32) -> torch.Tensor:
            if store is None:
                return torch.from_numpy(array).double()
            return store.cached(array, lambda: store.sent(array))

        shares = sent(self.shares)
        unit = torch.from_numpy(self.unit).to(shares.device)
        between = None if self.between is None else sent(self.between)

        def product(terms: torch.Tensor) -> torch.Tensor:
            of_units = terms @ shares
            return of_units[:, unit] if between is None else of_units @ between

        return product

    def posterior(
        self, images: Any, part: Support, x: F32, sigma: float, summands: Summands
    ) -> Posterior:
        """The partial posterior of queries (b, D) over a part; each pixel is a location.

        ``summands`` maps images (k, D) to the values (k, V) that are weighted and summed.
        """
        values = images.values(part.rows)
        summed = summands(values)
        by_channel = summed.reshape(len(values), -1, len(self.unit))
        prior = part.log_importance()
        heaviest = prior.max()
        gain = precision(sigma)
        # Log weights may be below float32's range, even all those of a part.
        relative_prior = (prior - heaviest).clip(min=LOG_ZERO).astype(np.float32)[:, None]
        log_max, total = np.empty((2, len(x), len(self.unit)))
        weighted = np.empty((len(x), summed.shape[1]))
        for q, query in enumerate(x):
            logits = self.at_pixels(squares(values, query, gain) @ self.shares)
            logits *= np.float32(-gain)
            logits += relative_prior
            highest = logits.max(axis=0)
            weights = np.exp(logits - highest)
            log_max[q], total[q] = highest + heaviest, weights.sum(axis=0)
            weighted[q] = np.einsum("kp,kcp->cp", weights, by_channel).ravel()
        return Posterior(log_max, total, weighted)

    def moments(
        self, images: Any, part: Support, x: F64, sigma: float, known: FirstPass,
        cotangent: F64 | None, summands: Summands,
    ) -> F64:  # fmt: skip
        """The sums of :meth:`golddiff.estimators.pca.PCA.moments`; each pixel is a location."""
        values, pixels = images.values(part.rows), len(self.unit)
        by_channel = summands(values).reshape(len(values), -1, pixels)
        prior, gain, out = part.log_importance()[:, None], precision(sigma), []
        mean, _, share, pulling = known.in_float32(cotangent)
        for q, query in enumerate(x.astype(np.float32)):
            distances = self.at_pixels(squares(values, query, gain) @ self.shares)
            relative = (prior - known.log_max[q]).astype(np.float32)
            weights = np.exp(np.float32(-gain) * distances + relative) * share[q]
            deviations = by_channel - mean[q].reshape(-1, pixels)
            if cotangent is None:
                out.append(np.einsum("kp,kcp->cp", weights, np.square(deviations)).ravel())
                continue
            pulls = np.einsum("cp,kcp->kp", pulling[q].reshape(-1, pixels), deviations) * weights
            of_inputs = self._summed_in_units(pulls) @ self.shares.T
            # The pulls sum to 0 over the images, so any constant may replace x: the mean is near.
            in_x = np.einsum("kd,kd->d", of_inputs, values - mean[q, : values.shape[1]])
            terms = -pulls * distances, pulls, -weights * distances
            slopes = [term.sum(axis=0, dtype=np.float64) for term in terms]
            out.append(np.concatenate([2 * gain * in_x.astype(np.float64), *slopes]))
        return np.stack(out).astype(np.float64)

    def _summed_in_units(self, of_pixels: F32) -> F32:
        """The transpose of :meth:`at_pixels`: (k, P) to (k, U)."""
        if self.between is not None:
            return of_pixels @ self.between.T
        order = np.argsort(self.unit, kind="stable")
        starts = np.searchsorted(self.unit[order], np.arange(self.shares.shape[1]))
        return np.add.reduceat(of_pixels[:, order], starts, axis=1)


def advised_share(shape: tuple[int, ...]) -> str:
    """The advised ``share``: with "pixel", photographs have speckle."""
    return "seamless" if len(shape) == 3 and min(shape[1:]) >= MIN_SIDE else "pixel"


def are_strokes(store: TrainingSet) -> bool:
    """Whether the images are grey on a black background, such as digits and garments."""
    return is_grey(store.shape) and store.has_black_background


def is_grey(shape: tuple[int, ...]) -> bool:
    """Whether images of this shape have a single channel."""
    return len(shape) == 3 and shape[0] == 1


def units_of(shape: tuple[int, ...], share: str) -> I64:
    """The unit of each output value, (D,)."""
    return tile_of_each(as_image(shape), _side(shape, share))


def _side(shape: tuple[int, ...], share: str) -> int:
    """The side of a unit; "seamless" scales it with images beyond 64 x 64, as their details are."""
    least = SIDES[share]
    return max(least, min(shape[1:]) // SEAMLESS_UNITS) if share == "seamless" else least


def _between(pixels: int, side: int) -> F32:
    """Weights (units, pixels) of linear interpolation from unit centres to pixels, on one axis."""
    units = -(-pixels // side)
    centres = np.clip((np.arange(pixels) + 0.5) / side - 0.5, 0, units - 1)
    return np.maximum(0, 1 - np.abs(centres - np.arange(units)[:, None])).astype(np.float32)
