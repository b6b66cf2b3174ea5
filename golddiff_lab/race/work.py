"""Operations and bytes of one step, counted from what the kernels do: no measurement.

Counted: additions, subtractions and products one each, an exponential one. Bytes: each stored value
that a pass over the images brings in, once for the queries that share the pass. Not counted: masks
and trees (made once a noise level and kept), drawing random rows, selecting the nearest, the sort.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.adaptive.plan import FULL
from golddiff.adaptive.schedule import FittedSchedule
from golddiff.denoiser import Denoiser, Estimator
from golddiff.errors import ArgumentError
from golddiff.estimators.kamb import Kamb
from golddiff.estimators.optimal import Optimal
from golddiff.estimators.pca import PCA
from golddiff.estimators.wiener import Wiener
from golddiff.golden import GoldDiff
from golddiff.kernels.kamb_counts import offset_operations
from golddiff.kernels.mask_tree import MaskTree
from golddiff.kernels.rows import squared_distances
from golddiff.noise import precision
from golddiff.store.images import ImageStore
from golddiff.store.proxy import quarter_shape, side_16_shape
from golddiff.support import AnySupport, Support, TiledSupport, whole
from golddiff.supports.paper import PaperSchedule
from golddiff_lab.race.machine import Machine

# (x_i - a)(x_i - b): scale, two differences, a product.
TERM = 4
# Gain, importance, less the maximum, exp, its sum; the value (scale, offset), times, its sum.
SOFTMAX = 9
DISTANCE = 3  # difference, square, sum
WEIGHTED = 2  # product, sum


@dataclass(frozen=True)
class Work:
    """What one step does.

    Attributes:
        operations: arithmetic on floating-point numbers.
        bytes: brought in from the stored images.
        rate: the machine's rate that bounds the operations.
    """

    operations: float
    bytes: float
    rate: Literal["float32_add", "float32_matrix"] = "float32_add"

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes, self.rate)


def step_work(denoiser: Denoiser, x: torch.Tensor, sigma: float) -> Work | None:
    """The work of ``denoiser(x, sigma)``; None where its method has no formula here.

    A method of another make may tell its own: ``denoiser.step_work(x, sigma)`` returns
    (operations, bytes).
    """
    own = getattr(denoiser, "step_work", None)
    if callable(own):
        return Work(*own(x, sigma))
    queries = x.reshape(len(x), -1).numpy()
    if isinstance(denoiser, Wiener):
        return wiener_work(denoiser, len(queries))
    if not isinstance(denoiser, Estimator | GoldDiff):
        return None
    total = Work(0, 0)
    if isinstance(denoiser, GoldDiff):
        schedule = denoiser.schedule
        if isinstance(schedule, PaperSchedule):
            total += screening_work(schedule, denoiser.store, sigma, len(queries))
        elif isinstance(schedule, FittedSchedule):
            total += ranking_work(schedule, sigma, len(queries))
        else:
            return None
    try:
        weighed = denoiser.weighing(queries, sigma, None)
    except ArgumentError:
        return None
    passes: dict[int, tuple[Estimator, AnySupport, list[int]]] = {}
    for i, (estimator, support) in enumerate(weighed):
        passes.setdefault(id(support), (estimator, support, []))[2].append(i)
    for estimator, support, group in passes.values():
        work = estimator_work(estimator, queries[group], sigma, support)
        if work is None:
            return None
        total += work
    return total


def ranking_work(schedule: FittedSchedule, sigma: float, queries: int) -> Work:
    """What comparing images takes, for each query."""
    plan = schedule.plan(sigma)
    if plan.kind == FULL:
        return Work(0, 0)
    operations, read = schedule.looker(sigma, None, plan.kind).counted(plan.kind.name, plan.k)
    return Work(queries * operations, queries * read)


def estimator_work(
    estimator: Estimator, x: NDArray[np.float32], sigma: float, support: AnySupport
) -> Work | None:
    """The work of queries (b, D) that share one support."""
    if isinstance(support, TiledSupport):
        return tiled_work(estimator, len(x), sigma, support)
    match estimator:
        case PCA():
            return pca_work(estimator.store, estimator.tree(sigma), len(x), len(support))
        case Optimal():
            return optimal_work(estimator, x, sigma, whole(support))
        case Kamb():
            return kamb_work(estimator, sigma, len(x), len(support))
    return None


def tree_additions(tree: MaskTree) -> int:
    """Additions that the tree of shared sums takes for one query and image."""
    return int((tree.stop - tree.start).sum())


def pca_work(store: ImageStore, tree: MaskTree, queries: int, images: int) -> Work:
    """B k (additions of the tree + 13 D) operations, k D values brought in.

    An upper bound at low noise, where the kernel skips the softmax of images far below the best.
    """
    each = tree_additions(tree) + (TERM + SOFTMAX) * store.d
    return Work(queries * images * each, images * row_bytes(store))


def tiled_work(
    estimator: Estimator, queries: int, sigma: float, support: TiledSupport
) -> Work | None:
    """As :func:`pca_work`, tile by tile: a tile's tree, the columns it reads, its images."""
    if not isinstance(estimator, PCA):
        return None
    total = Work(0, 0)
    itemsize = estimator.store.flat.itemsize
    for tile, part in zip(estimator.tiles(sigma, support.side), support.tiles, strict=True):
        outputs = int((tile.output >= 0).sum())
        each = tree_additions(tile) + TERM * len(tile.columns) + SOFTMAX * outputs
        total += Work(queries * len(part) * each, len(part) * len(tile.columns) * itemsize)
    return total


