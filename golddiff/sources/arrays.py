"""Arrays and tensors as sources: images or plain points."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from golddiff.sources.decode import fit, to_image, to_pixels, with_channels
from golddiff.sources.source import Rows, Source
from golddiff.sources.source_options import SourceOptions, ValueRange
from golddiff.system.errors import ArgumentError, SourceError
from golddiff.system.files import readable
from golddiff.system.numbers import F32

_IMAGE_CHANNELS = (1, 3, 4)
OUTLIER = 2.0  # larger magnitudes cannot be a filter's overshoot of [-1, 1]: value_range is wrong


def open_array(
    array: Any,
    options: SourceOptions,
    description: str = "array",
    labels: Any = None,
    class_names: tuple[str, ...] | None = None,
) -> Rows:
    """Open an array: uint8 stays uint8, other numbers become float32.

    NaN and infinity raise SourceError when the examples are read.

    Args:
        array: a tensor or array: (N, C, H, W) images, (N, H, W) grey images or (N, D) points.
            Channels-last images with sides of 8 or more, (N, H, W, 1 | 3) or uint8 RGBA
            (N, H, W, 4), become channels first; RGBA is composited on white.
        options: ``size`` and ``channels`` convert uint8 images only; floats must have them.
        description: one line for the manifest.
        labels: the source's own (N,) class indices, or None.
        class_names: one name for each of the source's own classes, or None.
    """
    array = _check_array(as_array(array, description), description, options)
    pixels, rgba = _channels_first(array, description)
    size, channels = options.size, 3 if rgba and options.channels is None else options.channels
    dtype = np.uint8 if pixels.dtype == np.uint8 else np.float32
    shape = _resized_shape(pixels, size, channels, description)
    resized = shape != pixels.shape[1:]

    def read(start: int, stop: int) -> NDArray[Any]:
        if resized:
            return np.stack([_resize(example, size, channels) for example in pixels[start:stop]])
        if dtype == np.uint8:
            return np.array(pixels[start:stop], order="C", subok=False)
        return _read_floats(pixels[start:stop], start, description, options.value_range)

    is_pixels = dtype == np.uint8 or isinstance(options.value_range, tuple)
    return Rows(
        read, len(pixels), shape, dtype, options, description, labels, class_names,
        is_pixels=is_pixels,
    )  # fmt: skip


def is_array(value: object) -> bool:
    """Whether ``value`` is a NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray | torch.Tensor)


