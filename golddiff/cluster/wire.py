"""What travels between the driver and the shards, packed: whole numbers take 4 bytes each."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Packer(pickle.Pickler):
    """Rows of a training set are int64 wherever they are used, and int32 on the way."""

    def reducer_override(self, value: Any) -> Any:
        """Arrays of int64 that fit into int32 go as those."""
        if isinstance(value, np.ndarray) and value.dtype == np.int64:
            narrow = value.astype(np.int32)
            if np.array_equal(narrow, value):
                return _wide, (narrow,)
        return NotImplemented


def pack(value: Any) -> bytes:
    """Plain data as bytes; what it holds twice, the same object, is the same one afterwards."""
    out = io.BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def unpack(packed: bytes) -> Any:
    """What :func:`pack` packed, from a process of one's own cluster."""
    return pickle.loads(packed)


def _wide(narrow: NDArray[np.int32]) -> NDArray[np.int64]:
    return narrow.astype(np.int64)
