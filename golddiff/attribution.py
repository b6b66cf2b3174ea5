"""Attribution: the training images behind an output, and their weights.

Every output of Optimal, PCA and Kamb is a weighted sum of training values. This module returns the
weights, from which the output can be recomputed; for GoldDiff, those over the golden subset.
``PCA(share="seamless")`` also sums differences of neighbours, with the same weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from golddiff.kernels.contributions import Ranking, Weights, outputs_at
from golddiff.noise import Labels, Sigma
from golddiff.posterior import weighted_sum
from golddiff.support import AnySupport, as_image
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, I64, check_count, is_whole
from golddiff.system.pictures import png
from golddiff.system.residency import parts

IMAGES_AT_ONCE = 1024  # images whose values are in memory at once
SHOWN = 7  # training images shown beside the output in notebooks


@dataclass(frozen=True, eq=False)
class Attribution:
    """The sources of one denoised image.

    A location is a part of the output that has its own weights: the whole image (Optimal, L = 1),
    an output value (PCA, L = C*H*W) or a pixel (Kamb, L = H*W). A source is a training image, or
    with Kamb a position in a training image. The weights of all sources of a location sum to 1.
    ``top`` is lower than asked for if there are fewer sources.
    Pixels are numbered y * W + x, outputs c * H * W + y * W + x. Points (D,) are images of one row.

    Attributes:
        store: the training set.
        locations: "image", "value" or "pixel".
        sources: (L, top) rows of the main sources, heaviest first.
        positions: (L, top) pixel of the source that is copied; None: the output's own position.
        weights: (L, top) weights of ``sources``.
        mass: (L,) sum of ``weights``.
        effective: (L,) effective number of images: exp of the entropy (in nats) of the images'
            weights at the location. N equal weights give N, a single image 1.
        images: (k,) rows of all images weighed.
        image_weights: (k,) weights of ``images`` averaged over locations; they sum to 1.
        main: (H, W) heaviest image of each pixel, averaged over channels; (D,) for points.
        main_weights: weights of ``main``, same shape.
        total: (D,) float64 output, recomputed from all weights and values.
        rounding: estimated difference between ``total`` and the denoiser's output, whose weights
            are computed in float32; too low for PSPC and SCFDM, whose weights are averages.
        seamless: maps weighted sums of values and their differences to the output, for
            ``PCA(share="seamless")``; None: the output is the weighted sum of the values.
    """

    store: Any = field(repr=False)
    locations: str
    sources: I64 = field(repr=False)
    positions: I64 | None = field(repr=False)
    weights: F64 = field(repr=False)
    mass: F64 = field(repr=False)
    effective: F64 = field(repr=False)
    images: I64 = field(repr=False)
    image_weights: F64 = field(repr=False)
    main: I64 = field(repr=False)
    main_weights: F64 = field(repr=False)
    total: F64 = field(repr=False)
    rounding: float = field(repr=False)
    seamless: Any = field(default=None, repr=False)

    def top_images(self, count: int = 16) -> tuple[I64, F64]:
        """Rows and mean weights of the heaviest images of the whole output, heaviest first.

        Raises:
            ArgumentError: count is not 1 or more.
        """
        order = np.lexsort((self.images, -self.image_weights))[: check_count("count", count)]
        return self.images[order], self.image_weights[order]

    def patchwork(self) -> I64:
        """The row of each pixel's main source, (H, W); (D,) for points."""
        return self.main

    def reconstruct(self) -> torch.Tensor:
        """The output recomputed from all weights and training values, (*shape) float64."""
        return torch.from_numpy(self.total.copy()).reshape(self.store.shape)

    def _repr_png_(self) -> bytes | None:
        """A picture of the output and its heaviest images, for notebooks."""
        if len(self.store.shape) != 3:
            return None
        rows, _ = self.top_images(SHOWN)
        return png(torch.cat([self.reconstruct()[None].float(), self.store.images(rows)]))

    def from_top(self) -> torch.Tensor:
        """The output from ``sources`` alone, weights scaled to sum to 1, (*shape) float64.

        ``mass`` is the sum before scaling; :meth:`top_error` is the error to the full output.
        """
        n_values = self.store.d if self.seamless is None else self.seamless.n_values
        copies = n_values // len(self.sources)
        rows, weights = np.tile(self.sources, (copies, 1)), np.tile(self.weights, (copies, 1))
        columns = np.arange(n_values)[:, None]
        if self.positions is not None:
            pixels = len(self.sources)
            columns = columns // pixels * pixels + np.tile(self.positions, (copies, 1))
        values = _values(self.store, self.seamless, rows, columns)
        explained = (weights * values).sum(axis=1) / weights.sum(axis=1)
        return torch.from_numpy(_output(self.seamless, explained)).reshape(self.store.shape)

    def top_error(self) -> float:
        """RMSE between :meth:`from_top` and the output, in units of x0."""
        return float((self.from_top() - self.reconstruct()).square().mean().sqrt())


@dataclass(frozen=True, eq=False)
class PixelSources:
    """The sources of one pixel, or of one channel of a pixel; ``top`` as in :class:`Attribution`.

    Attributes:
        images: (k,) ascending rows of all images weighed.
        weights: (k,) weights of ``images``, averaged over channels if each has its own (PCA).
        sources: (top,) rows of the main sources, heaviest first; with Kamb an image may occur
            more than once, at different positions.
        positions: (top,) pixel of the source that is copied, y * W + x.
        source_weights: (top,) weights of ``sources``.
        effective: effective number of images, as in :class:`Attribution`; mean over channels.
        value: (C,) sum of all weights times all values, (1,) for one channel. This is the output,
            except for ``PCA(share="seamless")``, whose outputs also depend on their neighbours.
    """

    images: I64 = field(repr=False)
    weights: F64 = field(repr=False)
    sources: I64
    positions: I64
    source_weights: F64
    effective: float
    value: F64


