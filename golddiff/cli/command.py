"""A command from one dataclass: its fields are the options, and dataclasses among them groups.

So each option is stated once, with its type, default and help, by all commands that have it. A
field says what it is by ``Annotated[..., typer.Option(...)]``; or, in settings that know nothing of
a command line, by its metadata: ``help``, ``panel`` of the help page, and ``default``, where it is
another on the command line. Fields with neither are no options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import typer

from golddiff.cli.parse import parse_whole_numbers

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
    called.__signature__ = inspect.Signature(list(_parameters(kind)))  # type: ignore[attr-defined]
    return called


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, default = hints[field.name], field.default
        if is_dataclass(hint):
            yield from _parameters(hint)  # type: ignore[arg-type]
            continue
        if "help" in field.metadata:
            hint, default = _from_metadata(field, hint)
        elif get_origin(hint) is not Annotated:
            continue
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hint,
            default=inspect.Parameter.empty if default is MISSING else default,
        )  # fmt: skip


def _from_metadata(field: Field[Any], hint: Any) -> tuple[Any, Any]:
    """The annotation and the default of a setting; a tuple is numbers with commas between."""
    about = field.metadata
    flag = [f"--{field.name.replace('_', '-')}"] if hint is bool else []
    option = typer.Option(*flag, help=about["help"], rich_help_panel=about.get("panel"))
    if isinstance(field.default, tuple):
        return Annotated[str, option], ",".join(map(str, field.default))
    return Annotated[hint, option], about.get("default", field.default)


def _made(kind: type[Options], values: Mapping[str, Any]) -> Options:
    hints = get_type_hints(kind)
    given = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if is_dataclass(hints[field.name]):
            given[field.name] = _made(hints[field.name], values)
        elif field.name in values:
            value, tupled = values[field.name], isinstance(field.default, tuple)
            given[field.name] = parse_whole_numbers(field.name, value) if tupled else value
    return kind(**given)
