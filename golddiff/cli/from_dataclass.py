"""A command's options, stated once: in the dataclass of its settings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from golddiff.system.errors import ArgumentError


def takes(settings: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a dataclass that has a help text.

    The command's last parameter, ``settings``, gets the fields' values by name. A field's metadata:
    ``help``; ``panel``, of the help page; ``default``, where it is another on the command line.
    True or false is a flag; a tuple is whole numbers with commas between.
    """
    hints = get_type_hints(settings)
    fields = [f for f in dataclasses.fields(settings) if "help" in f.metadata]
    tuples = [f.name for f in fields if isinstance(f.default, tuple)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            made = {f.name: given.pop(f.name) for f in fields}
            made |= {name: whole_numbers(name, made[name]) for name in tuples}
            command(**given, settings=made)

        own_hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=own_hints[name], kind=parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "settings"
        ]
        added = []
        for f in fields:
            flag = [f"--{f.name.replace('_', '-')}"] if hints[f.name] is bool else []
            option = typer.Option(
                *flag, help=f.metadata["help"], rich_help_panel=f.metadata.get("panel")
            )
            default = f.metadata.get("default", f.default)
            kind = str if f.name in tuples else hints[f.name]
            if f.name in tuples:
                default = ",".join(map(str, default))
            added.append(
                inspect.Parameter(
                    f.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=Annotated[kind, option],
                )
            )
        run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between.

    Raises:
        ArgumentError: something else.
    """
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ArgumentError(
            f"{name}: got {text!r}, expected whole numbers with commas between (1,2,2)"
        ) from None
