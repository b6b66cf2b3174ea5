"""Reads a pickle without the means to call anything that the pickle names.

``pickle`` itself calls what a file asks for. Here no name is ever imported: a name is looked up
in a table given by the caller, and only what stands there, which is this package's own, is called.
Everything else is refused before it takes effect. It also refuses what makes ``pickle`` crash or
take all memory or time: declared lengths beyond the file's end, huge memo indices, deep nests as
dict keys, one large value handed to very many calls.
"""

from __future__ import annotations

import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pickle import UnpicklingError
from typing import Any

from golddiff.oracles.edm.opcodes import PLAIN, Opcode
from golddiff.oracles.edm.records import Allowed, StandIn

# The published networks have up to 60,000. An opcode makes one object: this bounds memory.
MOST_OPCODES = 2_000_000
MOST_LINE = 1000
MOST_NAME = 300

_SIZED = (tuple, list, dict, OrderedDict, set, str, memoryview)


def read_pickle(
    data: memoryview,
    allowed: Mapping[tuple[str, str], object],
    persistent: Callable[[Any], Any] | None = None,
) -> tuple[Any, memoryview]:
    """Read the pickle that ``data`` begins with.

    Args:
        data: the bytes.
        allowed: for each (module, name) that the pickle may ask for, what stands in for it: an
            :class:`Allowed`, or a value that can only be held.
        persistent: makes a value of a persistent id; None: such ids are refused.

    Returns:
        The value, in which bytes are views into ``data``; and what follows the pickle.

    Raises:
        UnpicklingError: a damaged pickle, or one that asks for anything else, which it names. A
            pickle may be damaged so that conversions raise other errors (``ValueError``, ...).
    """
    machine = Machine(data, allowed, persistent)
    return machine.run(), data[machine.position :]


class Machine:
    """The state of reading one pickle: position, stack, marks, memo."""

    def __init__(
        self,
        data: memoryview,
        allowed: Mapping[tuple[str, str], object],
        persistent: Callable[[Any], Any] | None,
    ) -> None:
        self.data, self.position = data, 0
        self.memo: dict[int, Any] = {}
        self._allowed, self._persistent = allowed, persistent
        # What is handed to calls and states, in elements and bytes. A value of the file is handed
        # over once, so all of them together are no larger than the file.
        self._work_left = 2 * len(data) + 1000
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []

    def run(self) -> Any:
        """Carry out opcodes up to STOP and return the value on top."""
        for _ in range(MOST_OPCODES):
            code = self.take(1)[0]
            if code == pickle.STOP[0]:
                return self.pop_many(1)[0]
            action = _ACTIONS.get(code)
            if action is None:
                raise UnpicklingError(f"it uses the opcode {_name_of(code)}")
            action(self)
        raise UnpicklingError(f"it has more than {MOST_OPCODES:,} opcodes")

    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self.data) - self.position

    def take(self, count: int) -> memoryview:
        """The next bytes, which must be there."""
        if count > self.left():
            raise UnpicklingError("it is cut short")
        self.position += count
        return self.data[self.position - count : self.position]

    def line(self) -> str:
        """The next line, without its end."""
        head = bytes(self.data[self.position : self.position + MOST_LINE])
        end = head.find(b"\n")
        if end < 0:
            raise UnpicklingError("it is cut short, or has an overlong line")
        self.position += end + 1
        return head[:end].decode("utf-8")

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def top(self) -> Any:
        """The value on top, which stays."""
        if not self._stack:
            raise UnpicklingError("its stack is empty where a value is needed")
        return self._stack[-1]

    def pop_many(self, count: int) -> list[Any]:
        """The ``count`` uppermost values, lowest first."""
        if len(self._stack) < count:
            raise UnpicklingError("its stack is empty where a value is needed")
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def mark(self) -> None:
        """Begin a group of values."""
        self._marks.append(self._stack)
        self._stack = []

    def pop_mark(self) -> list[Any]:
        """The group of values since the last mark."""
        if not self._marks:
            raise UnpicklingError("it has no mark where one is needed")
        values, self._stack = self._stack, self._marks.pop()
        return values

    def pop_or_unmark(self) -> None:
        """Drop the uppermost value, or the mark where that is uppermost."""
        if self._stack:
            self._stack.pop()
        else:
            self.pop_mark()

    def recall(self, key: int) -> Any:
        """A value of the memo."""
        if key not in self.memo:
            raise UnpicklingError(f"it recalls value {key}, which it has not kept")
        return self.memo[key]

    def find_class(self, module: Any, name: Any) -> object:
        """What stands in for a name. The one gate: every opcode that names anything comes here."""
        if type(module) is not str or type(name) is not str:
            raise UnpicklingError("it asks for something whose name is not text")
        try:
            return self._allowed[module, name]
        except KeyError:
            raise UnpicklingError(f"it asks for {module}.{name}"[:MOST_NAME]) from None

    def call(self, function: Any, arguments: Any) -> Any:
        """Build what a name that passed the gate stands for."""
        if type(function) is not Allowed:
            raise UnpicklingError(f"it calls a value of type {type(function).__name__}")
        if type(arguments) not in (tuple, list):
            raise UnpicklingError(f"it calls {function.name} without a list of arguments")
        self._spend(arguments)
        try:
            return function.build(*arguments)
        except TypeError as error:
            raise UnpicklingError(f"it calls {function.name} with wrong arguments") from error

    def set_state(self, target: Any, state: Any) -> None:
        """Give a stand-in its state; nothing else takes one."""
        if not isinstance(target, StandIn):
            raise UnpicklingError(f"it sets the state of a value of type {type(target).__name__}")
        self._spend((state,))
        target.set_state(state)

    def _spend(self, values: Sequence[Any]) -> None:
        self._work_left -= sum(len(value) for value in values if type(value) in _SIZED)
        if self._work_left < 0:
            raise UnpicklingError("it hands the same large values over again and again")

    def load_persistent(self, identifier: Any) -> Any:
        """What an id stands for, where the caller can tell."""
        if self._persistent is None:
            raise UnpicklingError("it asks for an object kept outside the file")
        return self._persistent(identifier)


