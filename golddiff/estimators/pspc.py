"""Patch set posterior composites: posterior means of patches, averaged where patches overlap.

Source: Niedoba et al. 2024, "Towards a mechanistic explanation of diffusion model generalization".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import DEFAULT_MEMORY_LIMIT, Estimator
from golddiff.estimators.masks import TIE, precision_of
from golddiff.kernels.contributions import Contribution, mixed, values_at
from golddiff.kernels.lanes import BLOCK
from golddiff.kernels.patch_sets import PatchSet, patch_means
from golddiff.kernels.torch_kernels import patch_sets
from golddiff.noise import edm_sigmas, precision
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore, Weigh
from golddiff.store.images import StoreOrPath
from golddiff.store.posteriors import MERGED, as_support
from golddiff.support import AnySupport, Side, Support, Supports, per_query
from golddiff.system.arguments import Levels, as_dense_tensor, sizes_of
from golddiff.system.errors import ArgumentError
from golddiff.system.files import readable
from golddiff.system.numbers import F32, F64, check_count

# The authors' values for CIFAR-10 at the 18 noise levels of EDM's schedule, descending.
PATCH_SIZES = (32, 32, 32, 32, 32, 32, 32, 23, 15, 11, 7, 5, 3, 3, 3, 3, 3, 3)
THRESHOLDS = (*[1.0] * 7, 0.7, 0.7, 0.5, 0.4, 0.4, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3)
SIDE, MIN_PATCH = 32, 3  # side of CIFAR-10's images and smallest scaled patch, in pixels
# Pixels whose sensitivity to themselves, relative to the largest, is lower never vary. A pixel that
# varies in one of 60,000 images has 1e-9; one that never varies has below 1e-22, from rounding.
NEGLIGIBLE = 1e-12

IMAGES_PER_TASK = 2048  # large, because the posteriors of patches are slow to merge
IMAGES_PER_CONTRIBUTION = 256


class PatchComposite(Estimator):
    """D(x)_q = mean over patches k that contain q of sum_i softmax_i(l_ik) x_iq.

    l_ik = -sum_{n in k} (x_n - x_in)^2 / (2 sigma^2), with n over the patch's pixels in all
    channels. A patch is compared with the same position in every image. :meth:`posterior` is not
    available, because an average of posterior means is not a posterior mean.

    :class:`PSPCSquare` and :class:`PSPCFlex` choose the patches.
    """

    part_size = IMAGES_PER_TASK
    needs_images = True

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a part; each patch is a location."""
        return patch_means(self.images.stored, part, x, sigma, self.ready(sigma))

    def denoise_over(self, x: F32, sigma: float, supports: Supports) -> F32:
        """Outputs (b, D), of few queries at once: posteriors of patches are far larger than x."""
        self.ready(sigma)  # which says how large
        size = max(1, int(self.memory_limit // (MERGED * self.working_bytes(1)[1])))
        own, out = per_query(supports, len(x)), np.empty_like(x)
        for batch in (slice(i, i + size) for i in range(0, len(x), size)):
            out[batch] = super().denoise_over(x[batch], sigma, own[batch])
        return out

    def composed(self, means: F64, sigma: float) -> F64:
        """The averages (n, D) of the patches' posterior means."""
        return self.ready(sigma).composed(means)

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh:
        """:meth:`weigh` in torch."""
        patches: PatchSet = self.ready(sigma)
        masks = store.cached(patches, lambda: store.sent(patches.masks).float())
        pixels = store.sent(patches.padded_pixels)
        return partial(patch_sets, gain=precision(sigma), masks=masks, padded_pixels=pixels)

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,); each pixel is a location. See the base class.

        An image's weight at a pixel is its mean weight in the patches that contain the pixel.
        """
        patches: PatchSet = self.ready(sigma)
        masks = patches.masks if pixel is None else patches.masks[patches.masks[:, pixel]]
        shares = masks / masks.sum(axis=0).clip(min=1)
        shares = shares if pixel is None else shares[:, pixel : pixel + 1]

        def logits(part: Support) -> F64:
            values = self.images.values(part.rows).astype(np.float64)
            squares = np.square(values - x).reshape(len(values), -1, masks.shape[1]).sum(axis=1)
            sums = masks.astype(np.float64) @ squares.T
            return -precision(sigma) * sums + part.log_importance()

        parts = as_support(support).split(IMAGES_PER_CONTRIBUTION)
        for part, log_weights in mixed(parts, logits, shares):
            yield Contribution(part.rows, log_weights, values_at(self.images, part.rows, pixel))

    def relevance(self, sigma: float, side: Side | None = None) -> F32:
        """The mean over pixels of the patches that contain them, (1, D); see the base class."""
        patches: PatchSet = self.ready(sigma)
        patch_shares = patches.masks @ (1 / patches.masks.sum(axis=0))
        relevance = patch_shares @ patches.masks / patches.masks.shape[1]
        return np.tile(relevance, self.store.shape[0]).astype(np.float32)[None]

    def working_bytes(self, images: int) -> tuple[int, int]:
        """One block of images, and the posteriors of all patches."""
        channels, height, width = self.images.shape
        block = BLOCK * height * width * (8 * channels + 4)
        largest = max((p.width * len(p.masks) for p in list(self._ready.values())), default=1)
        return block, 8 * (channels + 1) * largest


class PSPCSquare(PatchComposite):
    """PSPC-Square: every square of p x p pixels within the image is a patch.

    Args:
        store: the training images, (C, H, W).
        patch_sizes: p >= 1; or (sigma, p) pairs, of which the one with the nearest sigma is used;
            or None: the authors' sizes for CIFAR-10, scaled from side 32 to the images' side, at
            least 3. Sizes are limited to the image's side.
        memory_limit: see :class:`golddiff.denoiser.Estimator`.

    Raises:
        ArgumentError: the store holds no images, a size is below 1, or a sigma is not above 0.
    """

    def __init__(
        self,
        store: StoreOrPath,
        patch_sizes: int | Sequence[tuple[float, int]] | None = None,
        memory_limit: float = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        super().__init__(store, memory_limit)
        self.patch_sizes = patch_sizes
        own = patch_sizes is not None
        self._pairs = sizes_of("patch_sizes", patch_sizes, check_count) if own else self._scaled()

    def patch_size(self, sigma: float) -> int:
        """The side p of the patches at a noise level."""
        return min(self._pairs, key=lambda pair: abs(pair[0] - sigma))[1]

    def make_ready(self, sigma: float) -> PatchSet:
        """The squares of a noise level."""
        _, height, width = self.store.shape
        p = self.patch_size(sigma)
        rows, columns = _windows(height, p), _windows(width, p)
        return PatchSet.of(np.kron(rows, columns))

    def _scaled(self) -> Levels:
        """The authors' sizes, scaled to the images' side."""
        scale = min(self.store.shape[1:]) / SIDE
        sizes = [max(MIN_PATCH, math.floor(scale * p + 0.5)) for p in PATCH_SIZES]
        return list(zip(edm_sigmas(len(sizes)), sizes, strict=True))


class PSPCFlex(PatchComposite):
    """PSPC-Flex: one patch per pixel, of the inputs to which a denoiser's output is most sensitive.

    A patch contains the fewest pixels whose sensitivities sum to the share ``thresholds`` of the
    pixel's total; at 1 the whole image is the only patch.

    Args:
        store: the training images, (C, H, W).
        thresholds: in (0, 1]; one number, or one for each of L levels of EDM's schedule from 80 to
            0.002, descending; the nearest level is used. Default: the authors' 18 for CIFAR-10.
        heatmaps: a NumPy file (L, H, W, H, W) of a network's sensitivities at the same levels, in
            the authors' format: the dependence of the output at (y, x) on each input pixel.
            None: those of the Wiener filter, |dD_q / dx_n|, from the data alone.
        memory_limit: see :class:`golddiff.denoiser.Estimator`.

    Raises:
        ArgumentError: no images in the store; a threshold out of range; a file of another shape.
    """

    def __init__(
        self,
        store: StoreOrPath,
        thresholds: float | Sequence[float] = THRESHOLDS,
        heatmaps: str | Path | None = None,
        memory_limit: float = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        super().__init__(store, memory_limit)
        expected = "numbers above 0, at most 1"
        shares = as_dense_tensor("thresholds", thresholds, expected).double().numpy().ravel()
        if len(shares) == 0 or not ((shares > 0) & (shares <= 1)).all():
            raise ArgumentError(f"thresholds: got {thresholds!r}, expected {expected}")
        self.thresholds = tuple(shares.tolist()) if len(shares) > 1 else float(shares[0])
        self.heatmaps = None if heatmaps is None else str(heatmaps)
        levels = len(shares) if self.heatmaps is None else len(self._load_heatmaps())
        if len(shares) not in (1, levels):
            raise ArgumentError(
                f"thresholds: got {len(shares)}, expected one, or {levels} as in heatmaps"
            )
        self._levels = edm_sigmas(levels)
        self._shares = np.broadcast_to(shares, levels)

    def make_ready(self, sigma: float) -> PatchSet:
        """The patches of a noise level, one per pixel."""
        pixels = math.prod(self.store.shape[1:])
        level = min(range(len(self._levels)), key=lambda i: abs(self._levels[i] - sigma))
        share = float(self._shares[level])
        if share == 1:
            return PatchSet.of(np.ones((1, pixels), np.bool_))
        if self.heatmaps is not None:
            maps = np.asarray(self._load_heatmaps()[level], np.float64).reshape(pixels, pixels)
            if not np.isfinite(maps).all():
                raise ArgumentError(f"heatmaps: level {level} holds NaN or infinity")
        else:
            matrix = np.abs(self.store.factor().wiener_matrix(sigma, precision_of(self.store.d)))
            maps = matrix.reshape(-1, pixels, self.store.shape[0], pixels).sum(axis=(0, 2))
            own = maps.diagonal()
            maps[own <= NEGLIGIBLE * own.max()] = 0.0  # rounding errors of constant pixels
        return PatchSet.of(_most_sensitive(maps, share))

    def _load_heatmaps(self) -> NDArray[np.floating]:
        _, height, width = self.store.shape
        assert self.heatmaps is not None
        with readable(f"heatmaps: {self.heatmaps} is no NumPy file of numbers", ArgumentError):
            maps: NDArray[np.floating] = np.load(self.heatmaps, mmap_mode="r", allow_pickle=False)
            maps = np.asanyarray(maps)  # an archive is none
        side = (height, width)
        has_shape = maps.ndim == 5 and maps.shape[1:] == 2 * side and len(maps) > 0
        if not (has_shape and maps.dtype.kind == "f"):
            raise ArgumentError(
                f"heatmaps: got {maps.dtype} of shape {maps.shape}, expected floats (L, {height}, "
                f"{width}, {height}, {width})"
            )
        return maps


def _windows(length: int, p: int) -> NDArray[np.bool_]:
    """All windows of p consecutive positions out of ``length``, (length - p + 1, length)."""
    p = min(p, length)
    offset = np.arange(length) - np.arange(length - p + 1)[:, None]
    return (offset >= 0) & (offset < p)


def _most_sensitive(maps: NDArray[np.floating], share: float) -> NDArray[np.bool_]:
    """The fewest entries of each row (P,) that sum to a share of it, including ties.

    A pixel outside all patches is added to the patch of its own row.
    """
    ascending = np.sort(maps, axis=1)
    sums = np.cumsum(ascending, axis=1)
    # With a tolerance, so that rounding decides neither sums at the bound nor ties.
    first = (sums < (1 - share - TIE) * sums[:, -1:]).sum(axis=1)
    least = np.take_along_axis(ascending, first[:, None], axis=1)
    masks: NDArray[np.bool_] = (maps >= least * (1 - TIE)) & (maps > 0)
    uncovered = np.flatnonzero(~masks.any(axis=0))
    masks[uncovered, uncovered] = True
    return masks[masks.any(axis=1)]
