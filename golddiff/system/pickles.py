"""Reading pickles: no code of the file is run, and nothing larger than the file deserves is made.

A pickle is a program for a stack machine. Two things keep it harmless, whoever wrote it:

- :func:`scan` follows its opcodes without making anything, and counts: how many there are, how deep
  values nest, how many bytes are made, and how large every value is with each part counted as often
  as it is held. (A list of a list of a list, each held twice, is small in memory and endless for
  whoever prints, joins or hashes it.)
- :func:`read_pickle` then makes the values with Python's own unpickler, whose names are looked up
  in a table of this package's functions and never imported.

Every pickle goes through :func:`read_pickle`: CIFAR's files, torch's checkpoints, EDM's networks.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping, Sequence
from pickle import UnpicklingError
from types import FunctionType
from typing import IO, Any

from golddiff.system.errors import one_line

# The published networks have up to 60,000 opcodes; nests of data are less than thirty deep.
MOST_OPCODES = 2_000_000
DEEPEST = 200
# What may be made of a file of n bytes: SLACK + MULTIPLE * n.
SLACK, MULTIPLE = 64 * 2**20, 8
# About what Python takes for a value, an entry of a dict or set, and an object of some class.
_VALUE, _POINTER, _ENTRY, _OBJECT = 64, 8, 96, 512

Names = Mapping[tuple[str, str], Any]


def read_pickle(
    data: bytes | IO[bytes],
    allowed: Names,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Read one pickle.

    Args:
        data: its bytes, or a stream that stands at its beginning and is left at its end.
        allowed: what stands in for each (module, name) that the pickle may ask for: a function,
            safe whatever it is handed; a class with a ``__setstate__``, or a plain container; or a
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
        start = stream.tell()
        scan(stream)
        stream.seek(start)
        return _Unpickler(stream, allowed, persistent).load()
    except Exception as error:
        # A damaged pickle raises nearly anything, as it drives functions with wrong values.
        raise UnpicklingError(one_line(error, 300)) from error


class _Unpickler(pickle.Unpickler):
    """Python's own, with a table in place of imports."""

    def __init__(
        self, stream: IO[bytes], allowed: Names, persistent: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(stream, encoding="bytes")
        self._allowed, self._persistent = allowed, persistent

    def find_class(self, module: str, name: str) -> Any:
        """What stands in for a name: every opcode that names anything comes here."""
        try:
            made = self._allowed[module, name]
        except KeyError:
            raise UnpicklingError(f"asks for {module}.{name}") from None
        # A function could be altered; classes say themselves what state they take.
        function = isinstance(made, FunctionType)
        return _Callable(f"{module}.{name}", made) if function else made

    def persistent_load(self, identifier: Any) -> Any:
        """What stands in for an object outside of the pickle."""
        if self._persistent is None:
            raise UnpicklingError("asks for an object kept outside the file")
        return self._persistent(identifier)


class _Callable:
    """A function that a pickle can call but not alter."""

    __slots__ = ("_function", "_name")
    _function: Callable[..., Any]
    _name: str

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_function", function)

    def __setattr__(self, name: str, value: Any) -> None:
        raise UnpicklingError(f"asks to alter {self._name}")

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._function(*arguments)
        except TypeError as error:
            raise UnpicklingError(f"calls {self._name} with wrong arguments") from error


class _Value:
    """What is known of a value that was not made.

    Attributes:
        kind: "number", "text", "tuple", "list", "dict", "set", "name" or "object".
        name: of a name, or of what made an object.
        size: its bytes and those of all it holds, each counted as often as it is held.
        own: the bytes that a function could copy which is handed it.
        depth: of its nest.
        held: whether another value holds it, so that it may not grow any more.
    """

    __slots__ = ("depth", "held", "kind", "name", "own", "size")

    def __init__(self, kind: str, size: int, own: int, depth: int, name: str = "") -> None:
        self.kind, self.name = kind, name
        self.size, self.own, self.depth, self.held = size, own, depth, False


_SMALL = _Value("number", 16, 16, 0)
_MAPPINGS = ("OrderedDict", "EasyDict")
# EXT names what others have registered; a BYTEARRAY8 cut short leaves CPython with a buffer that it
# cannot free; buffers outside of the file are nobody's.
_REFUSED = {"EXT1", "EXT2", "EXT4", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"}
_EMPTY = {"EMPTY_LIST": "list", "EMPTY_DICT": "dict", "EMPTY_SET": "set", "EMPTY_TUPLE": "tuple"}
_MARKED = {"LIST": "list", "DICT": "dict", "FROZENSET": "set", "TUPLE": "tuple"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_INTO = {
    **{"APPEND": ("list", 1), "SETITEM": ("dict", 2)},
    **{"APPENDS": ("list", None), "SETITEMS": ("dict", None), "ADDITEMS": ("set", None)},
}
_CALLS = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ", "BINPERSID"}
_PUTS, _GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}


def scan(stream: IO[bytes]) -> None:
    """Follow a pickle's opcodes from where a stream stands to the pickle's end; make nothing.

    Raises:
        UnpicklingError: too many opcodes, nests too deep, more bytes than :data:`MULTIPLE` times
            the stream and :data:`SLACK`, keys other than text and small numbers, values added to
            what is part of another already, opcodes without a use for data, a damaged pickle.
    """
    start = stream.tell()
    held = stream.seek(0, io.SEEK_END) - start
    stream.seek(start)
    machine = _Scan(SLACK + MULTIPLE * held)
    opcodes = pickletools.genops(stream)
    for count in range(MOST_OPCODES):
        try:
            found = next(opcodes, None)
        except (ValueError, UnicodeDecodeError) as error:
            raise UnpicklingError(f"is cut short or damaged ({one_line(error, 100)})") from error
        if found is None:
            return
        machine.step(found[0].name, found[1], count)
    raise UnpicklingError(f"has more than {MOST_OPCODES:,} opcodes")


class _Scan:
    """The stack and the memo of a pickle, with sizes in place of values."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most
        self.stack: list[_Value | None] = []  # None: a mark
        self.memo: dict[int, _Value] = {}

    def step(self, name: str, argument: Any, count: int) -> None:
        """What one opcode does."""
        if name in _REFUSED:
            what = "registered extension" if name.startswith("EXT") else "opcode"
            told = argument if name.startswith("EXT") else name
            raise UnpicklingError(f"asks for the {what} {told}")
        if name in _GETS:
            if int(argument) not in self.memo:
                raise UnpicklingError(f"recalls value {argument}, which it has not kept")
            self.stack.append(self.memo[int(argument)])
        elif name in _PUTS or name == "MEMOIZE":
            place = len(self.memo) if name == "MEMOIZE" else int(argument)
            # The memo is an array: one huge index would take all memory.
            if place > count + 1:
                raise UnpicklingError("asks for a memo larger than itself")
            self.memo[place] = self._top()
        elif name in _INTO:
            self._grow(*_INTO[name])
        elif name in _CALLS:
            self._call(name, argument)
        elif name == "BUILD":
            self._build()
        elif name in ("MARK", "POP", "POP_MARK", "DUP"):
            self._move(name)
        elif name == "STOP":
            self._pop(1)
        elif name not in ("PROTO", "FRAME"):
            self.stack.append(self._made(name, argument))

    def _made(self, name: str, argument: Any) -> _Value:
        """A value that an opcode makes of its argument, or of what it takes from the stack."""
        if name in _EMPTY:
            return self._hold(_EMPTY[name], [])
        if name in _MARKED:
            return self._hold(_MARKED[name], self._pop_mark())
        if name in _TUPLES:
            return self._hold("tuple", self._pop(_TUPLES[name]))
        if name == "STACK_GLOBAL":
            words = self._pop(2)
            if any(word.kind != "text" for word in words):
                raise UnpicklingError("asks for something whose name is not text")
            return self._leaf("name", 0, ".".join(word.name for word in words))
        if name == "GLOBAL":
            return self._leaf("name", 0, argument.replace(" ", "."))
        if name == "PERSID":
            return self._leaf("object", _OBJECT)
        if isinstance(argument, str | bytes):
            short = argument if isinstance(argument, str) and len(argument) < 200 else ""
            return self._leaf("text", len(argument), short)
        if isinstance(argument, int) and argument.bit_length() > 64:
            return self._leaf("long", argument.bit_length() // 8)
        self._spend(_SMALL.size)
        return _SMALL

    def _leaf(self, kind: str, size: int, name: str = "") -> _Value:
        self._spend(_VALUE + size)
        return _Value(kind, _VALUE + size, _VALUE + size, 0, name)

    def _hold(self, kind: str, parts: list[_Value]) -> _Value:
        """A new container."""
        self._spend(_VALUE)
        made = _Value(kind, _VALUE, _VALUE, 0)
        self._add(made, parts)
        return made

    def _add(self, target: _Value, parts: Sequence[_Value]) -> None:
        """Let a container hold more."""
        room = _POINTER * len(parts)
        if target.kind in ("dict", "set", "object"):
            room = _ENTRY * len(parts)
            # Numbers can be chosen, and tuples nested, so that hashing them never ends.
            for key in parts if target.kind == "set" else parts[::2]:
                if key.kind not in ("text", "number"):
                    raise UnpicklingError(f"has a key that is a {key.kind}")
        self._spend(room)
        target.own += room + (sum(p.own for p in parts) if target.kind == "tuple" else 0)
        target.size += room
        self._put_into(target, parts)

    def _put_into(self, target: _Value, parts: Sequence[_Value]) -> None:
        target.size += sum(part.size for part in parts)
        target.depth = max([target.depth, *(part.depth + 1 for part in parts)])
        for part in parts:
            part.held = part is not _SMALL
        if target.held:
            raise UnpicklingError("adds to a value that another one holds already")
        if target.depth > DEEPEST:
            raise UnpicklingError(f"has values nested deeper than {DEEPEST}")
        if target.size > self.most:
            self._too_large()

    def _grow(self, kind: str, count: int | None) -> None:
        parts = self._pop_mark() if count is None else self._pop(count)
        target = self._top()
        mapping = target.kind == "object" and target.name.endswith(_MAPPINGS)
        if target.kind != kind and not (kind == "dict" and mapping):
            raise UnpicklingError(f"adds values to a {target.kind}")
        if kind == "dict" and len(parts) % 2:
            raise UnpicklingError("has a key without a value")
        self._add(target, parts)

    def _build(self) -> None:
        """Hand a state to an object."""
        (state,) = self._pop(1)
        target = self._top()
        if target.kind != "object":
            raise UnpicklingError(f"sets the state of a {target.kind}")
        self._hand(target, [state])

    def _call(self, name: str, argument: Any) -> None:
        """Make an object by a call, or by an id of it outside of the pickle."""
        if name in ("INST", "OBJ"):
            parts = self._pop_mark()
        else:
            parts = self._pop({"NEWOBJ_EX": 3, "BINPERSID": 1}.get(name, 2))
        maker = argument if name == "INST" else name
        if name not in ("INST", "BINPERSID"):
            if not parts or parts[0].kind != "name":
                raise UnpicklingError(f"calls a {parts[0].kind if parts else 'mark'}")
            maker = parts[0].name
        self._spend(_OBJECT)
        # Bytes that protocols below 3 spell as a call.
        kind = "text" if maker == "_codecs.encode" else "object"
        made = _Value(kind, _OBJECT, 0, 0, maker)
        self._hand(made, parts)
        self.stack.append(made)

    def _hand(self, target: _Value, parts: list[_Value]) -> None:
        """Whoever makes the object may copy what it is handed."""
        own = sum(part.own for part in parts)
        self._spend(own)
        target.own += own
        self._put_into(target, parts)

    def _move(self, name: str) -> None:
        if name == "MARK":
            self.stack.append(None)
        elif name == "DUP":
            self.stack.append(self._top())
        elif name == "POP_MARK":
            self._pop_mark()
        elif self.stack:
            self.stack.pop()
        else:
            raise UnpicklingError("takes more values than it has")

    def _top(self) -> _Value:
        top = self.stack[-1] if self.stack else None
        if top is None:
            raise UnpicklingError("takes more values than it has")
        return top

    def _pop(self, count: int) -> list[_Value]:
        values: list[_Value] = []
        for _ in range(count):
            values.append(self._top())
            self.stack.pop()
        return values[::-1]

    def _pop_mark(self) -> list[_Value]:
        values: list[_Value] = []
        while self.stack:
            value = self.stack.pop()
            if value is None:
                return values[::-1]
            values.append(value)
        raise UnpicklingError("has no mark where one is needed")

    def _spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            self._too_large()

    def _too_large(self) -> None:
        raise UnpicklingError(f"asks for more than {self.most:,} bytes of memory")
