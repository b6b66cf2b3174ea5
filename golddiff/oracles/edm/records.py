"""What a pickle's names and objects become: inert values that hold what the file says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any


@dataclass(frozen=True)
class Allowed:
    """A name that a pickle may ask for, and what stands in for it.

    Attributes:
        name: its full name, for messages.
        build: makes a value of the arguments; it must be safe whatever they are.
    """

    name: str
    build: Callable[..., Any]


class StandIn:
    """A value in place of an object of a pickle's, which may give it a state."""

    def set_state(self, state: Any) -> None:
        """Take the state over, or raise ``UnpicklingError`` where it is not as it should be."""
        raise NotImplementedError


@dataclass(eq=False)
class Record(StandIn):
    """An object of a class that is not loaded: its name, and what it was holding.

    Attributes:
        class_name: the class, without its module.
        state: the object's ``__dict__``.
    """

    class_name: str
    state: dict[str, Any]

    def set_state(self, state: Any) -> None:
        """Take over attributes."""
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise UnpicklingError(f"the state of a {self.class_name} is not a dict of names")
        self.state.update(state)
