"""The PCA locality masks of Lukoianov et al. 2025, as both released codes compute them.

Masks are saved with a training set, so that each noise level's are computed only once: one artifact
in the folder ``masks/`` per threshold and noise level, which records the covariance factor and the
version of the mask code. A file holds only what the masks determine: the inputs that a tree's nodes
add (:class:`golddiff.kernels.mask_tree.Additions`), or the number of a unit's masks that contain an
input. Everything else is derived from the images' shape, so that no file can make a kernel read out
of bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.mask_tree import Additions, MaskTree, additions, is_valid, tree_from_additions
from golddiff.store.images import ImageStore
from golddiff.store.statistics import Factor
from golddiff.store.training_set import TrainingSet
from golddiff.system.memory import free_memory, require_memory
from golddiff.system.numbers import F64, I64
from golddiff.system.parallel import for_each

FLOAT64_BYTES = 1 << 27  # largest float64 Wiener matrix; beyond it, masks are computed in float32
FLOAT64_COUNTED = 1024  # most values per image for averaged masks in float64; they bear rounding
# A larger matrix, or one of more than a quarter of the free memory, is computed twice, by rows.
HELD_BYTES = 1 << 32
ROWS = 128
# Units of 16 outputs or more use the masks of every fifth output; above 32 x 32 RGB, where masks
# take seconds a noise level, four masks.
MANY, EVERY, LARGE, FEW = 16, 5, 3 * 32**2, 4

# Version of the mask code: masks that an earlier version saved with a store are recomputed.
VERSION = 2

# Relative tolerance of the threshold. With few images, entries are ratios of small integers, and
# rounding must not decide whether entries equal to the threshold are in the mask.
TIE = 1e-7

FOLDER = "masks"
FORMAT, UNITS_FORMAT = "golddiff-masks-4", "golddiff-units-5"

# Limit in bytes of one store's masks; beyond it the least recently used are deleted. A noise level
# takes 0.1 to 2 MB on CIFAR-10, so this matters only for images of 64 x 64 and more.
LIMIT = 2_000_000_000


def precision_of(d: int) -> type[np.floating]:
    """The dtype to compute masks of d values in: float64 up to a matrix of 128 MB, else float32."""
    return np.float64 if 8 * d * d <= FLOAT64_BYTES else np.float32


def least(threshold: float) -> float:
    """Fraction of max|M| that an entry must reach, less the tolerance for ties."""
    return threshold * (1 - TIE)


def locality_mask(factor: Factor, sigma: float, threshold: float) -> NDArray[np.bool_]:
    """Which input values n enter the logits of output value q, bool (D, D) indexed [n, q].

    W = U diag(L / (L + sigma^2)) U^T; M_nq = W_nq / W_nn (if |W_nn| < 1e-6, divide by 1); the mask
    is |M_nq| >= threshold * max|M|, with the maximum over the whole matrix and with ties up to
    rounding included. M is normalised by the *input* value n, which matters for images whose
    border hardly varies: over a few hundred of them max|M| is above 1 / threshold. A value with
    M_nn = 1 is in its own mask all the same. Threshold 0 keeps every value.
    """
    m = factor.wiener_matrix(sigma, precision_of(len(factor.mean)))
    diagonal = np.abs(m.diagonal())
    varying = np.flatnonzero(diagonal >= 1e-6)
    diagonal[diagonal < 1e-6] = 1.0
    # In place, because at 64 x 64 RGB the matrix has 151 million entries.
    np.abs(m, out=m)
    m /= diagonal[:, None]
    mask: NDArray[np.bool_] = m >= least(threshold) * m.max(initial=0.0)
    mask[varying, varying] = True
    return mask


def outputs_of(unit: I64) -> I64:
    """The m outputs whose masks represent each unit, (m, U); -1 where a unit has fewer.

    ``unit`` (D,) is the unit of each output. All outputs count, or every fifth if units have
    ``MANY`` or more, or ``FEW`` of each unit of ``LARGE`` images. They are spread over a unit's
    pixels and channels.
    """
    sizes = np.bincount(unit)
    every = 1 if sizes.max() < MANY else EVERY if len(unit) <= LARGE else sizes.max() // FEW + 1
    places = np.arange(0, sizes.max(), every)[:, None]
    order = np.append(np.argsort(unit, kind="stable"), -1)
    return order[np.where(places < sizes, np.cumsum(sizes) - sizes + places, -1)]


def masks_per_unit(unit: I64) -> I64:
    """The number of masks that represent each unit, (U,)."""
    return (outputs_of(unit) >= 0).sum(axis=0)


def unit_counts(
    factor: Factor, sigma: float, thresholds: F64, unit: I64
) -> NDArray[np.unsignedinteger]:
    """The number of each unit's masks that contain input n, (T, D, U), one page per threshold.

    The masks are those of :func:`locality_mask` at ascending thresholds (T,), for the outputs that
    :func:`outputs_of` selects, with max|M| over these. ``unit`` (D,) is the unit of each output.
    """
    d, outputs = len(factor.mean), outputs_of(unit)
    m, units = outputs.shape
    # The counts, and the shares (D, U) of one threshold in float32.
    require_memory(
        (len(thresholds) + 4) * d * units, f"the masks of images of {d:,} values",
        "use smaller images",
    )  # fmt: skip
    dtype = np.float64 if d <= FLOAT64_COUNTED else np.float32
    entries = d * m * units
    is_held = entries * np.dtype(dtype).itemsize <= min(HELD_BYTES, free_memory() / 4)
    halves = factor.halves(sigma, dtype, entries if is_held else 0)
    held: NDArray[Any] | None = np.empty((d, m, units), dtype) if is_held else None
    diagonal = np.einsum("nr,nr->n", halves, halves)
    varying = diagonal >= 1e-6
    diagonal[~varying] = 1.0
    right, absent = halves[outputs.ravel()].T, outputs.ravel() < 0
    row_max = np.zeros(d, dtype)
    counts = np.zeros((len(thresholds), d, units), np.min_scalar_type(m))

    def matrix(start: int) -> NDArray[Any]:
        """|M_nq| of some inputs n and of all selected outputs, (k, m, U)."""
        rows = slice(start, start + ROWS)
        products = halves[rows] @ right
        np.abs(products, out=products)
        products /= diagonal[rows, None]
        products[:, absent] = -1  # in no mask
        return products.reshape(-1, m, units)

    def find_row_max(start: int) -> None:
        rows, entries = slice(start, start + ROWS), matrix(start)
        row_max[rows] = entries.max(axis=(1, 2))
        if held is not None:
            held[rows] = entries

    for_each(find_row_max, range(0, d, ROWS))
    bounds = np.array([least(t) * row_max.max(initial=0.0) for t in thresholds.tolist()], dtype)

    def count(start: int) -> None:
        rows = slice(start, start + ROWS)
        entries = matrix(start) if held is None else held[rows]
        for page, bound in zip(counts, bounds, strict=True):
            np.sum((entries >= bound).view(np.uint8), axis=1, dtype=counts.dtype, out=page[rows])

    for_each(count, range(0, d, ROWS))
    selected = outputs[outputs >= 0]
    own = selected[varying[selected]]
    for page, bound in zip(counts, bounds, strict=True):
        if bound > 1:  # M_nn = 1 was not counted
            page[own, unit[own]] += 1
    return counts


def tree_of(store: ImageStore, sigma: float, threshold: float) -> MaskTree:
    """The mask tree of one noise level, loaded if it is saved, else computed and saved."""
    nodes = load(store, sigma, threshold)
    if nodes is None:
        nodes = additions(locality_mask(store.factor(), sigma, threshold), store.shape)
        inputs: NDArray[np.integer[Any]] = nodes.inputs.astype(_input_type(store))
        store.artifacts.save(
            name_of(sigma, threshold),
            {"counts": nodes.counts.astype(np.int32), "inputs": inputs},
            _metadata(FORMAT, store, store.factors.identifier(), sigma, threshold),
            LIMIT,
        )
    return tree_from_additions(nodes, store.shape)


def load(store: ImageStore, sigma: float, threshold: float) -> Additions | None:
    """The inputs added by a saved tree's nodes, or None without a valid file; counts as a use."""
    expected = _metadata(FORMAT, store, store.factors.identifier(), sigma, threshold)
    tensors = store.artifacts.load(name_of(sigma, threshold), expected)
    if tensors is None or tensors.keys() != {"counts", "inputs"}:
        return None
    counts, inputs = tensors["counts"], tensors["inputs"]
    if counts.dtype != np.int32 or inputs.dtype != _input_type(store):
        return None
    nodes = Additions(counts.astype(np.int64), inputs.astype(np.int32))
    return nodes if is_valid(nodes, store.shape) else None


