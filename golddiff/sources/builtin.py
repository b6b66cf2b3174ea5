"""The built-in training sets, without a download: digits, moons and patches."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from golddiff.sources.arrays import open_array
from golddiff.sources.decode import to_pixels, with_channels
from golddiff.sources.source import Rows
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError

_MOONS = 2000
_PATCH_SIDE = 32
_PATCHES = 10_000
# Each block of examples has its own generator: example i depends only on seed, size and i.
_BLOCK = 1024
_TRIES = 4  # candidate crops of each example
# Ratio of neighbouring scales; at the smallest, a crop spans half of the longer side.
_SCALE_FACTOR = 2**-0.25


def open_builtin(name: str, options: SourceOptions) -> Rows:
    """Open the built-in set ``digits``, ``moons`` or ``patches``."""
    options.refuse(f"the built-in {name}")
    return {"digits": _digits, "moons": _moons, "patches": _patches}[name](options)


def _digits(options: SourceOptions) -> Rows:
    """1,797 handwritten digits: (1, 8, 8) uint8, ten classes."""
    table = np.loadtxt(_sklearn_file("data", "digits.csv.gz"), delimiter=",")
    pixels = np.round(table[:, :64].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels, names = table[:, 64].astype(np.int64), tuple(map(str, range(10)))
    return open_array(pixels, options, "digits of scikit-learn", labels, names)


def _moons(options: SourceOptions) -> Rows:
    """Two interleaved half circles: (2,) float32 points in about [-1, 1], two classes."""
    from sklearn.datasets import make_moons

    if options.seed >= 1 << 32:
        raise ArgumentError(
            f"seed: got {options.seed}, expected less than 2**32 for the built-in moons"
        )
    points, labels = make_moons(
        n_samples=options.limit or _MOONS, noise=0.05, random_state=options.seed
    )
    # The half circles span [-1, 2] x [-0.5, 1]; both axes are scaled by the same factor.
    centred = ((points - np.array([0.5, 0.25])) / 1.5).astype(np.float32)
    labels = labels.astype(np.int64)
    return open_array(centred, options, "moons of scikit-learn", labels, ("upper", "lower"))


def _patches(options: SourceOptions) -> Rows:
    """Random crops of scikit-learn's two photographs at several scales, half of them mirrored.

    Each example is the candidate of highest contrast out of four; without this choice, half of the
    crops would be plain sky. ``size`` is the side of a crop, ``limit`` the number of crops.
    """
    side, channels = options.size or _PATCH_SIDE, options.channels or 3
    planes = _pyramid(side, channels)
    room = np.array([plane.shape[1:] for plane in planes]) - side + 1

    def crops(start: int, stop: int) -> NDArray[np.uint8]:
        out = np.empty((stop - start, channels, side, side), np.uint8)
        for block in range(start // _BLOCK, (stop - 1) // _BLOCK + 1):
            draws = np.random.default_rng([options.seed, side, block]).random((_BLOCK, 3, _TRIES))
            first = block * _BLOCK
            for i in range(max(start, first) - first, min(stop - first, _BLOCK)):
                chosen = (draws[i, 0] * len(planes)).astype(np.int64)
                corners = (draws[i, 1:].T * room[chosen]).astype(np.int64)
                candidates = [
                    planes[plane][:, top : top + side, left : left + side]
                    for plane, (top, left) in zip(chosen, corners, strict=True)
                ]
                out[first + i - start] = max(candidates, key=_contrast)
        return out

    description = f"patches of photographs, seed {options.seed}"
    total = options.limit or _PATCHES
    return Rows(crops, total, (channels, side, side), np.uint8, options, description)


def _contrast(crop: NDArray[np.uint8]) -> int:
    """Variance of the values times their number squared; integers, so there is no rounding."""
    values = crop.astype(np.int64)
    return crop.size * int((values * values).sum()) - int(values.sum()) ** 2


def _pyramid(side: int, channels: int) -> list[NDArray[np.uint8]]:
    """The photographs at each scale, original and mirrored: (C, H, W) each, H, W >= side."""
    planes: list[NDArray[np.uint8]] = []
    for photograph in ("china.jpg", "flower.jpg"):
        image = with_channels(Image.open(_sklearn_file("images", photograph)), channels)
        scale = max(1.0, side / min(image.size))
        if image.size[0] * image.size[1] * scale * scale > 1 << 26:
            raise ArgumentError(f"size: got {side}, expected at most 5000 for the built-in patches")
        smallest = min(scale, max(side / min(image.size), 2 * side / max(image.size)))
        while scale >= smallest:
            width, height = (max(side, round(length * scale)) for length in image.size)
            pixels = to_pixels(image.resize((width, height), Image.Resampling.LANCZOS))
            planes += [pixels, np.ascontiguousarray(pixels[:, :, ::-1])]
            scale *= _SCALE_FACTOR
    return planes


def _sklearn_file(*parts: str) -> Path:
    """The path of a data file of scikit-learn; importing scikit-learn would take seconds."""
    package = find_spec("sklearn")
    assert package is not None
    return Path(str(package.origin)).parent.joinpath("datasets", *parts)