def as_array(value: Any, description: str) -> NDArray[Any]:
    """A NumPy view of an array or a torch tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    # Sparse, quantised and meta tensors have no dense values to read.
    with readable(f"{description} is a tensor that cannot be read"):
        tensor = value.detach().cpu()
        # NumPy has no bfloat16; float32 holds all its values exactly.
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.float()
        return tensor.resolve_conj().resolve_neg().numpy()


def _read_floats(
    examples: NDArray[Any], start: int, description: str, value_range: ValueRange
) -> F32:
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(value_range, tuple):
            least, most = value_range  # in float64, as an offset may take all digits of float32
            examples = (np.asarray(examples, np.float64) - least) * (2 / (most - least)) - 1
        values = np.array(examples, np.float32, order="C", subok=False)
    finite = np.isfinite(values).reshape(len(values), -1).all(1)
    if not finite.all():
        row = start + int(np.argmin(finite))
        raise SourceError(f"{description}: example {row} holds a NaN or an infinity")
    if isinstance(value_range, tuple):
        outside = np.abs(values).reshape(len(values), -1).max(1) > OUTLIER
        if outside.any():
            raise SourceError(
                f"{description}: example {start + int(np.argmax(outside))} lies far outside of "
                f"value_range={least:g} to {most:g}; give the least and the largest value"
            )
    return values


def check_values(source: Source, options: SourceOptions) -> None:
    """Raise ArgumentError if value_range is set for uint8, or missing for floats nowhere below 0.

    Arrays of uint8 must not be masks of 0 and 1, which both look black. Reads an array up to its
    first value that will do; of other floats, the first 64 examples.
    """
    shape, where = source.info.shape, source.info.description
    is_float = source.info.dtype != np.uint8
    if options.value_range is not None and not is_float:
        raise ArgumentError(f"{where}: value_range= does not apply to uint8, only to floats")
    is_read = len(shape) == 3 if is_float else isinstance(source, Rows)
    if options.value_range is not None or not is_read:
        return
    least, most = np.inf, -np.inf
    for batch in source.batches(64):
        least, most = min(least, batch.pixels.min()), max(most, batch.pixels.max())
        if least < 0 or (most > 1 and not is_float):
            return
        if not isinstance(source, Rows):
            where = f"the first {len(batch.pixels)} of {where}"
            break
    if not is_float:
        if (least, most) == (0, 1):
            raise ArgumentError(
                f"{where}: holds 0 and 1 only, and 255 is white; give masks multiplied by 255"
            )
    elif most > 0:
        own = least if least < most else 0, most
        low, high = next(((0, v) for v in (1, 255, 65535) if v / 2 <= most <= v), own)
        raise ArgumentError(
            f"value_range: not given, and the floats of {where} lie in {least:g} to {most:g}, not "
            f"around 0; say value_range=({low:.9g}, {high:.9g}) if they are pixels, or "
            'value_range="any" to take them as they are'
        )


def _resize(
    example: NDArray[np.uint8], size: int | None, channels: int | None
) -> NDArray[np.uint8]:
    """Scale and convert one (C, H, W) uint8 image."""

    def scaled(image: Image.Image) -> NDArray[np.uint8]:
        return to_pixels(image if size is None else fit(image, size, size))

    if channels is None:
        # The meaning of the channels is unknown, so each is scaled as a grey image.
        return np.concatenate([scaled(to_image(plane[None])) for plane in example])
    return scaled(with_channels(to_image(example), channels))


def _resized_shape(
    pixels: NDArray[Any], size: int | None, channels: int | None, description: str
) -> tuple[int, ...]:
    if size is None and channels is None:
        return pixels.shape[1:]
    if pixels.ndim == 2:
        raise ArgumentError(f"{description}: size= and channels= do not apply to points")
    present, height, width = pixels.shape[1:]
    shape = (channels or present, size or height, size or width)
    if pixels.dtype != np.uint8 and shape != pixels.shape[1:]:
        raise ArgumentError(
            f"{description}: got float images {pixels.shape[1:]}, expected {shape}; only uint8 "
            "images are scaled or change colours"
        )
    if channels is not None and present not in _IMAGE_CHANNELS:
        raise ArgumentError(
            f"{description}: channels={channels} does not apply to images of {present} channels, "
            "only to 1 (grey), 3 (RGB) or 4 (RGBA)"
        )
    return shape


def _check_array(values: NDArray[Any], description: str, options: SourceOptions) -> NDArray[Any]:
    """The array, once its type, shape and number of examples are known to be valid."""
    kinds = "f" if options.value_range is None else "fiu"
    if values.dtype != np.uint8 and values.dtype.kind not in kinds:
        raise SourceError(
            f"{description} has data type {values.dtype}; give uint8 (0..255), floats (images in "
            "[-1, 1]), or other whole numbers with their range, such as value_range=(0, 65535)"
        )
    if not 2 <= values.ndim <= 4:
        raise SourceError(
            f"{description} has shape {values.shape}; give images (N, C, H, W), grey images "
            "(N, H, W) or points (N, D), and their labels as labels="
        )
    if np.ma.is_masked(values):
        raise SourceError(f"{description} holds masked values; fill them, or leave the images out")
    if 0 in values.shape:
        raise SourceError(f"{description} has shape {values.shape} and so holds no examples")
    return values


def _channels_first(values: NDArray[Any], description: str) -> tuple[NDArray[Any], bool]:
    """Images as (N, C, H, W), and whether they were channels-last RGBA."""
    if values.ndim == 3:
        return values[:, None], False
    # Only sides of 8 or more: an (N, 2, 4, 4) array is two channels of 4x4, not RGBA of 2x4.
    allowed = _IMAGE_CHANNELS if values.dtype == np.uint8 else (1, 3)
    if values.ndim == 4 and values.shape[3] in allowed and min(values.shape[1:3]) >= 8:
        return values.transpose(0, 3, 1, 2), values.shape[3] == 4
    if values.ndim == 4 and values.shape[1] == values.shape[2] >= 8 > values.shape[3]:
        raise SourceError(
            f"{description} has shape {values.shape}, which looks like channels last; give images "
            "(N, C, H, W), such as array.transpose(0, 3, 1, 2)"
        )
    return values, False
