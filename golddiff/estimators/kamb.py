"""Kamb & Ganguli's patch denoisers: local score (LS), equivariant (ELS), boundary-broken ELS."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import resources
from typing import get_args

import numpy as np
import torch

from golddiff.denoiser import DEFAULT_MEMORY_LIMIT, Estimator
from golddiff.kernels.contributions import Contribution, Ranking, outputs_at
from golddiff.kernels.kamb_cpu import Axis, Boundary, patch_posterior
from golddiff.kernels.kamb_logits import patch_contributions
from golddiff.kernels.kamb_moments import patch_moments
from golddiff.kernels.lanes import LANES
from golddiff.kernels.torch_kernels import box_sums, offsets, patches
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore, Weigh
from golddiff.store.exact import FirstPass, Terms
from golddiff.store.images import StoreOrPath
from golddiff.store.posteriors import as_support
from golddiff.support import ABSENT, AnySupport, Side, Support
from golddiff.system.arguments import Levels, sizes_of
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, is_whole
from golddiff.system.parallel import map_ordered

PatchSizes = int | str | Sequence[tuple[float, int]] | None

IMAGES_PER_TASK = 64


class Kamb(Estimator):
    """D(x)[c, u] = sum over images i and positions v of softmax(l_iv) x_i[c, v].

    l_iv = -||patch(x, u) - patch(x_i, v)||^2 / (2 sigma^2) over patches of p x p pixels in all
    channels, for the positions v that ``boundary`` compares with u. Source: Kamb & Ganguli 2024,
    "An analytic theory of creativity in convolutional diffusion models".

    Args:
        store: the training images, (C, H, W).
        patch_sizes: p, odd; or (sigma, p) pairs, interpolated in log sigma to the nearest odd
            number (ties upwards) and held constant outside; or the name of one of the authors'
            calibrations, see :func:`preset`; or None: a square with as many pixels as the PCA
            masks, at least 3 wide. With a preset or None, p is at most the image's shorter side
            (rounded up to odd).
        boundary: "none" (LS) compares u with the same position; patches are cut at the border.
            "circular" (ELS) compares u with every position; patches wrap around, and p is at most
            the image's shorter side (rounded down to odd), so that no patch repeats a pixel.
            "zeros" (boundary-broken ELS): along each axis, a position closer than p // 2 to a
            border is compared with the same position, an interior one with all interior ones. If
            the patch is at least as large as the image's shorter side, "zeros" is LS.
        memory_limit: see :class:`golddiff.denoiser.Estimator`.

    Raises:
        ArgumentError: the images are not (C, H, W), a size is not odd, or a name is unknown.
    """

    part_size = IMAGES_PER_TASK  # small, because comparing all patches is slow
    needs_images = True

    def __init__(
        self,
        store: StoreOrPath,
        patch_sizes: PatchSizes = None,
        boundary: str = "zeros",
        memory_limit: float = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        super().__init__(store, memory_limit)
        check_boundary(boundary)
        self.patch_sizes = patch_sizes
        self.boundary: Boundary = boundary  # type: ignore[assignment]
        self._pairs: Levels | None = None
        if isinstance(patch_sizes, str):
            self._pairs = preset(patch_sizes)
        elif patch_sizes is not None:
            self._pairs = sorted(sizes_of("patch_sizes", patch_sizes, _odd))
        self._side = min(self.store.shape[1:])

    def patch_size(self, sigma: float) -> int:
        """The side p of the patches compared at a noise level."""
        if self._pairs is None:
            size = min(int(self.ready(sigma)), self._side // 2 * 2 + 1)
        else:
            levels, sizes = zip(*self._pairs, strict=True)
            size = nearest_odd(float(np.interp(math.log(sigma), np.log(levels), sizes)))
            if isinstance(self.patch_sizes, str):
                size = min(size, self._side // 2 * 2 + 1)
        if self.boundary == "circular":
            size = min(size, (self._side - 1) // 2 * 2 + 1)
        return size

    def make_ready(self, sigma: float) -> int | None:
        """The side of a square with as many pixels as the PCA masks; None if sizes are given."""
        if self._pairs is not None:
            return None
        from golddiff.estimators.pca import mask_width  # its kernels import slowly

        width = mask_width(self.store, sigma) / self.store.shape[0]
        return max(3, nearest_odd(math.sqrt(width)))

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a part; each pixel is a location."""
        images = self.images
        return patch_posterior(images.stored, part, x, sigma, self._axes(sigma), images.shape)

    def terms(self, x: torch.Tensor, gain: torch.Tensor, sigma: float, part: Support) -> Terms:
        """See ``Terms`` of ``golddiff.store.exact``; one per offset between two positions."""
        shape, (size, boundary) = self.images.shape, self._patches(sigma)
        values = torch.from_numpy(self.images.values(part.rows).astype(np.float64))
        for q, query in enumerate(x.reshape(-1, *shape)):
            for shifted, compared in offsets(values.reshape(-1, *shape), size, boundary):
                sums = box_sums((query - shifted).square().sum(dim=1), size, boundary)
                logits = torch.where(compared, -gain[q] * sums, ABSENT)
                yield q, logits.flatten(1), shifted.flatten(1)

    def moments(
        self, sigma: float, part: Support, x: F64, known: FirstPass, cotangent: F64 | None
    ) -> F64:
        """The variance (b, D), or the derivatives of u . mean, (b, D + 3 L), L = H W; over a part.

        As :meth:`golddiff.estimators.optimal.Optimal.moments`, with three sums for every pixel.
        """
        return patch_moments(
            self.images.stored, part, x, sigma, self._axes(sigma), self.images.shape,
            known.in_float32(cotangent),
        )  # fmt: skip

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh:
        """:meth:`weigh` in torch."""
        size, boundary = self._patches(sigma)
        gain, shape = precision(sigma), self.images.shape
        return partial(patches, gain=gain, shape=shape, size=size, boundary=boundary)

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,); each pixel is a location. See the base class."""
        images, width = self.images, self.images.shape[2]
        vertical, horizontal = self._axes(sigma)
        if pixel is not None:
            vertical, horizontal = vertical.at(pixel // width), horizontal.at(pixel % width)

        def task(part: Support) -> Contribution:
            logits, values, best = patch_contributions(
                images.stored, part, x, sigma, (vertical, horizontal), images.shape, top
            )
            if pixel is not None:
                selected, values = slice(pixel, pixel + 1), values[:, outputs_at(images, pixel)]
                logits, best = logits[selected].copy(), tuple(a[selected] for a in best)
            return Contribution(part.rows, logits, values, Ranking(*best))

        yield from map_ordered(task, as_support(support).split(IMAGES_PER_TASK))

    def _axes(self, sigma: float) -> tuple[Axis, Axis]:
        _, height, width = self.images.shape
        size, rule = self._patches(sigma)
        return Axis.of(height, size, rule), Axis.of(width, size, rule)

    def _patches(self, sigma: float) -> tuple[int, Boundary]:
        """The patches' side and the boundary rule; "zeros" without an interior is "none"."""
        size = self.patch_size(sigma)
        return size, "none" if self.boundary == "zeros" and size >= self._side else self.boundary

    def relevance(self, sigma: float, side: Side | None = None) -> F32:
        """The share of an image that a patch covers, for all inputs; see the base class."""
        _, height, width = self.store.shape
        share = min(1.0, self.patch_size(sigma) ** 2 / (height * width))
        return np.full((1, self.store.d), share, np.float32)

    def working_bytes(self, images: int) -> tuple[int, int]:
        """One block of images, and a posterior of each query."""
        channels, height, width = self.images.shape
        # Pixels, sums and distances of LANES images, and line buffers up to three images high.
        block = 4 * LANES * height * width * (2 * channels + 2 + 3)
        return block, 24 * (channels + 2) * height * width


