"""Reading pickles: no code of the file is run, and nothing larger than the file deserves is made.

A pickle is a program for a stack machine. :func:`read_pickle` runs it on Python's own machine, the
one written in Python, with what could do harm taken out of it:

- names are looked up in a table of this package's functions and never imported; only these are
  called, and only their results that expect a state are given one;
- values are added to lists, dicts and sets alone, and keys are text and small numbers (the hash of
  nested tuples is taken anew for each place: 582 bytes can hang);
- every opcode costs memory, and a value that is handed to a function, or back to the caller, costs
  what it takes unfolded, each part as often as it is held. (A list of a list of a list, each held
  twice, is small in memory and endless for whoever prints, joins or hashes it.) What an object
  holds is not counted: whoever walks from object to object meets each once.

Every pickle goes through it: CIFAR's files, torch's checkpoints, EDM's networks.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pickle import UnpicklingError
from typing import IO, Any

import numpy as np

from golddiff.system.errors import one_line

# Nests of data are less than thirty deep.
DEEPEST = 200
# What may be made of a file of n bytes: SLACK + MULTIPLE * n.
SLACK, MULTIPLE = 64 * 2**20, 8
# About what an opcode takes, most a number and its place; and those that take more.
_OPCODE, _HOLDER, _PART = 32, 256, 16
_LARGER = {
    **dict.fromkeys((pickle.EMPTY_LIST, pickle.LIST, pickle.MEMOIZE, pickle.PUT), 96),
    **dict.fromkeys((pickle.BINPUT, pickle.LONG_BINPUT, pickle.MARK, pickle.EMPTY_DICT), 128),
    **dict.fromkeys((pickle.EMPTY_SET, pickle.FROZENSET, pickle.DICT), 256),
    **dict.fromkeys((pickle.REDUCE, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.OBJ, pickle.INST), 512),
}
# EXT names what others have registered; BYTEARRAY8 takes the memory that it asks for before it
# reads; buffers outside of the file are nobody's.
_REFUSED = (
    *(pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)

_HOLDERS = (dict, list, tuple, set, frozenset)

Names = Mapping[tuple[str, str], Any]


def read_pickle(
    data: bytes | IO[bytes], allowed: Names, persistent: Callable[[Any], Any] | None = None
) -> Any:
    """Read one pickle.

    Args:
        data: its bytes, or a stream that stands at its beginning and is left at its end.
        allowed: what stands in for each (module, name) that the pickle may ask for: a function,
            safe whatever it is handed; a class, whose ``__setstate__`` alone takes a state; or a
            value that cannot be changed.
        persistent: makes a value of a persistent id; None: such ids are refused.

    Returns:
        The value; strings of Python 2 come back as bytes.

    Raises:
        UnpicklingError: a damaged pickle, one that asks for another name (which is not imported),
            or for more than the file deserves. The message is one printable line without a subject.
    """
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        return _Unpickler(stream, allowed, persistent).load()
    except Exception as error:
        # A damaged pickle raises nearly anything, as it drives functions with wrong values.
        text = one_line(error, 300)
        refused = isinstance(error, UnpicklingError) and not _is_python_s(error)
        raise UnpicklingError(text if refused else f"is cut short or damaged ({text})") from error


def _is_python_s(error: Exception) -> bool:
    """Whether Python's own machine raised it."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return bool(frame.f_globals["__name__"] == pickle.__name__)


