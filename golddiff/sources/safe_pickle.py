"""Reading pickles of plain data and arrays without running what they ask for."""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np

from golddiff.errors import SourceError
from golddiff.system.pickle_scan import scan

# Numbers only: an array of objects is a pickle in disguise.
_NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


class _Array(np.ndarray[Any, Any]):
    """An array of numbers whose bytes are all in the file."""

    def __setstate__(self, state: Any) -> None:
        shape, kind, fortran, raw = state[-4:]
        if not isinstance(kind, _Type) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("asks for an array of other things than numbers")
        if not all(type(side) is int and side >= 0 for side in shape):
            raise pickle.UnpicklingError("asks for an array of an impossible shape")
        dtype = kind.dtype()
        if math.prod(shape) * dtype.itemsize != len(raw):
            raise pickle.UnpicklingError("asks for an array of another size than its bytes")
        whole: Any = (1, tuple(shape), dtype, bool(fortran), raw)
        super().__setstate__(whole)


class _Type:
    """Stands in for a NumPy data type, whose own state could be forged."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(text, str) or text.lstrip("<>|=") not in _NUMBERS:
            raise pickle.UnpicklingError(f"asks for the NumPy type {str(text)[:40]!r}")
        self.code = text.lstrip("<>|=")
        self.order = text[0] if text[0] in "<>" else "="

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("asks for a NumPy type of an unknown state")
        self.order = order

    def dtype(self) -> np.dtype[Any]:
        order: Any = self.order
        return np.dtype(self.code).newbyteorder(order)


class _ArrayClass:
    """Stands in for ``numpy.ndarray`` itself, which is only named, never called."""

    __slots__ = ()


_ARRAY_CLASS = _ArrayClass()


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        # One text can be handed to many calls: all that is made of texts is no larger than twice
        # the file.
        self._left = 2 * len(data) + 1000
        self._allowed: dict[tuple[str, str], Any] = {
            # All that arrays, bytes, strings, dicts, lists and numbers need. Both of NumPy's module
            # names occur, the old one in every file that is in circulation.
            ("numpy.core.multiarray", "_reconstruct"): _Plain(self._array),
            ("numpy._core.multiarray", "_reconstruct"): _Plain(self._array),
            ("numpy", "ndarray"): _ARRAY_CLASS,
            ("numpy", "dtype"): _Plain(_Type),
            ("_codecs", "encode"): _Plain(self._latin1),
        }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module}.{name}"[:300]) from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("asks for an object kept outside the file")

    def _array(self, kind: Any, shape: Any = None, code: Any = None) -> _Array:
        if kind is not _ARRAY_CLASS:
            raise pickle.UnpicklingError("asks for an array of an unknown class")
        return np.ndarray.__new__(_Array, (0,), np.uint8)

    def _latin1(self, text: Any, encoding: Any = None) -> bytes:
        """``_codecs.encode``, by which Python 3 writes bytes in old pickle protocols."""
        if encoding not in ("latin1", b"latin1") or not isinstance(text, str):
            raise pickle.UnpicklingError(f"asks for the encoding {str(encoding)[:40]!r}")
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("asks for the same text over and over")
        return text.encode("latin1")


class _Plain:
    """A function that a pickle can call but not alter."""

    __slots__ = ("_function",)
    _function: Any

    def __init__(self, function: Any) -> None:
        object.__setattr__(self, "_function", function)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError("asks to alter what it may only call")

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def load_plain(data: bytes, name: str) -> Any:
    """Unpickle arrays, bytes, strings, dicts, lists and numbers, and nothing else.

    Args:
        data: the pickle, of any protocol; strings of Python 2 come back as bytes.
        name: the file's name, for messages.

    Raises:
        SourceError: the pickle is damaged, or asks for anything else (which is not run).
    """
    try:
        scan(data)
        return _unwrapped(_PlainUnpickler(data).load())
    except Exception as error:
        # A damaged pickle raises nearly anything, as it drives constructors with wrong values.
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise SourceError(
            f"{name} is not a pickle of plain arrays: it {reason}"
            if reason.startswith("asks for")
            else f"{name} is not a readable pickle: {reason}"
        ) from error


def _unwrapped(value: Any) -> Any:
    """Plain arrays in place of the class that checked them, where CIFAR's files have them."""
    if isinstance(value, _Array):
        return value.view(np.ndarray)
    if type(value) is dict:
        return {key: _unwrapped(v) if isinstance(v, _Array) else v for key, v in value.items()}
    return value
