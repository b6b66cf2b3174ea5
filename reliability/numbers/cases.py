"""Random training sets, noise levels and queries, edge cases included."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from golddiff.store.images import ImageStore
from reliability.reference import Array

KINDS = (
    *("noise", "smooth", "noise", "smooth", "points", "latents"),
    *("duplicates", "constant", "one image", "extreme", "black and white"),
)


@dataclass(frozen=True)
class Case:
    """A training set with queries.

    Attributes:
        kind: kind of training set, a name in ``KINDS``.
        store: the training set.
        images: (N, D) float64 images, computed from the stored values.
        sigma: noise level, 0.002 to 200.
        x: (B, *shape) float32 queries: noisy images, or pure noise.
        near: whether the queries are noisy images, as in sampling.
    """

    kind: str
    store: ImageStore
    images: Array
    sigma: float
    x: torch.Tensor
    near: bool

    @property
    def queries(self) -> Array:
        """The queries as (B, D) float64."""
        return self.x.double().numpy().reshape(len(self.x), -1)

    @property
    def scale(self) -> float:
        """The unit of errors: the largest absolute value of the images, at least 1."""
        return max(1.0, float(np.abs(self.images).max()))


def random_store(rng: np.random.Generator, folder: Path) -> tuple[str, ImageStore]:
    """A small training set of random kind, shape and size."""
    kind = str(rng.choice(KINDS))
    n = 1 if kind == "one image" else int(rng.integers(2, 40))
    if kind in ("points", "latents", "extreme"):
        shape = (int(rng.integers(1, 9)),) if kind != "latents" else _shape(rng)
        values = rng.standard_normal((n, *shape)).astype(np.float32)
        if kind == "extreme":
            values *= np.float32(10.0 ** rng.integers(-3, 4))
        pixels = values
    else:
        shape = _shape(rng)
        pixels = _pixels(rng, kind, n, shape)
    labels = np.arange(n) % 3 if n >= 6 and rng.random() < 0.3 else None
    return kind, ImageStore.build(pixels, folder, labels)


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.choice((1, 2, 3))), int(rng.integers(1, 9)), int(rng.integers(1, 9))


def _pixels(
    rng: np.random.Generator, kind: str, n: int, shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    if kind == "constant":
        level = rng.integers(0, 256, (n, 1, 1, 1))
        return np.broadcast_to(level, (n, *shape)).astype(np.uint8)
    if kind == "black and white":
        return (rng.integers(0, 2, (n, *shape)) * 255).astype(np.uint8)
    if kind == "smooth":
        coarse = rng.standard_normal((n, shape[0], 2, 2))
        size = tuple(shape[1:])
        fine = torch.nn.functional.interpolate(torch.from_numpy(coarse), size, mode="bilinear")
        return (fine.numpy().clip(-2, 2) * 60 + 128).astype(np.uint8)
    pixels = rng.integers(0, 256, (n, *shape)).astype(np.uint8)
    if kind == "duplicates":
        pixels = pixels[rng.integers(0, max(1, n // 4), n)]
        # Near duplicates differ by one grey level of one value.
        pixels[0].reshape(-1)[0] ^= 1
    return pixels


def random_case(rng: np.random.Generator, kind: str, store: ImageStore) -> Case:
    """Random queries at a random noise level."""
    sigma = float(np.exp(rng.uniform(math.log(0.002), math.log(200))))
    raw = np.asarray(store.flat, np.float64)
    images = raw / 127.5 - 1 if store.is_pixels else raw
    near = bool(rng.random() < 0.8)
    b = int(rng.integers(1, 4))
    noise = torch.from_numpy(rng.standard_normal((b, *store.shape)).astype(np.float32))
    rows = rng.integers(0, store.n, b)
    x = sigma * noise + (store.images(rows) if near else 0)
    return Case(kind, store, images, sigma, x, near)
