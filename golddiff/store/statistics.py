"""Mean and covariance factor of a training set: C = U diag(L) U^T, unbiased (N - 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh

from golddiff.kernels.stored import Stored
from golddiff.store.artifacts import digest_of
from golddiff.store.needs import check_images, covariance_bytes
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import for_each, map_ordered
from golddiff.system.residency import parts, resident_rows

# 1024 products of two integers in -128..127 sum to at most 2^24, which float32 holds exactly:
# uint8 moments are exact integers and do not depend on the order of the images.
CHUNK = 1024
IMAGES_AT_ONCE = 512  # images projected in one batch

# Symmetric products A A^T are computed in tiles of this side, on and above the diagonal only.
SIDE = 512

TENSORS = ("mean", "eigenvalues", "eigenvectors", "images")

# The covariance costs two operations per image and entry: over half an hour on a laptop for 1.28
# million images of 3 x 64 x 64 (4e14 operations), a few minutes for 100,000 of them. The effect of
# sampling on masks is in docs/results/scale.md.
LARGE = 4096  # values per image up to which the factor uses all images
FACTOR_IMAGES = 100_000  # largest random sample for images with more values


@dataclass(frozen=True)
class Factor:
    """Mean and factored covariance of a set of images in [-1, 1] units."""

    mean: F64  # (D,) float64
    # (r,) float64, descending, all > 0; r = rank, at most min(D, N - 1)
    eigenvalues: F64
    eigenvectors: F64  # (D, r) float64, orthonormal columns
    images: int  # number of images that the mean and covariance were computed from

    @classmethod
    def of_tensors(cls, tensors: dict[str, NDArray[Any]], d: int) -> Factor | None:
        """The factor with these :meth:`tensors`; None if they do not fit images of d values."""
        values = tensors.get("eigenvalues", np.empty(()))
        rank = values.size
        shapes = {"mean": (d,), "eigenvalues": (rank,), "eigenvectors": (d, rank), "images": ()}
        if {name: array.shape for name, array in tensors.items()} != shapes:
            return None
        images = int(tensors.pop("images"))
        valid = all(a.dtype == np.float64 and np.isfinite(a).all() for a in tensors.values())
        return cls(**tensors, images=images) if valid and (values > 0).all() else None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The fields as named arrays, for an artifact."""
        return {name: np.asarray(getattr(self, name)) for name in TENSORS}

    @cached_property
    def digest(self) -> str:
        """Checksum of :meth:`tensors`, equal to the one in the artifact's header."""
        return digest_of(self.tensors())

    def shrinkage(self, sigma: float) -> F64:
        """The Wiener gains L / (L + sigma^2), (r,)."""
        return self.eigenvalues / (self.eigenvalues + sigma**2)

    def halves(self, sigma: float, dtype: type[np.floating], entries: int) -> NDArray[Any]:
        """H (D, rank) of the Wiener matrix W = U diag(L / (L + sigma^2)) U^T = H H^T.

        ``entries`` of W will be stored beside it; the memory check covers both.
        """
        d = len(self.mean)
        require_memory(
            np.dtype(dtype).itemsize * (entries + d * len(self.eigenvalues)),
            f"a matrix for images of {d:,} values",
            "smaller images would fit, such as size=64",
        )
        halves: NDArray[Any] = np.empty(self.eigenvectors.shape, dtype)
        roots = np.sqrt(self.shrinkage(sigma))
        return np.multiply(self.eigenvectors, roots, out=halves, casting="same_kind")

    def wiener_matrix(self, sigma: float, dtype: type[np.floating] = np.float64) -> NDArray[Any]:
        """W = U diag(L / (L + sigma^2)) U^T, (D, D), computed in ``dtype``; exactly symmetric."""
        d = len(self.mean)
        halves = self.halves(sigma, dtype, d * d)
        matrix: NDArray[Any] = np.empty((d, d), dtype)

        def tile(corner: tuple[int, int]) -> None:
            rows, columns = (slice(i, i + SIDE) for i in corner)
            product = halves[rows] @ halves[columns].T
            matrix[rows, columns] = product
            if rows != columns:
                matrix[columns, rows] = product.T

        for_each(tile, combinations_with_replacement(range(0, d, SIDE), 2))
        return matrix


@dataclass(frozen=True, eq=False)
class Axes:
    """Directions to project images on."""

    mean: F32  # (D,) float32, the origin of the coordinates
    columns: F32  # (D, r) float32, the directions

    def coordinates(self, values: Callable[[I64], F32], rows: I64) -> F32:
        """Coordinates (k, r) of the images at ``rows``; ``values(rows)`` reads them, (k, D)."""
        batches = map_ordered(
            lambda part: (values(part[1]) - self.mean) @ self.columns, parts(rows, IMAGES_AT_ONCE)
        )
        return np.concatenate([np.empty((0, self.columns.shape[1]), np.float32), *batches])


def factor_rows(rows: I64, d: int, images: int | None = None, seed: int = 0) -> I64:
    """The rows among ``rows`` to compute a factor from, ascending.

    ``images`` of them are drawn at random without replacement; None takes all, or
    ``FACTOR_IMAGES`` of large images.
    """
    n = len(rows)
    if images is None:
        images = FACTOR_IMAGES if d > LARGE else n
    if images >= n:
        return rows
    drawn = np.random.default_rng([3, seed]).choice(n, images, replace=False, shuffle=False)
    drawn.sort()
    return rows[drawn]


