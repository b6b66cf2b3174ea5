"""Ways to find the k nearest images: ours, and FAISS's, over the same principal coordinates.

A way is a function ``search(store, x, sigma, k) -> rows``; what it makes once it makes before.
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
from golddiff.kernels.products import less_twice_the_products
from golddiff.store.images import ImageStore
from golddiff.supports.index import Index
from golddiff.supports.index.distances import KeptBlocks
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import in_order
from golddiff_lab.search.coordinates import Coordinates

# (store, x (b, D) float32, sigma, k) -> (b, k) int64 rows, in any order; -1 for one not found.
Search = Callable[[ImageStore, NDArray[np.float32], float, int], NDArray[np.int64]]


@dataclass(frozen=True)
class Way:
    """A way to search.

    Attributes:
        name: in the table.
        search: the function.
        bytes: that what it keeps in memory takes, beyond the store; None where not known.
    """

    name: str
    search: Search
    bytes: int | None = None


def projected(coordinates: Coordinates, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Queries (b, D) as coordinates (b, r)."""
    return coordinates.of((x - coordinates.mean).astype(np.float32))


def nearest_exactly(
    store: ImageStore, coordinates: Coordinates, x: NDArray[np.float32], k: int
) -> NDArray[np.int64]:
    """The k nearest images (b, k) by their coordinates, in float64: what recall is taken to."""
    z = coordinates.z[:, : store.n].astype(np.float64)
    squares = np.einsum("rn,rn->n", z, z)
    distances = squares - 2 * projected(coordinates, x).astype(np.float64) @ z
    return np.argpartition(distances, k - 1, axis=1)[:, :k]


def linear(store: ImageStore, coordinates: Coordinates) -> Way:
    """Every image's distance by our products, then the k lowest."""
    z = coordinates.z
    own = np.einsum("rn,rn->n", z, z)[None]

    def search(
        store: ImageStore, x: NDArray[np.float32], sigma: float, k: int
    ) -> NDArray[np.int64]:
        queries = projected(coordinates, x)

        def one(query: NDArray[np.float32]) -> NDArray[np.int64]:
            return lowest(less_twice_the_products(own, z, query[None, None])[0, 0, : store.n], k)

        return np.stack(list(in_order(one, list(queries))))

    return Way("linear (ours)", search, z.nbytes + own.nbytes)


def by_blocks(index: Index) -> Way:
    """All images' blocks as the store's index keeps them, in memory, then the k lowest."""
    metric = KeptBlocks.of(index, np.ones((1, index.store.d), np.float32))

    def search(
        store: ImageStore, x: NDArray[np.float32], sigma: float, k: int
    ) -> NDArray[np.int64]:
        distances = metric.distances(store, x, store.rows_of(None))
        return np.stack(list(in_order(lambda line: lowest(line[0], k), list(distances))))

    return Way("index (ours)", search, index.store.n * index.blocks.numbers)


def faiss_ways(
    store: ImageStore,
    coordinates: Coordinates,
    lists: int,
    probes: tuple[int, ...],
    threads: int,
) -> Iterator[Way]:
    """FAISS's ``IndexFlatL2``, and ``IndexIVFFlat`` at each number of lists probed.

    Args:
        store: the images.
        coordinates: of them.
        lists: that the inverted file has, trained on all images.
        probes: numbers of them that a search looks through.
        threads: for FAISS to use.

    Raises:
        ArgumentError: faiss is not installed.
    """
    faiss = load_faiss()
    faiss.omp_set_num_threads(threads)
    points = np.ascontiguousarray(coordinates.z[:, : store.n].T)
    flat = faiss.IndexFlatL2(points.shape[1])
    flat.add(points)
    yield Way("FAISS IndexFlatL2", _of_faiss(flat, coordinates), points.nbytes)
    coarse = faiss.IndexFlatL2(points.shape[1])
    inverted = faiss.IndexIVFFlat(coarse, points.shape[1], lists)
    inverted.cp.seed = 0
    inverted.cp.min_points_per_centroid = 1  # no words about small sets
    inverted.train(points)
    inverted.add(points)
    for probe in probes:
        size = points.nbytes + 8 * store.n + 4 * lists * points.shape[1]
        search = _of_faiss(inverted, coordinates, probe)
        yield Way(f"FAISS IndexIVFFlat, {probe:,} of {lists:,} lists", search, size)


def _of_faiss(index: Any, coordinates: Coordinates, probes: int | None = None) -> Search:
    def search(
        store: ImageStore, x: NDArray[np.float32], sigma: float, k: int
    ) -> NDArray[np.int64]:
        if probes is not None:
            index.nprobe = probes
        rows: NDArray[np.int64] = index.search(projected(coordinates, x), k)[1]
        return rows

    return search


def named(text: str) -> Way:
    """The way that ``module:function`` names.

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
    return Way(text, search)


def load_faiss() -> Any:
    """The module faiss.

    Raises:
        ArgumentError: it is not installed.
    """
    try:
        return importlib.import_module("faiss")
    except ImportError:
        raise ArgumentError(
            "faiss is not installed; it comes with the extra: pip install 'golddiff[dev]'"
        ) from None


def checked(rows: Any, queries: int, k: int, n: int, name: str) -> NDArray[np.int64]:
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
