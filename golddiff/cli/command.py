"""A command from one dataclass: its fields are the options, and dataclasses among them groups.

So each option is stated once, with its type, default and help, by all commands that have it. A
field says what it is by ``option(...)`` or ``argument(...)``; or by the type ``Annotated[...,
typer.Option(...)]``, which commands share; or, in settings that know nothing of a command line, by
its metadata: ``help``, ``panel`` of the help page, and ``default``, where it is another on the
command line. Fields with none are no options. Types that typer does not have come as text, see
``READ``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from golddiff.cli.parse import (
    PatchSizes,
    parse_numbers,
    parse_patch_size,
    parse_size,
    parse_whole_numbers,
)

Options = TypeVar("Options")
ADVANCED = "Advanced"  # the second panel of a command's help

# What reads values of a type, from an option's name and text.
READ: dict[Any, Callable[[str, str], Any]] = {
    tuple[int, ...]: parse_whole_numbers,
    tuple[int, ...] | None: parse_whole_numbers,
    tuple[float, ...] | None: parse_numbers,
    int | float | None: parse_size,
    PatchSizes | None: parse_patch_size,
}


def option(help: str, default: Any = MISSING, **about: Any) -> Any:
    """An option of a command, ``about`` as of typer.Option; without a default it must be given."""
    return field(default=default, metadata={"help": help, **about})


def argument(help: str, default: Any = MISSING, **about: Any) -> Any:
    """An argument of a command, ``about`` as of typer.Argument."""
    return field(default=default, metadata={"help": help, "kind": typer.Argument, **about})


def command(run: Callable[[Options], None]) -> Callable[..., None]:
    """What typer takes, from a function of one dataclass.

    A field without a default is an argument or an option that must be given; the function's
    docstring is the command's help.
    """
    kind = get_type_hints(run)["options"]

    def called(**values: Any) -> None:
        run(_made(kind, values))

    called.__name__ = run.__name__
    # Of all paragraphs but the first, typer keeps the line breaks.
    called.__doc__ = re.sub(r"(?<=\S)\n *(?=\S)", " ", run.__doc__ or "")
    called.__signature__ = inspect.Signature(list(_parameters(kind)))  # type: ignore[attr-defined]
    return called


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        hint, default, about = hints[one.name], one.default, dict(one.metadata)
        if is_dataclass(hint):
            yield from _parameters(hint)  # type: ignore[arg-type]
            continue
        if "help" in about:
            # A switch is off, and has no opposite, unless its names say so.
            flag = (f"--{one.name.replace('_', '-')}",) if hint is bool else ()
            of, names = about.pop("kind", typer.Option), about.pop("names", flag)
            panel, default = about.pop("panel", None), about.pop("default", default)
            hint = Annotated[hint, of(*names, rich_help_panel=panel, **about)]
        elif get_origin(hint) is not Annotated:
            continue
        if get_args(hint)[0] in READ:
            hint = Annotated[str | None, get_args(hint)[1]]
        yield inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, annotation=hint,
            default=inspect.Parameter.empty if default is MISSING
            else ",".join(map(str, default)) if isinstance(default, tuple) else default,
        )  # fmt: skip


def _made(kind: type[Options], values: Mapping[str, Any]) -> Options:
    hints = get_type_hints(kind)
    given = {}
    for one in fields(kind):  # type: ignore[arg-type]
        name, hint = one.name, hints[one.name]
        if is_dataclass(hint):
            given[name] = _made(hint, values)  # type: ignore[arg-type]
        elif name in values:
            value = values[name]
            given[name] = READ[hint](name, value) if hint in READ and value is not None else value
    return kind(**given)