def nearest_odd(value: float) -> int:
    """The odd number >= 1 nearest to ``value``; ties go to the larger."""
    return max(1, 2 * math.floor(value / 2 + 1e-9) + 1)


def preset(name: str) -> list[tuple[float, int]]:
    """One of the authors' calibrations: (sigma, patch size) pairs, ascending.

    Entry i of 20 belongs to t = i / 20 and alpha_bar = cos^2(pi/2 * t / 1.008), so that sigma =
    sqrt((1 - alpha_bar) / alpha_bar) = tan(pi/2 * t / 1.008). Entry 0 has sigma 0 and is omitted.
    Their sampler reads the list like this, though they calibrated entry i at t = (i + 1) / 20.
    """
    file = resources.files("golddiff") / "data" / "kamb_patch_sizes.json"
    presets = json.loads(file.read_text("utf-8"))["patch_sizes"]
    if name not in presets:
        raise ArgumentError(
            f"patch_sizes: got {name!r}, expected one of the presets {', '.join(sorted(presets))}"
        )
    sizes = presets[name]
    return [(calibration_sigma(i / len(sizes)), p) for i, p in enumerate(sizes)][1:]


def calibration_sigma(t: float) -> float:
    """The noise level at the authors' time t in [0, 1]."""
    return math.tan(math.pi / 2 * t / 1.008)


def check_boundary(boundary: str) -> None:
    """Raise ArgumentError if ``boundary`` is not a boundary rule."""
    if boundary not in get_args(Boundary):
        allowed = ", ".join(map(repr, get_args(Boundary)))
        raise ArgumentError(f"boundary: got {boundary!r}, expected one of {allowed}")


def _odd(name: str, size: object) -> int:
    if not is_whole(size) or not 1 <= size < 2**31 or size % 2 == 0:
        raise ArgumentError(f"{name}: got size {size!r}, expected an odd integer from 1 to 2**31")
    return int(size)
