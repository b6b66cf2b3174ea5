"""Mask trees kept with a store, so that a noise level's masks are made once.

They lie in ``masks/`` in the store's folder (a store in shards: beside its list, and in each
shard's folder), outside the manifest: a file a threshold and noise
level, which says of which covariance factor it was made. One that is missing, damaged, of another
factor or of another version of this code is made again, never trusted. Kept is only what the mask
decides (:class:`golddiff.kernels.mask_tree.Additions`); the tree follows from it and the images'
shape, so that no file can make a kernel read where there is nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from golddiff.errors import ArgumentError
from golddiff.estimators.masks import VERSION as MASK_VERSION
from golddiff.estimators.masks import locality_mask, precision_of
from golddiff.kernels.mask_tree import Additions, MaskTree, additions, assembled, check, mask_tree
from golddiff.store.images import ImageStore
from golddiff.system.files import leads_out, written_whole

FOLDER, SUFFIX = "masks", ".safetensors"
FORMAT = "golddiff-masks-1"

# Bytes of one store's masks; past it those that were not used for longest go. A noise level takes
# 0.1 to 2 MB on CIFAR-10, so this is for images of 64 x 64 and more.
LIMIT = 2_000_000_000
# Values an image; the masks of smaller ones are made sooner than a file is read.
FEWEST_VALUES = 512


def tree_of(
    store: ImageStore, sigma: float, threshold: float, root: Path | None = None
) -> MaskTree:
    """The tree of the masks of one noise level; read where it is kept, else made and kept.

    Args:
        store: the training set; where its folder may not be written to nothing is kept.
        sigma: noise level.
        threshold: fraction of max|M| that an entry must reach, in [0, 1].
        root: folder that masks are kept in instead of the store's; stores of one factor may share
            it.
    """
    if store.d < FEWEST_VALUES:
        return mask_tree(locality_mask(store.factor(), sigma, threshold), store.shape)
    added = recall(store, sigma, threshold, root)
    if added is None:
        added = additions(locality_mask(store.factor(), sigma, threshold), store.shape)
        _remember(store, sigma, threshold, added, root)
    return assembled(added, store.shape)


def recall(
    store: ImageStore, sigma: float, threshold: float, root: Path | None = None
) -> Additions | None:
    """What the nodes of a kept tree add, if there is a sound file; it counts as used now."""
    about = _about(store, sigma, threshold)
    if about is None:
        return None
    root = Path(store.path) if root is None else root
    path = path_in(root, sigma, threshold)
    if not path.is_file() or leads_out(root, path):
        return None
    try:
        with safe_open(path, "numpy") as file:
            said = file.metadata() or {}
            digest = said.pop("digest", None)
            if said != about:  # told before its arrays are read, however large they are
                return None
            counts, inputs = file.get_tensor("counts"), file.get_tensor("inputs")
        if digest != _digest(counts, inputs):
            return None
        if counts.dtype != np.int32 or inputs.dtype != _kind(store):
            return None
        added = Additions(counts.astype(np.int64), inputs.astype(np.int32))
        check(added, store.shape)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return added


def path_in(root: Path, sigma: float, threshold: float) -> Path:
    """Where in a store's folder the masks of a threshold and noise level are kept."""
    return root / FOLDER / f"threshold-{float(threshold)!r}-sigma-{float(sigma)!r}{SUFFIX}"


def _remember(
    store: ImageStore, sigma: float, threshold: float, added: Additions, root: Path | None
) -> None:
    about = _about(store, sigma, threshold)
    if about is None:
        return
    root = Path(store.path) if root is None else root
    if not root.is_dir():  # deleted meanwhile
        return
    counts = added.counts.astype(np.int32)
    inputs: NDArray[np.integer[Any]] = added.inputs.astype(_kind(store))
    about["digest"] = _digest(counts, inputs)
    body = save({"counts": counts, "inputs": inputs}, about)
    if len(body) > LIMIT:
        return
    path = path_in(root, sigma, threshold)
    if leads_out(root, path.parent):  # nor is anything removed there
        return
    with contextlib.suppress(ArgumentError, OSError):
        _make_room(path.parent, LIMIT - len(body))
        with written_whole("masks", path) as temporary:
            temporary.write_bytes(body)


def _make_room(folder: Path, room: int) -> None:
    """Remove files, the one used longest ago first, until they take ``room`` bytes at most."""
    found = []
    if folder.is_dir():
        for path in folder.iterdir():
            # Another process may have removed it, or be writing a new one beside it.
            with contextlib.suppress(OSError):
                if path.suffix == SUFFIX:
                    status = path.stat()
                    found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= room:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def _about(store: ImageStore, sigma: float, threshold: float) -> dict[str, str] | None:
    """What a file must say of itself; None where the factor is not kept with the store."""
    # A store in memory has no manifest.
    mark = store.factor_mark() if getattr(store, "manifest", None) is not None else None
    if mark is None:
        return None
    return {
        "format": FORMAT,
        "masks": f"{MASK_VERSION} in {precision_of(store.d).__name__}",
        "factor": mark,
        "shape": repr(tuple(store.shape)),
        "threshold": repr(float(threshold)),
        "sigma": repr(float(sigma)),
    }


def _kind(store: ImageStore) -> type[np.uint16] | type[np.int32]:
    return np.uint16 if store.d <= 1 << 16 else np.int32


def _digest(*arrays: NDArray[np.generic]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
