"""Training sets that are already arrays: images or plain points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from golddiff.errors import ArgumentError, SourceError
from golddiff.sources.ahead import ahead
from golddiff.sources.base import Batch, Skipped, SourceInfo
from golddiff.sources.decode import fit, to_pixels, with_channels
from golddiff.sources.options import Options, require_integer

_IMAGE_CHANNELS = (1, 3, 4)
_CHECK_BYTES = 1 << 24


class ArraySource:
    """An array as a source: uint8 stays uint8, floats become float32 and keep their values.

    Args:
        array: (N, C, H, W) images, (N, H, W) grey images, (N, D) points; uint8 with the channels
            last, (N, H, W, 1 | 3 | 4), is turned to channels first (transparency laid on white).
        options: size and channels apply to uint8 images only.
        labels: the source's own labels, (N,) int64, or None.
        class_names: a name for each of the source's own classes, or None.
        description: one line for the manifest.

    Raises:
        SourceError: the array's data type, shape or values cannot be training data.
        ArgumentError: the labels given do not fit, or size or channels do not apply.
    """

    info: SourceInfo
    skipped: Skipped

    def __init__(
        self,
        array: Any,
        options: Options,
        *,
        labels: NDArray[np.int64] | None = None,
        class_names: tuple[str, ...] | None = None,
        description: str = "array",
    ) -> None:
        values = as_array(array, description)
        self._mapped = isinstance(values, np.memmap)
        self._pixels, rgba = _images_first(values, description)
        own = options.own_labels(len(self._pixels))
        self._labels = labels if own is None else own
        self._count = options.limited(len(self._pixels))
        self._description = description
        self._size = options.size
        self._channels = 3 if rgba and options.channels is None else options.channels
        self._redraw = self._size is not None or self._channels is not None
        self.skipped = Skipped()
        self.info = SourceInfo(
            shape=self._final_shape(),
            dtype=np.dtype(np.uint8 if self._pixels.dtype == np.uint8 else np.float32),
            labelled=self._labels is not None,
            class_names=class_names if own is None else None,
            count=self._count,
            description=description,
        )
        # A mapped file may be larger than memory, so its values are checked as they are read.
        if self.info.dtype == np.float32 and not self._mapped:
            row_bytes = 4 * int(np.prod(self.info.shape))
            step = max(1, _CHECK_BYTES // row_bytes)
            for start in range(0, self._count, step):
                self._floats(start, min(start + step, self._count))

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order, as copies: pixels (b, *shape) and labels (b,) or None.

        Raises:
            SourceError: a float is NaN or infinite.
        """
        require_integer("size", size, least=1)
        return self._batches(size)

    def _batches(self, size: int) -> Iterator[Batch]:
        starts = range(0, self._count, size)
        spans = [(start, min(start + size, self._count)) for start in starts]
        read = self._redrawn if self._redraw else self._read
        blocks = ahead(read, spans) if self._redraw else map(read, spans)
        for (start, stop), pixels in zip(spans, blocks, strict=True):
            yield Batch(pixels, None if self._labels is None else self._labels[start:stop].copy())

    def _read(self, span: tuple[int, int]) -> NDArray[np.generic]:
        if self.info.dtype == np.float32:
            return self._floats(*span)
        return np.array(self._pixels[slice(*span)], np.uint8, order="C", subok=False)

    def _floats(self, start: int, stop: int) -> NDArray[np.float32]:
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.array(self._pixels[start:stop], np.float32, order="C", subok=False)
        finite = np.isfinite(values).reshape(len(values), -1).all(1)
        if not finite.all():
            where = start + int(np.argmin(finite))
            raise SourceError(f"{self._description}: example {where} holds a NaN or an infinity")
        return values

    def _redrawn(self, span: tuple[int, int]) -> NDArray[np.generic]:
        start, stop = span
        out = np.empty((stop - start, *self.info.shape), np.uint8)
        for row, example in enumerate(self._pixels[start:stop]):
            out[row] = _redraw(example, self._size, self._channels)
        return out

    def _final_shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._pixels.shape[1:]
        if not self._redraw:
            return shape
        if self._pixels.dtype != np.uint8 or len(shape) != 3:
            kind = "plain points" if len(shape) == 1 else "float images"
            raise ArgumentError(
                f"{self._description}: size= and channels= do not apply to {kind}, only to uint8 "
                "images; scale floats before they are given"
            )
        channels, height, width = shape
        if self._channels is not None and channels not in _IMAGE_CHANNELS:
            raise ArgumentError(
                f"{self._description}: channels={self._channels} does not apply to images of "
                f"{channels} channels, only to 1 (grey), 3 (RGB) or 4 (RGBA)"
            )
        side = self._size
        return (self._channels or channels, side or height, side or width)


def as_array(array: Any, description: str = "array") -> NDArray[Any]:
    """A NumPy view of a torch tensor or array, uint8 or floating point, N >= 1 examples.

    Raises:
        SourceError: another data type or number of dimensions, or no examples.
    """
    values: NDArray[Any] = _from_tensor(array, description) if is_tensor(array) else array
    if values.dtype != np.uint8 and values.dtype.kind != "f":
        raise SourceError(
            f"{description} has data type {values.dtype}; give uint8 (0..255) or floats "
            "(images in [-1, 1])"
        )
    if not 2 <= values.ndim <= 4:
        raise SourceError(
            f"{description} has shape {values.shape}; give images (N, C, H, W), grey images "
            "(N, H, W) or points (N, D)"
        )
    if 0 in values.shape:
        raise SourceError(f"{description} has shape {values.shape} and so holds no examples")
    return values


def _from_tensor(tensor: Any, description: str) -> NDArray[Any]:
    torch = sys.modules["torch"]
    try:
        tensor = tensor.detach().cpu()
        # NumPy has no bfloat16; float32 holds each of its values exactly.
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.float()
        values: NDArray[Any] = tensor.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        # Sparse, quantised and meta tensors have no dense values to read.
        raise SourceError(f"{description} is a tensor that cannot be read: {error}") from error
    return values


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a torch tensor, told without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _images_first(values: NDArray[Any], description: str) -> tuple[NDArray[Any], bool]:
    """Images as (N, C, H, W), and whether they are RGBA that came with the channels last."""
    if values.ndim == 3:
        return values[:, None], False
    last = values.ndim == 4 and values.dtype == np.uint8 and values.shape[3] in _IMAGE_CHANNELS
    # Sides of 8 and more: an (N, 2, 4, 4) array is two channels of 4x4, not a strip of RGBA.
    if last and min(values.shape[1:3]) >= 8:
        return values.transpose(0, 3, 1, 2), values.shape[3] == 4
    return values, False


def _redraw(
    example: NDArray[np.uint8], size: int | None, channels: int | None
) -> NDArray[np.uint8]:
    """Scale and convert one (C, H, W) uint8 image."""
    if channels is None:
        # Channels of no known meaning are scaled one by one.
        planes = [fit(Image.fromarray(np.ascontiguousarray(plane)), size) for plane in example]
        return np.stack([np.asarray(plane) for plane in planes])
    squeezed = example[0] if len(example) == 1 else example.transpose(1, 2, 0)
    image = Image.fromarray(np.ascontiguousarray(squeezed))
    return to_pixels(fit(with_channels(image, channels), size))