def counts_of(
    store: TrainingSet, sigma: float, threshold: float, unit: I64
) -> NDArray[np.unsignedinteger]:
    """:func:`unit_counts` at one threshold (D, U), saved with the store (3 MB at 3 x 64 x 64)."""
    masks = masks_per_unit(unit)
    expected = _metadata(UNITS_FORMAT, store, store.factors.averaged_identifier(), sigma, threshold)
    name = f"{name_of(sigma, threshold)}-units-{len(masks)}"
    saved: NDArray[Any] | None = (store.artifacts.load(name, expected) or {}).get("counts")
    if (
        saved is not None
        and saved.shape == (store.d, len(masks))
        and saved.dtype.kind == "u"
        and (saved <= masks).all()
    ):
        return saved
    (counts,) = unit_counts(store.factors.averaged(), sigma, np.array([threshold]), unit)
    store.artifacts.save(name, {"counts": counts}, expected, LIMIT)
    return counts


def name_of(sigma: float, threshold: float) -> str:
    """The artifact name of the masks of a threshold and noise level."""
    return f"{FOLDER}/threshold-{float(threshold)!r}-sigma-{float(sigma)!r}"


def _metadata(
    kind: str, store: TrainingSet, factor: str, sigma: float, threshold: float
) -> dict[str, str]:
    """The metadata that a valid file must have."""
    return {
        "kind": kind,
        "masks": f"{VERSION} in {precision_of(store.d).__name__}",
        "factor": factor,
        "shape": repr(tuple(store.shape)),
        "threshold": repr(float(threshold)),
        "sigma": repr(float(sigma)),
    }


def _input_type(store: ImageStore) -> type[np.uint16] | type[np.int32]:
    return np.uint16 if store.d <= 1 << 16 else np.int32