def optimal_work(
    estimator: Optimal, x: NDArray[np.float32], sigma: float, support: Support
) -> Work:
    """3 b k D for the distances, 2 D for each weight that is not negligible (1e-18 and above)."""
    store = estimator.store
    distances = squared_distances(store.flat, support.rows, x, store.scale, store.offset)
    logits = distances * -precision(sigma) + support.log_importance()
    kept = np.exp(logits - logits.max(axis=1, keepdims=True)) >= 1e-18
    operations = DISTANCE * logits.size * store.d + WEIGHTED * int(kept.sum()) * store.d
    rows = len(support) + int(kept.any(axis=0).sum())
    return Work(operations, rows * row_bytes(store))


def wiener_work(denoiser: Wiener, queries: int) -> Work:
    """Two products with the (D, r) eigenvectors, 4 b D r; they are brought in twice, float64."""
    d, r = denoiser.store.factor().eigenvectors.shape
    return Work(4 * queries * d * r, 2 * 8 * d * r, "float32_matrix")


def screening_work(schedule: PaperSchedule, store: ImageStore, sigma: float, queries: int) -> Work:
    """Distances of the paper's schedule: in proxies, then in all values."""
    m, k = schedule.budgets(sigma, store.n)
    if k == store.n:
        return Work(0, 0)
    if schedule.variant == "text":
        shape, pool, keep = quarter_shape(store.shape), store.n, m
    else:
        # k_max images are kept by the proxy: as many as are weighed at the highest noise.
        shape, pool = side_16_shape(store.shape), m
        keep = max(k, schedule.budgets(1e9, store.n)[1])
    width = int(np.prod(shape))
    total = Work(0, 0)
    if keep < pool:
        total += Work(DISTANCE * queries * pool * width, pool * 4 * width)
    if k < keep:
        total += Work(DISTANCE * queries * keep * store.d, queries * keep * row_bytes(store))
    return total


def kamb_work(estimator: Kamb, sigma: float, queries: int, images: int) -> Work:
    """Counted by :func:`golddiff.kernels.kamb_counts.offset_operations`.

    An upper bound: where all patches are far below the best, the kernel skips their softmax.
    """
    operations = offset_operations(*estimator._axes(sigma), estimator.store.shape[0])
    return Work(queries * images * operations, images * row_bytes(estimator.store))


def row_bytes(store: ImageStore) -> int:
    """Bytes of one stored image."""
    return store.d * int(store.flat.itemsize)


def dense_pca_work(
    queries: int, images: int, d: int, mask_side: int, itemsize: int = 4, shared: bool = False
) -> Work:
    """The peers' PCA step: dense products with the mask, as their code writes it.

    2 b k D^2 for the masked distances, 2 D^2 mask_side for the mask, which they make anew at every
    step; their images are float32.
    """
    operations = 2 * queries * images * d * d + 2 * d * d * mask_side
    rows = images if shared else queries * images
    return Work(operations, rows * d * itemsize, "float32_matrix")


def floor_seconds(work: Work, machine: Machine) -> float:
    """The least time that the machine could take: the larger of arithmetic and memory."""
    rate = machine.float32_add if work.rate == "float32_add" else machine.float32_matrix
    return max(work.operations / rate, work.bytes / machine.copy)