@dataclass(frozen=True)
class Moments:
    """Sums over the stored values v of a set of images; sums of disjoint sets add up."""

    n: int  # number of images
    shift: float  # subtracted from v: 128 for uint8, 0 for floats
    first: F64  # (D,) float64 sum of v - shift
    # (D, D) float64 sum of (v - shift)(v - shift)^T in tiles of side ``SIDE`` on and above the
    # diagonal, 0 in the others
    second: F64

    def merge(self, other: Moments) -> Moments:
        """The moments of the union of two disjoint sets; exact for uint8."""
        return Moments(
            self.n + other.n, self.shift, self.first + other.first, self.second + other.second
        )

    def factor(self, scale: float, offset: float) -> Factor:
        """Mean and covariance factor of the images value = v * scale + offset.

        This overwrites ``second``, because a copy may take a gigabyte.
        """
        n, d = self.n, len(self.first)
        if n == 0:
            raise ZeroDivisionError("the covariance of no images is not defined")
        mean = self.first / n
        for i in range(0, d, SIDE):
            block = self.second[i : i + SIDE, i:]
            block -= np.outer(n * mean[i : i + SIDE], mean[i:])
            block *= scale**2 / max(n - 1, 1)
        return _truncated(mean * scale + offset + scale * self.shift, *_eigen(self.second), n)


def moments(
    flat: NDArray[np.generic], rows: I64, progress: Callable[[int], None] = lambda done: None
) -> Moments:
    """The moments of stored images (N, D), uint8 or float32, at ``rows``."""
    d = flat.shape[1]
    first = torch.zeros(d, dtype=torch.float64, device="cpu")
    second = torch.zeros(d, d, dtype=torch.float64, device="cpu")
    done = 0
    with torch.autocast("cpu", enabled=False):  # whose products have few digits
        for values in _shifted(flat, rows):
            first += values.sum(0, dtype=torch.float64)
            for i in range(0, d, SIDE):
                second[i : i + SIDE, i:] += values[:, i : i + SIDE].T @ values[:, i:]
            done += len(values)
            progress(done)
    return Moments(done, _shift(flat), first.numpy(), second.numpy())


def _shift(flat: NDArray[np.generic]) -> float:
    return 128.0 if flat.dtype == np.uint8 else 0.0


def _shifted(flat: NDArray[np.generic], rows: I64) -> Iterator[torch.Tensor]:
    dtype = torch.float32 if flat.dtype == np.uint8 else torch.float64
    for _, part in parts(rows, CHUNK):
        with resident_rows(flat, part) as (loaded, local_rows):
            stored = torch.from_numpy(loaded[local_rows])
        yield stored.to(dtype) - _shift(flat)


def covariance_factor(
    stored: Stored, rows: I64 | None = None, progress: Callable[[int], None] = lambda done: None
) -> Factor:
    """Mean and covariance factor of the stored images at ``rows``, or of all."""
    flat, scale, offset = stored.flat, stored.scale, stored.offset
    rows = np.arange(len(flat)) if rows is None else rows
    check_images(len(rows), flat.shape[1:], covariance_bytes, "the covariance of")
    if 0 < len(rows) <= flat.shape[1]:
        values = torch.cat(list(_shifted(flat, rows))).double()
        return _gram_factor(values, scale, offset + scale * _shift(flat))
    return moments(flat, rows, progress).factor(scale, offset)


def _gram_factor(values: torch.Tensor, scale: float, offset: float) -> Factor:
    """The factor of N <= D images, from the (N, N) Gram matrix with the same eigenvalues."""
    n = len(values)
    mean = values.mean(0)
    centred = ((values - mean) * scale).numpy()
    eigenvalues, coefficients = _eigen(centred @ centred.T / max(n - 1, 1))
    rank = np.count_nonzero(eigenvalues > 1e-12 * max(eigenvalues[0], 1e-300))
    eigenvalues, coefficients = eigenvalues[:rank], coefficients[:, :rank]
    eigenvectors = centred.T @ coefficients / np.sqrt(eigenvalues * max(n - 1, 1))
    return _truncated((mean * scale + offset).numpy(), eigenvalues, eigenvectors, n)


def _eigen(matrix: F64) -> tuple[F64, F64]:
    """Eigenvalues, descending, and eigenvectors of a symmetric matrix, which is overwritten.

    Only the upper triangle is read. The precision is always float64: float32 errors of about 1e-7
    of the largest eigenvalue exceed the smallest eigenvalues. On CIFAR-10 at sigma 0.01 they
    changed one mask entry in 30, and Wiener's output by up to 3e-3. SciPy's LAPACK works in place
    and took 0.6 times as long as torch's on 4,608 values.
    """
    eigenvalues, eigenvectors = eigh(matrix.T, overwrite_a=True, check_finite=False, driver="evd")
    return eigenvalues[::-1], eigenvectors[:, ::-1]


def _truncated(mean: F64, eigenvalues: F64, eigenvectors: F64, images: int) -> Factor:
    """The factor without directions whose eigenvalue is only rounding error."""
    top = float(eigenvalues[0]) if len(eigenvalues) else 0.0
    rank = np.count_nonzero(eigenvalues > 1e-13 * top)
    return Factor(
        np.ascontiguousarray(mean),
        np.ascontiguousarray(eigenvalues[:rank]),
        np.ascontiguousarray(eigenvectors[:, :rank]),
        images,
    )