def attribute(
    estimator: Any, support: AnySupport, x: F32, sigma: float, top: int = 16
) -> Attribution:
    """The sources of one query (D,); see :meth:`golddiff.denoiser.Denoiser.attribute`."""
    store = estimator.store
    weights = Weights(estimator, support, x, sigma, check_count("top", top))
    ranked = weights.ranked()
    locations = len(ranked.scores)
    pixels = math.prod(as_image(store.shape)[1:])
    main = Ranking.empty(pixels, 1)
    image_weights = []
    total = np.zeros(estimator.n_values)
    for part, w in weights:
        image_weights.append(w.mean(axis=0))
        total += weighted_sum(w, part.values)
        # Averaged over the channels of each pixel; a weight of the whole image is every pixel's.
        by_pixel = w.reshape(-1, min(locations, pixels), w.shape[1]).mean(axis=0)
        main = main.offered(np.broadcast_to(by_pixel, (pixels, w.shape[1])), part.rows)
    return Attribution(
        store,
        "image" if locations == 1 else "value" if locations == store.d else "pixel",
        ranked.rows,
        None if ranked.positions.min() < 0 else ranked.positions,
        ranked.scores,
        ranked.scores.sum(axis=1),
        weights.effective,
        support.rows,
        np.concatenate(image_weights),
        main.rows.reshape(store.shape[-2:]),
        main.scores.reshape(store.shape[-2:]),
        _output(estimator.seamless, total),
        weights.rounding,
        estimator.seamless,
    )


def pixel_sources(
    denoiser: Any,
    x: torch.Tensor,
    sigma: Sigma,
    y: int,
    x_col: int,
    channel: int | None = None,
    top: int = 16,
    labels: Labels = None,
) -> PixelSources:
    """The sources of a single pixel, fast enough for interactive use.

    Args:
        denoiser: a method that weighs training images.
        x: (C, H, W) or (1, C, H, W) noisy image.
        sigma: noise level.
        y: row of the pixel.
        x_col: column of the pixel.
        channel: channel of the pixel; None: the mean over all channels.
        top: number of main sources to rank.
        labels: class, as in a call.

    Raises:
        ArgumentError: the pixel is outside the image; the data are points; x has more than one
            image; as in ``attribute``.
    """
    if not hasattr(denoiser, "estimator_supports"):
        raise ArgumentError(f"denoiser: {type(denoiser).__name__} weighs no training images")
    store = denoiser.store
    if len(store.shape) != 3:
        raise ArgumentError(f"store: got data of shape {store.shape}, which has no pixels")
    top = check_count("top", top)
    given = 0 if channel is None else channel, y, x_col
    for name, value, limit in zip(("channel", "y", "x_col"), given, store.shape, strict=True):
        if not is_whole(value) or not 0 <= value < limit:
            raise ArgumentError(f"{name}: got {value!r}, expected 0 to {limit - 1}")
    single = isinstance(x, torch.Tensor) and x.ndim == 3
    query, level, label = denoiser.checked(x[None] if single else x, sigma, labels)
    if len(query) != 1:
        raise ArgumentError(f"x: got {len(query)} images, expected one")
    pixel = int(y) * store.shape[2] + int(x_col)
    estimator, (support,) = denoiser.estimator_supports(query, level[0], label[0])
    weights = Weights(estimator, support, query[0], level[0], top, pixel)
    ranked = weights.ranked()
    channels = slice(None) if channel is None else slice(channel, channel + 1)
    locations = slice(None) if len(ranked.scores) == 1 else channels
    per_image, values = [], np.zeros(len(outputs_at(store, pixel)))
    best = Ranking.empty(1, weights.top)
    for part, w in weights:
        per_image.append(w[locations].mean(axis=0))
        values += weighted_sum(w, part.values)
        best = best.offered(per_image[-1][None], part.rows)
    best = best.descending() if ranked.positions.min() < 0 else ranked
    positions = np.where(best.positions[0] < 0, pixel, best.positions[0])
    return PixelSources(
        support.rows,
        np.concatenate(per_image),
        best.rows[0],
        positions,
        best.scores[0],
        float(weights.effective[locations].mean()),
        values[channels],
    )


def _output(seamless: Any, sums: F64) -> F64:
    """The output (D,) of weighted sums (V,)."""
    return sums if seamless is None else seamless.outputs(sums[None])[0]


def _values(store: Any, seamless: Any, rows: I64, columns: I64) -> F64:
    """Summands ``columns`` of images ``rows``, in units of x0; shaped like ``rows``."""
    distinct, index = np.unique(rows, return_inverse=True)
    index, columns = index.reshape(rows.shape), np.broadcast_to(columns, rows.shape)
    values = np.empty(rows.shape)
    for start, part in parts(distinct, IMAGES_AT_ONCE):
        mask = (index >= start) & (index < start + len(part))
        loaded = store.values(part)
        summands = loaded if seamless is None else seamless.summands(loaded)
        values[mask] = summands[index[mask] - start, columns[mask]]
    return values
