"""The built-in training sets: digits, moons and patches, none of which needs a download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from golddiff.sources.arrays import open_array
from golddiff.sources.decode import to_pixels, with_channels
from golddiff.sources.source import Rows
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError

_MOONS = 2000
_DEFAULT_SIZE = 32
_DEFAULT_COUNT = 10_000

# Examples are drawn by the block, each from its own generator, so that example i depends on
# nothing but the seed, the size and i.
_BLOCK = 1024

# Neighbouring scales differ by this factor, the smallest shows half of a photograph's height.
_STEP = 2**-0.25


def open_builtin(name: str, options: SourceOptions) -> Rows:
    """Open digits, moons or patches."""
    options.refuse_columns(f"the built-in {name}")
    return {"digits": _digits, "moons": _moons, "patches": _patches}[name](options)


def _digits(options: SourceOptions) -> Rows:
    """1,797 handwritten digits: (1, 8, 8) uint8, ten classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    names = tuple(str(name) for name in digits.target_names)
    labels = digits.target.astype(np.int64)
    return open_array(pixels, options, "digits of scikit-learn", labels, names)


def _moons(options: SourceOptions) -> Rows:
    """Two interleaved half circles: (2,) float32 points in about [-1, 1], two classes."""
    from sklearn.datasets import make_moons

    if options.seed >= 1 << 32:
        raise ArgumentError(f"seed is {options.seed}; the built-in moons take less than 2**32")
    points, labels = make_moons(
        n_samples=options.limit or _MOONS, noise=0.05, random_state=options.seed
    )
    # The half circles span [-1, 2] x [-0.5, 1]: moved to the middle, both axes scaled alike.
    centred = ((points - np.array([0.5, 0.25])) / 1.5).astype(np.float32)
    labels = labels.astype(np.int64)
    return open_array(centred, options, "moons of scikit-learn", labels, ("upper", "lower"))


def _patches(options: SourceOptions) -> Rows:
    """Random crops of two photographs, at several scales, half of them mirrored.

    Args:
        options: ``size`` is the side of a crop (32), ``limit`` their number (10,000), ``seed``
            chooses them. Example i depends on seed, size and i alone.
    """
    side, channels = options.size or _DEFAULT_SIZE, options.channels or 3
    planes = _pyramid(side, channels)
    room = np.array([plane.shape[1:] for plane in planes]) - side + 1

    def crops(start: int, stop: int) -> NDArray[np.uint8]:
        out = np.empty((stop - start, channels, side, side), np.uint8)
        for block in range(start // _BLOCK, (stop - 1) // _BLOCK + 1):
            shares = np.random.default_rng([options.seed, side, block]).random((3, _BLOCK))
            which = (shares[0] * len(planes)).astype(np.int64)
            tops, lefts = (shares[1:] * room[which].T).astype(np.int64)
            first = block * _BLOCK
            for i in range(max(start, first) - first, min(stop - first, _BLOCK)):
                top, left = tops[i], lefts[i]
                crop = planes[which[i]][:, top : top + side, left : left + side]
                out[first + i - start] = crop
        return out

    description = f"patches of photographs, seed {options.seed}"
    total = options.limit or _DEFAULT_COUNT
    return Rows(crops, total, (channels, side, side), np.uint8, options, description)


def _pyramid(side: int, channels: int) -> list[NDArray[np.uint8]]:
    """The photographs at each scale, as they are and mirrored: (C, H, W) each, H, W >= side."""
    from sklearn.datasets import load_sample_images

    planes: list[NDArray[np.uint8]] = []
    for photograph in load_sample_images().images:
        image = with_channels(Image.fromarray(photograph), channels)
        scale = max(1.0, side / min(image.size))
        if image.size[0] * image.size[1] * scale * scale > 1 << 26:
            raise ArgumentError("size is too large for the built-in patches; give at most 5000")
        smallest = min(scale, max(side / min(image.size), 2 * side / max(image.size)))
        while scale >= smallest:
            width, height = (max(side, round(length * scale)) for length in image.size)
            pixels = to_pixels(image.resize((width, height), Image.Resampling.LANCZOS))
            planes += [pixels, np.ascontiguousarray(pixels[:, :, ::-1])]
            scale *= _STEP
    return planes
