"""The parts of an index that are fitted to a sample: coordinates and cluster centres."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.index.views import View, columns_of
from golddiff.store.images import ImageStore
from golddiff.system.parallel import in_order

SAMPLE = 8192
MEMBERS = 256  # a cluster has at least so many on average
LARGEST = 127  # of an int8
ROOM = 1.25  # what lies further out than this times any of the sample is clipped
MOST_CLUSTERS = 1 << 16  # their numbers are uint16
ROUNDS = 6  # of Lloyd's


@dataclass(frozen=True)
class Fitted:
    """How one view's locations see an image x: z = basis (x[columns] - mean), r numbers each.

    Attributes:
        columns: (T, W) int64 input values.
        mean: (T, W) float32.
        basis: (T, r, W) float32, orthonormal rows.
        scale: (T, r) float32: a coordinate is kept as round(z / scale) in -127..127.
        centres: (T, C, r) float32, of the clusters, in units of z.
    """

    columns: NDArray[np.int64]
    mean: NDArray[np.float32]
    basis: NDArray[np.float32]
    scale: NDArray[np.float32]
    centres: NDArray[np.float32]

    @property
    def tiles(self) -> int:
        """T."""
        return len(self.columns)


def check_fitted(fit: Fitted, view: View, shape: tuple[int, ...]) -> None:
    """Raise where compiled code would read outside an array.

    Raises:
        ValueError: arrays of other shapes, types or windows, or with values that are no numbers.
    """
    columns = columns_of(view, shape)
    tiles, width = columns.shape
    if fit.columns.dtype != np.int64 or not np.array_equal(fit.columns, columns):
        raise ValueError("columns of other windows")
    if fit.basis.ndim != 3 or fit.centres.ndim != 3:
        raise ValueError("a basis or centres of another shape")
    r, clusters = fit.basis.shape[1], fit.centres.shape[1]
    if not (1 <= r <= width and 1 <= clusters <= MOST_CLUSTERS):
        raise ValueError(f"{r} coordinates, {clusters} clusters")
    expected = {
        "mean": (tiles, width),
        "basis": (tiles, r, width),
        "scale": (tiles, r),
        "centres": (tiles, clusters, r),
    }
    for name, wanted in expected.items():
        array = getattr(fit, name)
        if array.shape != wanted or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(f"{name}: {array.dtype} of shape {array.shape}")


def fitted(view: View, store: ImageStore, sample: NDArray[np.float32]) -> Fitted:
    """Fit a view to a sample of images (S, D); the same for the same sample."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    columns = columns_of(view, store.shape)
    clusters = max(1, min(view.clusters, store.n // MEMBERS, len(sample)))

    def fit(tile: int) -> tuple[NDArray[np.float32], ...]:
        window = sample[:, columns[tile]]
        mean = window.mean(axis=0, dtype=np.float64).astype(np.float32)
        window = window - mean
        basis = _principal(window, min(view.coordinates, *window.shape), tile)
        z = window @ basis.T
        return mean, basis, scale_of(np.abs(z).max(axis=0)), _centres(z, clusters, tile)

    # A location a thread, and no threads within it.
    with threadpool_limits(1):
        means, bases, scales, centres = zip(*in_order(fit, range(len(columns))), strict=True)
    most = max(map(len, centres))
    return Fitted(
        columns,
        np.stack(means),
        np.stack(bases),
        np.stack(scales),
        np.stack([_padded(c, most) for c in centres]),
    )


def scale_of(reach: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of coordinates (r,) that reach so far in a sample: of one that is always 0, 1."""
    scaled = reach * np.float32(ROOM / LARGEST)
    return np.where(scaled > 0, scaled, np.float32(1)).astype(np.float32)


def rounded(z: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Coordinates (r, n) as whole multiples, -127 to 127, of their scales (r,)."""
    multiples: NDArray[np.float32] = np.clip(np.rint(z / scale[:, None]), -LARGEST, LARGEST)
    return multiples


def _principal(window: NDArray[np.float32], r: int, seed: int) -> NDArray[np.float32]:
    """The first r principal axes (r, W), orthonormal whatever the window's rank."""
    from sklearn.utils.extmath import randomized_svd  # slow to import, as below

    if not window.any():
        return np.eye(r, window.shape[1], dtype=np.float32)
    _, _, axes = randomized_svd(window, r, n_iter=2, random_state=seed)
    # Axes past the rank come out as noise: made orthonormal in float64 they do no harm.
    q, _ = np.linalg.qr(axes.T.astype(np.float64))
    return np.ascontiguousarray(q.T.astype(np.float32))


def _centres(z: NDArray[np.float32], clusters: int, seed: int) -> NDArray[np.float32]:
    """K-means centres (C, r); fewer where there are fewer distinct points."""
    from sklearn.cluster import KMeans

    distinct = np.unique(z, axis=0)
    if len(distinct) <= clusters:
        return distinct
    means = KMeans(clusters, init="random", n_init=1, max_iter=ROUNDS, random_state=seed, tol=0)
    centres: NDArray[np.float32] = means.fit(z).cluster_centers_.astype(np.float32)
    return centres


def _padded(centres: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Repeat the first centre: of equals the first gets all members, the others none."""
    missing = count - len(centres)
    return np.concatenate([centres, np.repeat(centres[:1], missing, axis=0)])
