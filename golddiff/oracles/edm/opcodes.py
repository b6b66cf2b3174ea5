"""Pickle opcodes that only make or move plain data: numbers, text, bytes, containers, the memo.

All that protocols 2 to 5 write for such data; those of protocols 0 and 1 alone are left out.
Each takes the machine (:mod:`golddiff.oracles.edm.machine`), reads its own argument, and works on
the stack. Bytes are never copied: they stay views into the file.
"""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from golddiff.oracles.edm.machine import Machine

Opcode = Callable[["Machine"], None]

# Numbers of a checkpoint have at most 20 digits (torch's magic number); int() is slow for many.
MOST_DIGITS = 64

PLAIN: dict[int, Opcode] = {}


def opcode(code: bytes) -> Callable[[Opcode], Opcode]:
    """Register a function for an opcode."""

    def add(function: Opcode) -> Opcode:
        PLAIN[code[0]] = function
        return function

    return add


def _constant(code: bytes, make: Callable[[], Any]) -> None:
    PLAIN[code[0]] = lambda m: m.push(make())


def _number(code: bytes, layout: str) -> None:
    size = struct.calcsize(layout)
    PLAIN[code[0]] = lambda m: m.push(struct.unpack(layout, m.take(size))[0])


def _sized(code: bytes, layout: str, convert: Callable[[memoryview], Any]) -> None:
    """An opcode whose argument is a length and so many bytes."""
    size = struct.calcsize(layout)

    def push(m: Machine) -> None:
        m.push(convert(m.take(struct.unpack(layout, m.take(size))[0])))

    PLAIN[code[0]] = push


def _tuple(code: bytes, length: int) -> None:
    PLAIN[code[0]] = lambda m: m.push(tuple(m.pop_many(length)))


def _slice(code: bytes, make: Callable[[list[Any]], Any]) -> None:
    """An opcode that makes one value of all above the mark."""
    PLAIN[code[0]] = lambda m: m.push(make(m.pop_mark()))


def _put(code: bytes, layout: str) -> None:
    size = struct.calcsize(layout)

    def put(m: Machine) -> None:
        m.memo[struct.unpack(layout, m.take(size))[0]] = m.top()

    PLAIN[code[0]] = put


def _get(code: bytes, layout: str) -> None:
    size = struct.calcsize(layout)
    PLAIN[code[0]] = lambda m: m.push(m.recall(struct.unpack(layout, m.take(size))[0]))


def _text(view: memoryview) -> str:
    return str(view, "utf-8", "surrogatepass")


def _long(view: memoryview) -> int:
    if len(view) > MOST_DIGITS:
        raise UnpicklingError(f"it holds a number of {len(view)} bytes")
    return int.from_bytes(view, "little", signed=True)


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2:
        raise UnpicklingError("a dict in it has a key without a value")
    return dict(zip(map(_key, values[::2]), values[1::2], strict=True))


def _key(value: Any) -> Any:
    # Keys are hashed. Deep nests of tuples overflow the C stack there, and numbers can be chosen
    # so that all of them collide; the files have only names.
    if type(value) is not str:
        raise UnpicklingError(f"a key in it is of type {type(value).__name__}")
    return value


def _elements(values: list[Any]) -> set[Any]:
    return set(map(_key, values))


for code, make in (
    (pickle.NONE, lambda: None),
    (pickle.NEWTRUE, lambda: True),
    (pickle.NEWFALSE, lambda: False),
    (pickle.EMPTY_LIST, list),
    (pickle.EMPTY_DICT, dict),
    (pickle.EMPTY_SET, set),
    (pickle.EMPTY_TUPLE, tuple),
):
    _constant(code, make)
for code, layout in (
    (pickle.BININT, "<i"),
    (pickle.BININT1, "<B"),
    (pickle.BININT2, "<H"),
    (pickle.BINFLOAT, ">d"),
):
    _number(code, layout)
for code, layout, convert in (
    (pickle.SHORT_BINUNICODE, "<B", _text),
    (pickle.BINUNICODE, "<I", _text),
    (pickle.BINUNICODE8, "<Q", _text),
    (pickle.SHORT_BINBYTES, "<B", memoryview),
    (pickle.BINBYTES, "<I", memoryview),
    (pickle.BINBYTES8, "<Q", memoryview),
    (pickle.BYTEARRAY8, "<Q", memoryview),
    (pickle.LONG1, "<B", _long),
    (pickle.LONG4, "<I", _long),
):
    _sized(code, layout, convert)
for code, length in ((pickle.TUPLE1, 1), (pickle.TUPLE2, 2), (pickle.TUPLE3, 3)):
    _tuple(code, length)
for code, gather in (
    (pickle.TUPLE, tuple),
    (pickle.FROZENSET, _elements),
):
    _slice(code, gather)
for code, layout in ((pickle.BINPUT, "<B"), (pickle.LONG_BINPUT, "<I")):
    _put(code, layout)
for code, layout in ((pickle.BINGET, "<B"), (pickle.LONG_BINGET, "<I")):
    _get(code, layout)


@opcode(pickle.PROTO)
def _proto(m: Machine) -> None:
    version = m.take(1)[0]
    if version > pickle.HIGHEST_PROTOCOL:
        raise UnpicklingError(f"it is of pickle protocol {version}")


@opcode(pickle.FRAME)
def _frame(m: Machine) -> None:
    # A frame only says how much to read ahead; the whole file is in memory.
    (length,) = struct.unpack("<Q", m.take(8))
    if length > m.left():
        raise UnpicklingError("it is cut short")


@opcode(pickle.MARK)
def _mark(m: Machine) -> None:
    m.mark()


@opcode(pickle.POP)
def _pop(m: Machine) -> None:
    m.pop_or_unmark()


@opcode(pickle.POP_MARK)
def _pop_mark(m: Machine) -> None:
    m.pop_mark()


@opcode(pickle.DUP)
def _dup(m: Machine) -> None:
    m.push(m.top())


@opcode(pickle.MEMOIZE)
def _memoize(m: Machine) -> None:
    m.memo[len(m.memo)] = m.top()


@opcode(pickle.APPEND)
def _append(m: Machine) -> None:
    _extend(m, m.pop_many(1))


@opcode(pickle.APPENDS)
def _appends(m: Machine) -> None:
    _extend(m, m.pop_mark())


@opcode(pickle.SETITEM)
def _setitem(m: Machine) -> None:
    _update(m, m.pop_many(2))


@opcode(pickle.SETITEMS)
def _setitems(m: Machine) -> None:
    _update(m, m.pop_mark())


@opcode(pickle.ADDITEMS)
def _additems(m: Machine) -> None:
    values = m.pop_mark()
    _target(m, set).update(_elements(values))


def _extend(m: Machine, values: list[Any]) -> None:
    _target(m, list).extend(values)


def _update(m: Machine, values: list[Any]) -> None:
    _target(m, dict, OrderedDict).update(_pairs(values))


def _target(m: Machine, *kinds: type) -> Any:
    """What values are added to. Exactly a container: no object gets a method called."""
    target = m.top()
    if type(target) not in kinds:
        raise UnpicklingError(f"it adds values to {type(target).__name__}")
    return target
