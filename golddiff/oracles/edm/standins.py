"""What stands in for the names that NVIDIA's files ask for. Nothing here runs a file's own code.

Source of the names: pickles written by ``training_loop.py`` of the EDM repository.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from golddiff.oracles.edm.records import Allowed, Record, StandIn
from golddiff.oracles.edm.storages import Storage, read_storage

# Numbers only: an array or scalar of objects is a pickle in disguise.
_NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


@dataclass
class NumberType(StandIn):
    """Stands in for a NumPy dtype of plain numbers."""

    code: str

    def set_state(self, state: Any) -> None:
        """Check the byte order, all that the state tells of plain numbers."""
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", "|", "="):
            raise UnpicklingError("a NumPy type in it has an unknown state")


def _persistent(meta: Any) -> Record:
    """An object of ``torch_utils.persistence``. Its source text, ``module_src``, stays text."""
    if type(meta) is not dict or meta.get("type") != "class":
        raise UnpicklingError("a persistent object in it is of an unknown form")
    record = Record(_text(meta.get("class_name"), "a class name"), {})
    record.set_state(meta.get("state"))
    return record


def _tensor(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any,
    metadata: Any = None,
) -> torch.Tensor:
    """``torch._utils._rebuild_tensor_v2``: a view of a storage, which must hold all of it."""
    if type(storage) is not Storage:
        raise UnpicklingError(f"a tensor in it is made of {type(storage).__name__}")
    numbers = (offset, *_tuple(size), *_tuple(stride))
    if len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in numbers):
        raise UnpicklingError("a tensor in it has an impossible shape")
    count = 1
    for n in size:
        count *= n
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    held = len(storage.values)
    # A step of 0 would let a few numbers stand for a huge tensor.
    if count > held or (count and last >= held):
        raise UnpicklingError(f"a tensor in it of shape {size} goes beyond its {held} numbers")
    return (
        storage.values.as_strided(size, stride, offset) if count else storage.values.new_zeros(size)
    )


def _parameter(data: Any, requires_grad: Any, hooks: Any) -> torch.Tensor:
    if not isinstance(data, torch.Tensor):
        raise UnpicklingError(f"a parameter in it is made of {type(data).__name__}")
    return data


def _number_type(code: Any, align: Any = False, copy: Any = True) -> NumberType:
    if type(code) is not str or code.lstrip("<|=") not in _NUMBERS:
        shown = code if type(code) is str else type(code).__name__
        raise UnpicklingError(f"it asks for the NumPy type {shown}")
    return NumberType(code.lstrip("<|="))


def _scalar(kind: Any, data: Any = None) -> int | float | bool:
    if type(kind) is not NumberType or type(data) is not memoryview:
        raise UnpicklingError("a NumPy number in it is not made of bytes")
    dtype = np.dtype(f"<{kind.code}")
    if len(data) != dtype.itemsize:
        raise UnpicklingError("a NumPy number in it has the wrong length")
    value: int | float | bool = np.frombuffer(data, dtype)[0].item()
    return value


def _ordered(pairs: Any = ()) -> OrderedDict[Any, Any]:
    if type(pairs) not in (tuple, list):
        raise UnpicklingError("an OrderedDict in it is not made of pairs")
    made: OrderedDict[Any, Any] = OrderedDict()
    for pair in pairs:
        if type(pair) not in (tuple, list) or len(pair) != 2 or type(pair[0]) is not str:
            raise UnpicklingError("an OrderedDict in it is not made of pairs")
        made[pair[0]] = pair[1]
    return made


def _set(values: Any = ()) -> set[str]:
    if type(values) not in (tuple, list) or not all(type(value) is str for value in values):
        raise UnpicklingError("a set in it is not made of names")
    return set(values)


def _easy_dict(values: Any = None) -> dict[Any, Any]:
    if values is not None and type(values) is not dict:
        raise UnpicklingError("an EasyDict in it is not made of a dict")
    return dict(values or {})


def _encoded(text: Any, encoding: Any) -> memoryview:
    """``_codecs.encode``, by which pickle protocols below 3 write bytes."""
    if encoding != "latin1":
        raise UnpicklingError("it asks for another encoding than latin1")
    return memoryview(_text(text, "bytes in it").encode("latin1"))


def _text(value: Any, what: str) -> str:
    if type(value) is not str:
        raise UnpicklingError(f"{what} is of type {type(value).__name__}, not text")
    return value


def _tuple(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise UnpicklingError("a tensor in it has no tuple for a shape")
    return value


def _module(name: str) -> Any:
    def make() -> Record:
        return Record(name, {})

    return make


_FUNCTIONS = {
    ("torch_utils.persistence", "_reconstruct_persistent_obj"): _persistent,
    ("dnnlib.util", "EasyDict"): _easy_dict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.storage", "_load_from_bytes"): read_storage,
    ("collections", "OrderedDict"): _ordered,
    ("builtins", "set"): _set,
    ("__builtin__", "set"): _set,
    ("_codecs", "encode"): _encoded,
    ("numpy", "dtype"): _number_type,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("torch.nn.modules.container", "ModuleDict"): _module("ModuleDict"),
    ("torch.nn.modules.container", "ModuleList"): _module("ModuleList"),
    ("torch.nn.modules.container", "Sequential"): _module("Sequential"),
    ("torch.nn.modules.activation", "SiLU"): _module("SiLU"),
    ("torch.nn.modules.dropout", "Dropout"): _module("Dropout"),
    ("torch.nn.modules.linear", "Identity"): _module("Identity"),
}

ALLOWED: dict[tuple[str, str], object] = {
    key: Allowed(".".join(key), build) for key, build in _FUNCTIONS.items()
}
