"""What is computed from all shards and kept beside their list, or in the cache."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from golddiff.cluster.copies import is_local, without_scheme
from golddiff.cluster.listing import Listing
from golddiff.errors import ArgumentError
from golddiff.store.cache import cache_folder
from golddiff.system.files import leads_out, written_whole

MARK = "identity"


def home(listing: Listing, identity: str) -> Path:
    """The folder: the list's own, else one in the cache that the shards' checksum names."""
    if listing.home is not None and is_local(listing.home):
        return Path(without_scheme(listing.home))
    return cache_folder() / f"cluster-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def belongs(path: Path, identity: str) -> bool:
    """Whether a file is there and of these shards; its arrays are not read."""
    # Damaged ones are made again, like those of other shards.
    if leads_out(path.parent, path):
        return False
    try:
        with safe_open(path, "numpy") as file:
            return bool(file.get_tensor(MARK).tobytes() == identity.encode())
    except (OSError, SafetensorError):
        return False


def recall(path: Path, identity: str) -> dict[str, NDArray[Any]] | None:
    """What a file holds, or None where there is none of these shards."""
    if not belongs(path, identity):
        return None
    found: dict[str, NDArray[Any]] = load_file(path)
    del found[MARK]
    return found


def remember(path: Path, identity: str, tensors: dict[str, NDArray[Any]]) -> None:
    """Keep arrays in a file, where its folder may be written to."""
    mark = np.frombuffer(identity.encode(), np.uint8)
    with contextlib.suppress(ArgumentError, OSError), written_whole("store", path) as temporary:
        save_file({**tensors, MARK: mark}, temporary)
