"""Strategies to find the k nearest images: ours, and FAISS's, over the same principal coordinates.

A strategy is a function ``search(store, x, sigma, k) -> rows``; what it makes once it makes before.
Of golddiff's own index nothing is called but in :func:`through_index`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.kernels.lowest import lowest
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import map_ordered
from golddiff_lab.peers.faiss_flat import load_faiss

COMPONENTS = 128
IMAGES_AT_ONCE = 2048

Queries = NDArray[np.float32]
Rows = NDArray[np.int64]
# (store, x (b, D) float32, sigma, k) -> (b, k) int64 rows, in any order; -1 for one not found.
Search = Callable[[ImageStore, Queries, float, int], Rows]


@dataclass(frozen=True)
class Strategy:
    """A way to search.

    Attributes:
        name: in the table.
        search: the function.
        bytes: that what it keeps in memory takes, beyond the store; None where not known.
    """

    name: str
    search: Search
    bytes: int | None = None


@dataclass(frozen=True)
class Coordinates:
    """Images on their first principal components, z_i = (x_i - mean) B.

    Attributes:
        mean: (D,) float32.
        basis: (D, r) float32, orthonormal columns.
        z: (N, r) float32.
    """

    mean: NDArray[np.float32]
    basis: NDArray[np.float32]
    z: NDArray[np.float32]

    @classmethod
    def of(cls, store: ImageStore) -> Coordinates:
        """Those of a store, at most ``COMPONENTS``."""
        factor = store.factor()
        mean = factor.mean.astype(np.float32)
        basis = np.ascontiguousarray(factor.eigenvectors[:, :COMPONENTS].astype(np.float32))
        rows = store.rows_of(None)
        parts = [rows[i : i + IMAGES_AT_ONCE] for i in range(0, store.n, IMAGES_AT_ONCE)]
        return cls(mean, basis, np.concatenate([(store.values(p) - mean) @ basis for p in parts]))

    def project(self, x: Queries) -> NDArray[np.float32]:
        """Queries (b, D) as coordinates (b, r)."""
        coordinates: NDArray[np.float32] = ((x - self.mean) @ self.basis).astype(np.float32)
        return coordinates


def nearest_exactly(coordinates: Coordinates, x: Queries, k: int) -> Rows:
    """The k nearest images (b, k) by their coordinates, in float64: what recall is taken to."""
    z = coordinates.z.astype(np.float64)
    squares = np.einsum("nr,nr->n", z, z)
    distances = squares - 2 * coordinates.project(x).astype(np.float64) @ z.T
    return np.argpartition(distances, k - 1, axis=1)[:, :k]


def linear(coordinates: Coordinates) -> Strategy:
    """Every image's distance by one product, then the k lowest."""
    z = torch.from_numpy(coordinates.z)
    own = z.square().sum(dim=1)

    def search(store: ImageStore, x: Queries, sigma: float, k: int) -> Rows:
        queries = torch.from_numpy(coordinates.project(x))
        return _lowest_of_each(torch.addmm(own, queries, z.T, alpha=-2).numpy(), k)

    return Strategy("linear (ours)", search, coordinates.z.nbytes + 4 * len(z))


def through_index(store: ImageStore) -> Strategy | None:
    """All images' blocks as the store's index keeps them, in memory, then the k lowest.

    None where no index has been built.
    """
    from golddiff.supports.index import Index
    from golddiff.supports.index.distances import KeptBlocks
    from golddiff.supports.index.indexing import FOLDER

    if not (store.path / FOLDER).exists():
        return None
    index = Index.open(store)
    metric = KeptBlocks.of(index, np.ones((1, store.d), np.float32))

    def search(store: ImageStore, x: Queries, sigma: float, k: int) -> Rows:
        return _lowest_of_each(metric.distances(store, x, store.rows_of(None))[:, 0], k)

    return Strategy("index (ours)", search, store.n * index.blocks.numbers)


def _lowest_of_each(distances: NDArray[np.float32], k: int) -> Rows:
    return np.stack(list(map_ordered(lambda line: lowest(line, k), list(distances))))


def of_faiss(
    coordinates: Coordinates, lists: int, probes: tuple[int, ...], threads: int
) -> Iterator[Strategy]:
    """FAISS's ``IndexFlatL2``, and ``IndexIVFFlat`` at each number of lists probed.

    Args:
        coordinates: of the images.
        lists: that the inverted file has, trained on all images.
        probes: numbers of them that a search looks through.
        threads: for FAISS to use.

    Raises:
        ArgumentError: faiss is not installed.
    """
    faiss = load_faiss()
    faiss.omp_set_num_threads(threads)
    points = coordinates.z
    n, r = points.shape
    flat = faiss.IndexFlatL2(r)
    flat.add(points)

    def searching(index: Any, probe: int | None = None) -> Search:
        def search(store: ImageStore, x: Queries, sigma: float, k: int) -> Rows:
            if probe is not None:
                index.nprobe = probe
            rows: Rows = index.search(coordinates.project(x), k)[1]
            return rows

        return search

    yield Strategy("FAISS IndexFlatL2", searching(flat), points.nbytes)
    inverted = faiss.IndexIVFFlat(faiss.IndexFlatL2(r), r, lists)
    inverted.cp.seed = 0
    inverted.cp.min_points_per_centroid = 1  # no words about small sets
    inverted.train(points)
    inverted.add(points)
    size = points.nbytes + 8 * n + 4 * lists * r
    for probe in probes:
        name = f"FAISS IndexIVFFlat, {probe:,} of {lists:,} lists"
        yield Strategy(name, searching(inverted, probe), size)


def named(text: str) -> Strategy:
    """The strategy that ``module:function`` names.

    Raises:
        ArgumentError: there is no such function.
    """
    module, _, name = text.partition(":")
    try:
        search = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(
            f"search: got {text!r}, expected module:function that can be imported ({error})"
        ) from None
    if not callable(search):
        raise ArgumentError(f"search: got {text!r}, which is no function")
    return Strategy(text, search)


def checked(rows: Any, queries: int, k: int, n: int, name: str) -> Rows:
    """What a search returned, as (queries, k) rows.

    Raises:
        ArgumentError: something else.
    """
    found = rows.numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
    if found.shape != (queries, k) or found.dtype.kind not in "iu":
        raise ArgumentError(
            f"search: {name} returned {found.dtype} of shape {found.shape}, expected rows "
            f"({queries}, {k})"
        )
    if found.min() < -1 or found.max() >= n:
        raise ArgumentError(f"search: {name} returned rows outside 0 to {n - 1}")
    return found.astype(np.int64)
