"""Crops of the photographs that ship with scikit-learn: any number of real images, no download."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from golddiff.errors import ArgumentError
from golddiff.sources.ahead import ahead
from golddiff.sources.base import Batch, Skipped, SourceInfo
from golddiff.sources.decode import with_channels
from golddiff.sources.options import Options, require_integer

_DEFAULT_SIZE = 32
_DEFAULT_COUNT = 10_000

# Examples are drawn by the block, each from its own generator, so that example i depends on
# nothing but the seed, the size and i.
_BLOCK = 1024

# Neighbouring scales differ by this factor, the smallest shows half of a photograph's height.
_STEP = 2**-0.25


class PatchSource:
    """Random crops of two photographs, at several scales, half of them mirrored.

    Args:
        options: ``size`` is the side of a crop (32), ``limit`` their number (10,000), ``seed``
            chooses them. Example i depends on seed, size and i alone.

    Raises:
        ArgumentError: the labels given do not fit.
    """

    info: SourceInfo
    skipped: Skipped

    def __init__(self, options: Options) -> None:
        options.refuse_columns("the built-in patches")
        self._side = options.size or _DEFAULT_SIZE
        self._seed = options.seed
        self._count = options.limit or _DEFAULT_COUNT
        self._labels = options.own_labels(self._count)
        channels = options.channels or 3
        self._planes = _pyramid(self._side, channels)
        self.skipped = Skipped()
        self.info = SourceInfo(
            shape=(channels, self._side, self._side),
            dtype=np.dtype(np.uint8),
            labelled=self._labels is not None,
            count=self._count,
            description=f"patches of photographs, seed {self._seed}",
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the crops in order: pixels (b, C, size, size) uint8."""
        require_integer("size", size, least=1)
        return self._batches(size)

    def example(self, index: int) -> NDArray[np.uint8]:
        """Crop number ``index`` alone: (C, size, size) uint8.

        Raises:
            ArgumentError: ``index`` is negative.
        """
        start = require_integer("index", index, least=0)
        crop: NDArray[np.uint8] = self._crops((start, start + 1))[0]
        return crop

    def _batches(self, size: int) -> Iterator[Batch]:
        starts = range(0, self._count, size)
        spans = [(start, min(start + size, self._count)) for start in starts]
        for (start, stop), pixels in zip(spans, ahead(self._crops, spans), strict=True):
            yield Batch(pixels, None if self._labels is None else self._labels[start:stop].copy())

    def _crops(self, span: tuple[int, int]) -> NDArray[np.uint8]:
        start, stop = span
        out = np.empty((stop - start, *self.info.shape), np.uint8)
        side = self._side
        done = 0
        for block in range(start // _BLOCK, (stop - 1) // _BLOCK + 1):
            first = max(start - block * _BLOCK, 0)
            last = min(stop - block * _BLOCK, _BLOCK)
            which, tops, lefts = self._draw(block)
            for plane, top, left in zip(
                which[first:last], tops[first:last], lefts[first:last], strict=True
            ):
                out[done] = self._planes[plane][:, top : top + side, left : left + side]
                done += 1
        return out

    def _draw(self, block: int) -> tuple[list[int], list[int], list[int]]:
        """Plane, top and left of each crop of a block."""
        generator = np.random.default_rng([self._seed, self._side, block])
        shares = generator.random((3, _BLOCK))
        which = (shares[0] * len(self._planes)).astype(np.int64)
        room = np.array([plane.shape[1:] for plane in self._planes])[which] - self._side + 1
        tops, lefts = (shares[1:] * room.T).astype(np.int64)
        return which.tolist(), tops.tolist(), lefts.tolist()


def _pyramid(side: int, channels: int) -> list[NDArray[np.uint8]]:
    """The photographs at each scale, as they are and mirrored: (C, H, W) each, H, W >= side."""
    from sklearn.datasets import load_sample_images

    planes: list[NDArray[np.uint8]] = []
    for photograph in load_sample_images().images:
        image = with_channels(Image.fromarray(photograph), channels)
        scale = 1.0
        if min(image.size) < side:
            scale = side / min(image.size)
            _check_area(image.size, scale)
        smallest = min(scale, max(side / min(image.size), 2 * side / max(image.size)))
        while scale >= smallest:
            width, height = (max(side, round(length * scale)) for length in image.size)
            scaled = image.resize((width, height), Image.Resampling.LANCZOS)
            pixels = np.asarray(scaled).reshape(height, width, channels).transpose(2, 0, 1)
            planes += [np.ascontiguousarray(pixels), np.ascontiguousarray(pixels[:, :, ::-1])]
            scale *= _STEP
    return planes


def _check_area(size: tuple[int, int], scale: float) -> None:
    if size[0] * size[1] * scale * scale > 1 << 26:
        raise ArgumentError("size is too large for the built-in patches; give at most 5000")
