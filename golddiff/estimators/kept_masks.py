"""Masks kept with a training set, so that those of a noise level are made once.

They lie in ``masks/`` among its artifacts: a file a threshold and noise level, which says of which
covariance factor it was made, and by which version of this code. Kept is only what the masks
decide: what a tree's nodes add (:class:`golddiff.kernels.mask_tree.Additions`), or how many masks
of a unit hold an input. The rest follows from the images' shape, so that no file can make a kernel
read where there is nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.estimators.masks import VERSION as MASK_VERSION
from golddiff.estimators.masks import locality_mask, outputs_of, precision_of, unit_counts
from golddiff.kernels.mask_tree import Additions, MaskTree, additions, assembled, check, mask_tree
from golddiff.store.images import ImageStore
from golddiff.store.training_set import TrainingSet
from golddiff.system.numbers import I64

FOLDER = "masks"
FORMAT, UNITS_FORMAT = "golddiff-masks-3", "golddiff-units-2"

# Bytes of one store's masks; past it those that were not used for longest go. A noise level takes
# 0.1 to 2 MB on CIFAR-10, so this is for images of 64 x 64 and more.
LIMIT = 2_000_000_000
# Values an image; the masks of smaller ones are made sooner than a file is read.
FEWEST_VALUES = 512


def tree_of(store: ImageStore, sigma: float, threshold: float) -> MaskTree:
    """The tree of the masks of one noise level; read where it is kept, else made and kept."""
    if store.d < FEWEST_VALUES:
        return mask_tree(locality_mask(store.factor(), sigma, threshold), store.shape)
    added = load(store, sigma, threshold)
    if added is None:
        added = additions(locality_mask(store.factor(), sigma, threshold), store.shape)
        inputs: NDArray[np.integer[Any]] = added.inputs.astype(_kind(store))
        store.artifacts.save(
            name_of(sigma, threshold),
            {"counts": added.counts.astype(np.int32), "inputs": inputs},
            _made_of(FORMAT, store, store.factors.mark(), sigma, threshold),
            LIMIT,
        )
    return assembled(added, store.shape)


def load(store: ImageStore, sigma: float, threshold: float) -> Additions | None:
    """What the nodes of a kept tree add, if there is a sound file; it counts as used now."""
    made_of = _made_of(FORMAT, store, store.factors.mark(), sigma, threshold)
    tensors = store.artifacts.load(name_of(sigma, threshold), made_of)
    if tensors is None or tensors.keys() != {"counts", "inputs"}:
        return None
    counts, inputs = tensors["counts"], tensors["inputs"]
    if counts.dtype != np.int32 or inputs.dtype != _kind(store):
        return None
    added = Additions(counts.astype(np.int64), inputs.astype(np.int32))
    try:
        check(added, store.shape)
    except (ValueError, TypeError):
        return None
    return added


def counts_of(
    store: TrainingSet, sigma: float, threshold: float, unit: I64
) -> NDArray[np.unsignedinteger]:
    """As :func:`unit_counts` of one threshold, (D, U); read where they are kept, else made.

    Those of 3 x 64 x 64 take 3 MB a noise level.
    """
    members = np.bincount(unit[outputs_of(unit)])
    keeps = store.d >= FEWEST_VALUES
    if keeps:
        made_of = _made_of(UNITS_FORMAT, store, store.factors.averaged_mark(), sigma, threshold)
        name = f"{name_of(sigma, threshold)}-units-{len(members)}"
        kept: NDArray[Any] | None = (store.artifacts.load(name, made_of) or {}).get("counts")
        if kept is not None and _are_counts(kept, store.d, members):
            return kept
    counts: NDArray[np.unsignedinteger]
    (counts,) = unit_counts(store.factors.averaged(), sigma, np.array([threshold]), unit)
    if keeps:
        store.artifacts.save(name, {"counts": counts}, made_of, LIMIT)
    return counts


def _are_counts(found: NDArray[Any], d: int, members: I64) -> bool:
    """Whether an array of a file can be counts of units of so many members each."""
    sound = found.shape == (d, len(members)) and found.dtype.kind == "u"
    return sound and bool((found <= members).all())


def name_of(sigma: float, threshold: float) -> str:
    """Under which name the masks of a threshold and noise level are kept."""
    return f"{FOLDER}/threshold-{float(threshold)!r}-sigma-{float(sigma)!r}"


def _made_of(
    kind: str, store: TrainingSet, factor: str, sigma: float, threshold: float
) -> dict[str, str]:
    """What a file must say of itself."""
    return {
        "kind": kind,
        "masks": f"{MASK_VERSION} in {precision_of(store.d).__name__}",
        "factor": factor,
        "shape": repr(tuple(store.shape)),
        "threshold": repr(float(threshold)),
        "sigma": repr(float(sigma)),
    }


def _kind(store: ImageStore) -> type[np.uint16] | type[np.int32]:
    return np.uint16 if store.d <= 1 << 16 else np.int32
