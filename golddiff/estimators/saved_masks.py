"""Masks saved with a training set, so that each noise level's are computed only once.

They are artifacts in the folder ``masks/``, one file per threshold and noise level, which records
the covariance factor and the version of the mask code. A file holds only what the masks determine:
the inputs that a tree's nodes add (:class:`golddiff.kernels.mask_tree.Additions`), or the number of
a unit's masks that contain an input. Everything else is derived from the images' shape, so that no
file can make a kernel read out of bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.estimators.masks import VERSION as MASK_VERSION
from golddiff.estimators.masks import locality_mask, masks_per_unit, precision_of, unit_counts
from golddiff.kernels.mask_tree import (
    Additions,
    MaskTree,
    additions,
    is_valid,
    tree_from_additions,
)
from golddiff.store.images import ImageStore
from golddiff.store.training_set import TrainingSet
from golddiff.system.numbers import I64

FOLDER = "masks"
FORMAT, UNITS_FORMAT = "golddiff-masks-3", "golddiff-units-4"

# Limit in bytes of one store's masks; beyond it the least recently used are deleted. A noise level
# takes 0.1 to 2 MB on CIFAR-10, so this matters only for images of 64 x 64 and more.
LIMIT = 2_000_000_000


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
    if saved is not None and _are_counts(saved, store.d, masks):
        return saved
    counts: NDArray[np.unsignedinteger]
    (counts,) = unit_counts(store.factors.averaged(), sigma, np.array([threshold]), unit)
    store.artifacts.save(name, {"counts": counts}, expected, LIMIT)
    return counts


def _are_counts(counts: NDArray[Any], d: int, masks: I64) -> bool:
    """Whether a file's array can be the counts of units with the given numbers of masks."""
    plausible = counts.shape == (d, len(masks)) and counts.dtype.kind == "u"
    return plausible and bool((counts <= masks).all())


def name_of(sigma: float, threshold: float) -> str:
    """The artifact name of the masks of a threshold and noise level."""
    return f"{FOLDER}/threshold-{float(threshold)!r}-sigma-{float(sigma)!r}"


def _metadata(
    kind: str, store: TrainingSet, factor: str, sigma: float, threshold: float
) -> dict[str, str]:
    """The metadata that a valid file must have."""
    return {
        "kind": kind,
        "masks": f"{MASK_VERSION} in {precision_of(store.d).__name__}",
        "factor": factor,
        "shape": repr(tuple(store.shape)),
        "threshold": repr(float(threshold)),
        "sigma": repr(float(sigma)),
    }


def _input_type(store: ImageStore) -> type[np.uint16] | type[np.int32]:
    return np.uint16 if store.d <= 1 << 16 else np.int32
