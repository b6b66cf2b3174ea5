"""Safe unpickling: no code from the file runs, and memory is bounded by the file's size.

A pickle is a program for a stack machine. :func:`read_pickle` runs it on Python's pure-Python
unpickler with these restrictions:

- Globals are looked up in a table of this package's functions and never imported. Only these
  functions are called, and only their results with ``__setstate__`` receive a state.
- Values are added to lists, dicts and sets only. Keys are text and small numbers: Python does not
  cache the hashes of nested tuples, so a pickle of 582 bytes could hang.
- Every opcode is charged against a memory budget. A value passed to a function, or returned to
  the caller, is charged for its expanded size, in which a shared part counts once per reference.
  (Lists that hold the same list twice, many levels deep, are small in memory but take forever to
  print, join or hash.) The contents of objects are not charged.

Every pickle is read here: CIFAR files, torch checkpoints and EDM networks.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pickle import UnpicklingError
from typing import IO, Any

import numpy as np

from golddiff.system.errors import one_line

# Real data are nested less than thirty levels deep.
DEEPEST = 200
# The memory budget of a file of n bytes is SLACK + MULTIPLE * n.
SLACK, MULTIPLE = 64 * 2**20, 8
# Approximate bytes per opcode, per container and per element; opcodes that take more.
_OPCODE, _HOLDER, _PART = 32, 256, 16
_LARGER = {
    **dict.fromkeys((pickle.EMPTY_LIST, pickle.LIST, pickle.MEMOIZE, pickle.PUT), 96),
    **dict.fromkeys((pickle.BINPUT, pickle.LONG_BINPUT, pickle.MARK, pickle.EMPTY_DICT), 128),
    **dict.fromkeys((pickle.EMPTY_SET, pickle.FROZENSET, pickle.DICT), 256),
    **dict.fromkeys((pickle.REDUCE, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.OBJ, pickle.INST), 512),
}
# EXT uses a global registry; BYTEARRAY8 allocates before it reads; the rest are for buffers.
_REFUSED = (
    *(pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)

Names = Mapping[tuple[str, str], Any]


def read_pickle(
    data: bytes | IO[bytes], allowed: Names, persistent: Callable[[Any], Any] | None = None
) -> Any:
    """Read one pickle.

    Args:
        data: its bytes, or a stream positioned at its beginning; the stream ends at its end.
        allowed: the replacement for each global (module, name) that the pickle may use: a function
            that is safe for any arguments; a class, whose ``__setstate__`` receives the state; or
            an immutable value.
        persistent: converts a persistent id to a value; None rejects persistent ids.

    Returns:
        The value; Python 2 strings are returned as bytes.

    Raises:
        UnpicklingError: the pickle is damaged, uses another global (which is not imported) or
            exceeds its memory budget. The message is one printable line.
    """
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        return _Unpickler(stream, allowed, persistent).load()
    except Exception as error:
        # A damaged pickle calls functions with wrong values, which raise nearly any exception type.
        text = one_line(error, 300)
        refused = isinstance(error, UnpicklingError) and not _raised_by_pickle(error)
        raise UnpicklingError(
            text if refused else f"it is cut short or damaged ({text})"
        ) from error


def _raised_by_pickle(error: Exception) -> bool:
    """Whether the error was raised inside Python's pickle module."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return bool(frame.f_globals["__name__"] == pickle.__name__)


