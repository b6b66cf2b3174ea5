"""A command from one dataclass: its fields are the options, and dataclasses among them groups.

So each option is stated once, with its type, default and help, by all commands that have it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")


def command(run: Callable[[Options], None]) -> Callable[..., None]:
    """What typer takes, from a function of one dataclass.

    A field without a default is an argument or an option that must be given; the function's
    docstring is the command's help.
    """
    kind = get_type_hints(run)["options"]

    def called(**values: Any) -> None:
        run(_made(kind, values))

    called.__name__, called.__doc__ = run.__name__, run.__doc__
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=hint
            )
            for field, hint in _flat(kind)
        ]
    )
    return called


def _flat(kind: type) -> Iterator[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            yield from _flat(hints[field.name])
        else:
            yield field, hints[field.name]


def _made(kind: type[Options], values: Mapping[str, Any]) -> Options:
    hints = get_type_hints(kind, include_extras=True)
    return kind(
        **{
            field.name: _made(hints[field.name], values)
            if is_dataclass(hints[field.name])
            else values[field.name]
            for field in fields(kind)  # type: ignore[arg-type]
        }
    )


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