class _Unpickler(pickle._Unpickler):
    """Python's own, with a table in place of imports and a check before every opcode."""

    stack: list[Any]
    metastack: list[list[Any]]

    def __init__(
        self, stream: IO[bytes], allowed: Names, persistent: Callable[[Any], Any] | None
    ) -> None:
        here = stream.tell()
        self._end = stream.seek(0, io.SEEK_END)
        stream.seek(here)
        self._most = self._left = SLACK + MULTIPLE * (self._end - here)
        self._allowed, self._persistent = allowed, persistent
        super().__init__(_Bounded(stream, self._end), encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """What stands in for a name: every opcode that names anything comes here."""
        try:
            return self._allowed[module, name]
        except KeyError:
            raise UnpicklingError(f"asks for {module}.{name}") from None

    def persistent_load(self, identifier: Any) -> Any:
        """What stands in for an object outside of the pickle."""
        if self._persistent is None:
            raise UnpicklingError("asks for an object kept outside the file")
        self.measure(identifier)
        return self._persistent(identifier)

    def spend(self, count: int) -> None:
        """Count memory."""
        self._left -= count
        if self._left < 0:
            raise UnpicklingError(f"asks for more than {self._most:,} bytes of memory")

    def measure(self, value: Any) -> None:
        """Count the memory of a value unfolded."""
        inside: list[Iterator[Any]] = [iter((value,))]
        while inside:
            part: Any = next(inside[-1], inside)
            if part is inside:
                inside.pop()
                continue
            if isinstance(part, _HOLDERS):
                values = part.values() if isinstance(part, dict) else ()
                self.spend(_HOLDER + _PART * len(part))
                inside.append(itertools.chain(part, values))
            else:
                text = isinstance(part, str | bytes)
                size = part.nbytes if isinstance(part, np.ndarray) else _PART
                self.spend(len(part) if text else size)
            if len(inside) > DEEPEST:
                raise UnpicklingError(f"has values nested deeper than {DEEPEST}")

    def measure_all(self) -> None:
        """Count the memory of what is handed back."""
        self._left = self._most
        self.measure(self.stack[-1])

    def grow(self, kind: type, target: Any, keys: Iterable[Any] = ()) -> None:
        """Check that values may be added."""
        if not isinstance(target, kind):
            raise UnpicklingError(f"adds values to a {type(target).__name__}")
        for key in keys:
            # Numbers can be chosen, and tuples nested, so that hashing them never ends.
            small = isinstance(key, int) and key.bit_length() <= 64
            if not small and not isinstance(key, str | bytes | float | None):
                raise UnpicklingError(f"has a key that is a {type(key).__name__}")

    def call(self, maker: Any, given: Any, kind: type = object) -> None:
        """Check that something may be called with arguments."""
        if not isinstance(maker, kind) or not callable(maker) or not self.allows(maker):
            raise UnpicklingError(f"calls a {type(maker).__name__}")
        self.measure(given)

    def allows(self, value: Any) -> bool:
        """Whether it is what a name stands for."""
        return any(value is made for made in self._allowed.values())

    def build(self) -> None:
        """Check that an object may be given a state."""
        target, state = self.stack[-2:]
        if type(target) is OrderedDict:
            self.stack[-1] = None  # what torch hangs on its dicts is dropped
        elif not hasattr(target, "__setstate__") or not self.allows(type(target)):
            raise UnpicklingError(f"sets the state of a {type(target).__name__}")
        self.measure(state)


class _Bounded:
    """A stream that is not asked for more than it has: for that much memory would be taken."""

    def __init__(self, stream: IO[bytes], end: int) -> None:
        self._stream, self._end = stream, end
        self.readline = stream.readline

    def read(self, count: int) -> bytes:
        few = count if count < 1 << 20 else min(count, self._end - self._stream.tell())
        return self._stream.read(few)


# Before an opcode, with the values that it takes still on the stack; what a mark is on lies below.
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


class _Opcodes(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> Any:
        raise UnpicklingError(f"asks for the opcode {bytes((code,))!r}")


def _checked(code: int, run: Callable[[Any], None]) -> Callable[[Any], None]:
    cost, check = _LARGER.get(bytes((code,)), _OPCODE), _CHECKS.get(bytes((code,)))

    def load(unpickler: Any) -> None:
        unpickler.spend(cost)
        if check is not None:
            check(unpickler)
        run(unpickler)

    return load


_Unpickler.dispatch = _Opcodes(
    {
        code: _checked(code, run)
        for code, run in pickle._Unpickler.dispatch.items()
        if bytes((code,)) not in _REFUSED
    }
)

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


# Arrays and numbers of NumPy's, and bytes in old protocols. Arrays come back as a subclass of
# numpy.ndarray: numpy.asarray makes plain ones of them, without a copy. Both of NumPy's module
# names occur, the old one in every file that is in circulation.
ARRAYS: Names = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encoded,
}
