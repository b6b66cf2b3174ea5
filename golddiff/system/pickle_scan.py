"""A look through a pickle before it is read, for what makes the reader itself crash.

Nothing is made of it: opcodes are counted off as they would move the reader's stack.
"""

from __future__ import annotations

import pickletools
from pickle import UnpicklingError
from typing import IO

# Nests deeper than this overflow the C stack where they are hashed or freed; files of data have
# less than ten.
DEEPEST = 200
_REFUSED = {
    "BYTEARRAY8",  # cut short it leaves CPython with a buffer that it cannot free
    *("NEXT_BUFFER", "READONLY_BUFFER", "EXT1", "EXT2", "EXT4"),
}
_PUTS, _GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_INTO = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}


def scan(data: bytes | IO[bytes]) -> None:
    """Raise for a pickle that is no sound one, or that would crash what reads it.

    Args:
        data: the pickle, or a stream that stands at its beginning and is left at its end.

    Raises:
        UnpicklingError: deep nests, huge memo indices, opcodes of no use to plain data.
        ValueError: no pickle, or a damaged one.
    """
    stack: list[int | None] = []  # how deep each value is; None for a mark
    memo: dict[int, int] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if name in _REFUSED:
            raise UnpicklingError(f"asks for the opcode {name}")
        if name in _PUTS or name == "MEMOIZE":
            place = len(memo) if name == "MEMOIZE" else int(argument or 0)
            # The memo is an array: one huge index would take all memory.
            if place > count + 1:
                raise UnpicklingError("asks for a memo larger than itself")
            memo[place] = _depth(stack[-1:])
        elif name in _GETS:
            stack.append(memo.get(int(argument or 0), 0))
        else:
            _move(stack, opcode)
        if stack and (stack[-1] or 0) > DEEPEST:
            raise UnpicklingError(f"asks for values nested deeper than {DEEPEST}")


def _move(stack: list[int | None], opcode: pickletools.OpcodeInfo) -> None:
    """Take from the stack and put on it what an opcode does."""
    taken: list[int | None] = []
    for kind in reversed(opcode.stack_before):
        if kind is pickletools.stackslice:
            while stack and stack[-1] is not None:
                taken.append(stack.pop())
        elif stack:
            taken.append(stack.pop())
    if opcode.name == "MARK":
        stack.append(None)
    elif opcode.name == "DUP":
        stack += [_depth(taken)] * 2
    elif opcode.name in _INTO:
        target = taken.pop() if taken else 0
        stack.append(max(target or 0, 1 + _depth(taken)))
    else:
        stack += [1 + _depth(taken) if taken else 0] * len(opcode.stack_after)


def _depth(values: list[int | None]) -> int:
    return max((value or 0 for value in values), default=0)