class _Unpickler(pickle._Unpickler):
    """Python's unpickler with a table instead of imports, and a check before every opcode."""

    stack: list[Any]
    metastack: list[list[Any]]

    def __init__(
        self, stream: IO[bytes], allowed: Names, persistent: Callable[[Any], Any] | None
    ) -> None:
        start = stream.tell()
        self._end = stream.seek(0, io.SEEK_END)
        stream.seek(start)
        self._most = self._left = SLACK + MULTIPLE * (self._end - start)
        self._allowed, self._persistent = allowed, persistent
        super().__init__(_BoundedStream(stream, self._end), encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """The replacement for a global; every opcode that names one calls this."""
        try:
            return self._allowed[module, name]
        except KeyError:
            raise UnpicklingError(f"it asks for {module}.{name}") from None

    def persistent_load(self, identifier: Any) -> Any:
        """The replacement for an object outside the pickle."""
        if self._persistent is None:
            raise UnpicklingError("it asks for an object kept outside the file")
        self.measure(identifier)
        return self._persistent(identifier)

    def spend(self, count: int) -> None:
        """Charge ``count`` bytes to the memory budget."""
        self._left -= count
        if self._left < 0:
            raise UnpicklingError(f"it asks for more than {self._most:,} bytes of memory")

    def measure(self, value: Any, depth: int = 0) -> None:
        """Charge the expanded size of a value; shared parts count once per reference."""
        if depth > DEEPEST:
            raise UnpicklingError(f"it has values nested deeper than {DEEPEST}")
        if isinstance(value, dict | list | tuple | set | frozenset):
            self.spend(_HOLDER + _PART * len(value))
            for part in value:
                self.measure(part, depth + 1)
            for part in value.values() if isinstance(value, dict) else ():
                self.measure(part, depth + 1)
        elif isinstance(value, str | bytes):
            self.spend(len(value))
        else:
            self.spend(value.nbytes if isinstance(value, np.ndarray) else _PART)

    def measure_all(self) -> None:
        """Charge the result against a fresh budget."""
        self._left = self._most
        self.measure(self.stack[-1])

    def grow(self, kind: type, target: Any, keys: Iterable[Any] = ()) -> None:
        """Check that values may be added to ``target`` under ``keys``."""
        if not isinstance(target, kind):
            raise UnpicklingError(f"it adds values to a {type(target).__name__}")
        for key in keys:
            # Huge integers and nested tuples can be chosen so that hashing takes forever.
            small = isinstance(key, int) and key.bit_length() <= 64
            if not small and not isinstance(key, str | bytes | float | None):
                raise UnpicklingError(f"it has a key that is a {type(key).__name__}")

    def call(self, function: Any, args: Any, kind: type = object) -> None:
        """Check that a function may be called, and charge its arguments."""
        if not isinstance(function, kind) or not callable(function) or not self.allows(function):
            raise UnpicklingError(f"it calls a {type(function).__name__}")
        self.measure(args)

    def allows(self, value: Any) -> bool:
        """Whether the value is one of the allowed replacements."""
        return any(value is other for other in self._allowed.values())

    def build(self) -> None:
        """Check that an object may receive a state."""
        target, state = self.stack[-2:]
        if type(target) is OrderedDict:
            self.stack[-1] = None  # drop the attributes that torch adds to its dicts
        elif not hasattr(target, "__setstate__") or not self.allows(type(target)):
            raise UnpicklingError(f"it sets the state of a {type(target).__name__}")
        self.measure(state)


class _BoundedStream:
    """A stream whose large reads are capped at its end, so that no excess memory is allocated."""

    def __init__(self, stream: IO[bytes], end: int) -> None:
        self._stream, self._end = stream, end
        self.readline = stream.readline

    def read(self, count: int) -> bytes:
        size = count if count < 1 << 20 else min(count, self._end - self._stream.tell())
        return self._stream.read(size)


# Run before an opcode, whose operands are still on the stack; below a mark is metastack[-1].
_CHECKS: dict[bytes, Callable[[Any], None]] = {
    pickle.APPEND: lambda u: u.grow(list, u.stack[-2]),
    pickle.APPENDS: lambda u: u.grow(list, u.metastack[-1][-1]),
    pickle.SETITEM: lambda u: u.grow(dict, u.stack[-3], u.stack[-2:-1]),
    pickle.SETITEMS: lambda u: u.grow(dict, u.metastack[-1][-1], u.stack[::2]),
    pickle.ADDITEMS: lambda u: u.grow(set, u.metastack[-1][-1], u.stack),
    pickle.DICT: lambda u: u.grow(dict, {}, u.stack[::2]),
    pickle.FROZENSET: lambda u: u.grow(set, set(), u.stack),
    pickle.REDUCE: lambda u: u.call(u.stack[-2], u.stack[-1]),
    pickle.NEWOBJ: lambda u: u.call(u.stack[-2], u.stack[-1], type),
    pickle.NEWOBJ_EX: lambda u: u.call(u.stack[-3], u.stack[-2:], type),
    pickle.OBJ: lambda u: u.call(u.stack[0], u.stack[1:]),
    pickle.INST: lambda u: u.measure(u.stack),
    pickle.BUILD: lambda u: u.build(),
    pickle.STOP: lambda u: u.measure_all(),
}


def _checked(code: int) -> Callable[[Any], None]:
    opcode, run = bytes((code,)), pickle._Unpickler.dispatch.get(code)
    cost, check = _LARGER.get(opcode, _OPCODE), _CHECKS.get(opcode)

    def load(unpickler: Any) -> None:
        if run is None or opcode in _REFUSED:
            raise UnpicklingError(f"it asks for the opcode {opcode!r}")
        unpickler.spend(cost)
        if check is not None:
            check(unpickler)
        run(unpickler)

    return load


_Unpickler.dispatch = {code: _checked(code) for code in range(256)}

# Numbers only: an array of objects would contain another pickle.
_NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


class _Type:
    """Replacement for a numeric NumPy dtype."""

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        text = _text(code)
        if text.lstrip("<>|=") not in _NUMBERS:
            raise UnpicklingError(f"it asks for the NumPy type {text[:40]}")
        self.code, self.order = text.lstrip("<>|="), text[0] if text[0] in "<>" else "="

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1]) if type(state) is tuple and len(state) > 1 else None
        if order not in ("<", ">", "|", "="):
            raise UnpicklingError("it asks for a NumPy type of an unknown state")
        self.order = order

    def dtype(self) -> np.dtype[Any]:
        order: Any = self.order
        return np.dtype(self.code).newbyteorder(order)


