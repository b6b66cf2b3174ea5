"""What stands in for NumPy's and Python's own names in a pickle of plain data."""

from __future__ import annotations

import math
from pickle import UnpicklingError
from typing import Any

import numpy as np

from golddiff.system.pickles import Names

# Numbers only: an array of objects is a pickle in disguise.
_NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


class _Type:
    """Stands in for a NumPy data type of numbers."""

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        text = _text(code)
        if text.lstrip("<>|=") not in _NUMBERS:
            raise UnpicklingError(f"asks for the NumPy type {text[:40]}")
        self.code, self.order = text.lstrip("<>|="), text[0] if text[0] in "<>" else "="

    def __setstate__(self, state: Any) -> None:
        if (
            type(state) is not tuple
            or len(state) < 2
            or _text(state[1]) not in ("<", ">", "|", "=")
        ):
            raise UnpicklingError("asks for a NumPy type of an unknown state")
        self.order = _text(state[1])

    def dtype(self) -> np.dtype[Any]:
        order: Any = self.order
        return np.dtype(self.code).newbyteorder(order)


class _Array(np.ndarray[Any, Any]):
    """An array of numbers whose bytes are all in the file, and which comes after it."""

    def __new__(cls) -> _Array:
        """An empty one."""
        return super().__new__(cls, (0,), np.uint8)

    def __setstate__(self, state: Any) -> None:
        shape, kind, fortran, raw = state[-4:]
        if not isinstance(kind, _Type) or type(raw) is not bytes:
            raise UnpicklingError("asks for an array of other things than numbers")
        if type(shape) is not tuple or not all(type(side) is int and side >= 0 for side in shape):
            raise UnpicklingError("asks for an array of an impossible shape")
        dtype = kind.dtype()
        if math.prod(shape) * dtype.itemsize != len(raw):
            raise UnpicklingError("asks for an array of another size than its bytes")
        whole: Any = (1, shape, dtype, bool(fortran), raw)
        super().__setstate__(whole)


def _array(kind: Any, shape: Any = None, code: Any = None) -> _Array:
    if kind is not _Array:
        raise UnpicklingError("asks for an array of an unknown class")
    return _Array()


def _scalar(kind: Any, data: Any = None) -> int | float | bool:
    if type(kind) is not _Type or type(data) is not bytes or len(data) != kind.dtype().itemsize:
        raise UnpicklingError("asks for a NumPy number of other bytes than its own")
    value: int | float | bool = np.frombuffer(data, kind.dtype())[0].item()
    return value


def _encoded(text: Any, encoding: Any) -> bytes:
    """``_codecs.encode``, by which pickle protocols below 3 write bytes."""
    if _text(encoding) != "latin1" or type(text) is not str:
        raise UnpicklingError(f"asks for the encoding {_text(encoding)[:40]!r}")
    return text.encode("latin1")


def _text(value: Any) -> str:
    """Text, which Python 2 wrote as bytes."""
    if type(value) is bytes:
        return value.decode("latin1")
    if type(value) is not str:
        raise UnpicklingError(f"has a {type(value).__name__} where text is expected")
    return value


# Both of NumPy's module names occur, the old one in every file that is in circulation.
ARRAYS: Names = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encoded,
}
"""Arrays and numbers of NumPy's, and bytes in old protocols. Arrays come back as a subclass of
``numpy.ndarray``: ``numpy.asarray`` makes plain ones of them, without a copy."""
