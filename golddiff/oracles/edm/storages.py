"""The bytes of one tensor's storage, as torch writes them inside a pickle.

``torch.storage._load_from_bytes`` would hand them to ``torch.load``, which runs what they ask for.
They are torch's format from before its zip files: five pickles (a magic number, a version, the
machine's word sizes, the storage's type and length, its key), then the length and the numbers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from golddiff.oracles.edm.machine import read_pickle

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001


@dataclass(frozen=True, eq=False)
class Storage:
    """The numbers of one storage, (n,), on the CPU."""

    values: torch.Tensor


@dataclass(frozen=True)
class _Type:
    """Stands in for a class of storages."""

    dtype: torch.dtype


@dataclass(frozen=True)
class _Declared:
    dtype: torch.dtype
    key: str
    count: int


_TYPES: dict[tuple[str, str], object] = {
    (module, f"{name}Storage"): _Type(dtype)
    # Where the numbers were does not matter: they are read into the CPU's memory.
    for module in ("torch", "torch.cuda")
    for name, dtype in {
        "Float": torch.float32,
        "Double": torch.float64,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Long": torch.int64,
        "Int": torch.int32,
        "Short": torch.int16,
        "Char": torch.int8,
        "Byte": torch.uint8,
    }.items()
}


def read_storage(data: Any) -> Storage:
    """Read a storage.

    Args:
        data: its bytes, as a view.

    Raises:
        UnpicklingError: anything but one storage whose length agrees with the bytes present.
    """
    if type(data) is not memoryview:
        raise UnpicklingError(f"a storage in it is of type {type(data).__name__}")
    magic, rest = read_pickle(data, {})
    version, rest = read_pickle(rest, {})
    words, rest = read_pickle(rest, {})
    if type(magic) is not int or magic != MAGIC or version != VERSION or type(words) is not dict:
        raise UnpicklingError("a storage in it is of an unknown format")
    if words.get("little_endian") is not True:
        raise UnpicklingError("a storage in it is big-endian")
    declared, rest = read_pickle(rest, _TYPES, _declared)
    keys, rest = read_pickle(rest, {})
    if type(declared) is not _Declared or type(keys) is not list or keys != [declared.key]:
        raise UnpicklingError("a storage in it is not one storage")
    present = (len(rest) - 8) // declared.dtype.itemsize
    if len(rest) < 8 or struct.unpack("<q", rest[:8]) != (declared.count,):
        raise UnpicklingError("the length of a storage in it is not what it declares")
    if len(rest) != 8 + declared.count * declared.dtype.itemsize:
        raise UnpicklingError(
            f"a storage in it declares {declared.count:,} numbers and holds {present:,}"
        )
    values = torch.from_numpy(np.frombuffer(rest[8:], np.uint8).copy())
    return Storage(values.view(declared.dtype))


def _declared(identifier: Any) -> _Declared:
    if type(identifier) is tuple and len(identifier) == 6:
        word, kind, key, _, count, view = identifier
        texts = type(word) is str and type(key) is str
        if texts and word == "storage" and type(kind) is _Type and type(count) is int:
            if count < 0 or view is not None:
                raise UnpicklingError("a storage in it is a view of another, or of negative length")
            return _Declared(kind.dtype, key, count)
    raise UnpicklingError("a storage in it asks for an object of another kind")