def _global(m: Machine) -> None:
    module = m.line()
    m.push(m.find_class(module, m.line()))


def _stack_global(m: Machine) -> None:
    m.push(m.find_class(*m.pop_many(2)))


def _reduce(m: Machine) -> None:
    m.push(m.call(*m.pop_many(2)))


def _inst(m: Machine) -> None:
    module = m.line()
    function = m.find_class(module, m.line())
    m.push(m.call(function, m.pop_mark()))


def _obj(m: Machine) -> None:
    values = m.pop_mark()
    if not values:
        raise UnpicklingError("it makes an object of no class")
    m.push(m.call(values[0], values[1:]))


def _newobj_ex(m: Machine) -> None:
    function, arguments, keywords = m.pop_many(3)
    if type(keywords) is not dict or keywords:
        raise UnpicklingError("it makes an object with keyword arguments")
    m.push(m.call(function, arguments))


def _build(m: Machine) -> None:
    (state,) = m.pop_many(1)
    m.set_state(m.top(), state)


def _persid(m: Machine) -> None:
    m.push(m.load_persistent(m.line()))


def _binpersid(m: Machine) -> None:
    m.push(m.load_persistent(m.pop_many(1)[0]))


def _extension(size: int) -> Opcode:
    def refuse(m: Machine) -> None:
        number = int.from_bytes(m.take(size), "little")
        raise UnpicklingError(f"it asks for the registered extension {number}")

    return refuse


_OPCODES = {known.code: known for known in pickletools.opcodes}


def _name_of(code: int) -> str:
    known = _OPCODES.get(chr(code))
    return f"0x{code:02x}" if known is None else known.name


_ACTIONS: dict[int, Opcode] = {
    **PLAIN,
    pickle.GLOBAL[0]: _global,
    pickle.STACK_GLOBAL[0]: _stack_global,
    pickle.REDUCE[0]: _reduce,
    pickle.NEWOBJ[0]: _reduce,
    pickle.NEWOBJ_EX[0]: _newobj_ex,
    pickle.INST[0]: _inst,
    pickle.OBJ[0]: _obj,
    pickle.BUILD[0]: _build,
    pickle.PERSID[0]: _persid,
    pickle.BINPERSID[0]: _binpersid,
    pickle.EXT1[0]: _extension(1),
    pickle.EXT2[0]: _extension(2),
    pickle.EXT4[0]: _extension(4),
}