class _Array(np.ndarray[Any, Any]):
    """Replacement for a numeric array; ``__setstate__`` fills it from bytes in the pickle."""

    def __new__(cls) -> _Array:
        return super().__new__(cls, (0,), np.uint8)

    def __setstate__(self, state: Any) -> None:
        shape, kind, fortran, raw = state[-4:]
        if not isinstance(kind, _Type) or type(raw) is not bytes:
            raise UnpicklingError("it asks for an array that does not hold numbers")
        whole: Any = (1, shape, kind.dtype(), bool(fortran), raw)
        super().__setstate__(whole)


def _array(kind: Any, shape: Any = None, code: Any = None) -> _Array:
    if kind is not _Array:
        raise UnpicklingError("it asks for an array of an unknown class")
    return _Array()


def _scalar(kind: Any, data: Any = None) -> int | float | bool:
    if type(kind) is not _Type or type(data) is not bytes or len(data) != kind.dtype().itemsize:
        raise UnpicklingError("it asks for a NumPy number of the wrong size")
    return np.frombuffer(data, kind.dtype())[0].item()


def _encoded(text: Any, encoding: Any) -> bytes:
    """``_codecs.encode``, with which pickle protocols below 3 write bytes."""
    if _text(encoding) != "latin1" or type(text) is not str:
        raise UnpicklingError(f"it asks for the encoding {_text(encoding)[:40]!r}")
    return text.encode("latin1")


def _text(value: Any) -> str:
    """A str, or a Python 2 str, which arrives as bytes."""
    if type(value) is bytes:
        return value.decode("latin1")
    if type(value) is not str:
        raise UnpicklingError(f"it has a {type(value).__name__} where text is expected")
    return value


# NumPy arrays and scalars, and bytes of old protocols. Arrays are returned as a subclass of
# numpy.ndarray, which numpy.asarray converts without a copy. NumPy renamed ``core`` to ``_core``;
# published files use the old name.
ARRAYS: Names = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encoded,
}
