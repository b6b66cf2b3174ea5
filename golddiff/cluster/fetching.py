"""What is brought to the driver image by image, each from its shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.cluster.pool import Pool
from golddiff.errors import ClusterError


def fetched(
    pool: Pool,
    firsts: NDArray[np.int64],
    rows: NDArray[np.int64],
    width: int,
    method: str,
    *arguments: Any,
) -> NDArray[np.float32]:
    """Numbers (k, width) of some images, in the order asked for.

    Args:
        pool: the shards' processes.
        firsts: (S,) row of each shard's first image.
        rows: (k,) of the store.
        width: numbers of an image.
        method: of :class:`golddiff.cluster.server.ShardServer`; it takes local rows first.
        arguments: what it takes next.

    Raises:
        ClusterError: a shard that has some of them is missing.
    """
    owner = np.searchsorted(firsts, rows, side="right") - 1
    out = np.empty((len(rows), width), np.float32)
    for shard in np.unique(owner).tolist():
        mine = np.flatnonzero(owner == shard)
        found = pool.call(shard, method, rows[mine] - firsts[shard], *arguments)
        if found is None:
            raise ClusterError(f"cluster: shard {pool.paths[shard]} is missing")
        out[mine] = found
    return out


def fetched_labels(pool: Pool, sizes: Sequence[int]) -> torch.Tensor:
    """(n,) class indices of all shards' images; -1 where a shard of so many is missing."""
    parts = [
        np.full(size, -1, np.int64) if part is None else part
        for part, size in zip(pool.gather("labels", ()), sizes, strict=True)
    ]
    return torch.from_numpy(np.concatenate(parts))
