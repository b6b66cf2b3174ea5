"""Typer commands from dataclasses: fields are options, nested dataclasses are groups of options.

Commands share options by sharing these dataclasses. A field becomes an option in one of three ways:
its default is ``option(...)`` or ``argument(...)``; its type is ``Annotated[...,
typer.Option(...)]``; or its metadata has ``help`` and optionally ``panel`` (of the help page), for
settings that are independent of the command line. Other fields are no options. Values of types that
typer lacks are parsed by ``READ``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from golddiff.system.errors import ArgumentError

PatchSizes = int | str | tuple[tuple[float, int], ...]
Options = TypeVar("Options")
ADVANCED = "Advanced"  # the second panel of a command's help


def option(help: str, default: Any = MISSING, **more: Any) -> Any:
    """An option of a command, required if it has no default; ``more`` goes to typer.Option."""
    return field(default=default, metadata={"help": help, **more})


def argument(help: str, default: Any = MISSING, **more: Any) -> Any:
    """An argument of a command; ``more`` goes to typer.Argument."""
    return field(default=default, metadata={"help": help, "kind": typer.Argument, **more})


def command(run: Callable[[Options], None]) -> Callable[..., None]:
    """Convert a function of one dataclass into a function for typer.

    Fields without a default are required. The function's docstring is the command's help.
    """
    kind, _ = get_type_hints(run).values()  # of the dataclass, and of the result

    def wrapper(**values: Any) -> None:
        run(_instance(kind, values))

    wrapper.__name__ = run.__name__
    # Join the lines of each paragraph, but for the examples: typer does so for the first one only.
    wrapper.__doc__ = re.sub(r"(?<=\S)\n(?! {6}golddiff) *(?=\S)", " ", run.__doc__ or "")
    wrapper.__signature__ = inspect.Signature(list(_parameters(kind)))  # type: ignore[attr-defined]
    return wrapper


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    """The typer parameters of a dataclass and its nested dataclasses."""
    hints = get_type_hints(kind, include_extras=True)
    for member in fields(kind):
        hint, default, metadata = hints[member.name], member.default, dict(member.metadata)
        if is_dataclass(hint):
            yield from _parameters(hint)  # type: ignore[arg-type]
            continue
        if "help" in metadata:
            # By default a boolean has no "--no-" form.
            flag = (f"--{member.name.replace('_', '-')}",) if hint is bool else ()
            make, names = metadata.pop("kind", typer.Option), metadata.pop("names", flag)
            panel = metadata.pop("panel", None)
            hint = Annotated[hint, make(*names, rich_help_panel=panel, **metadata)]
        elif get_origin(hint) is not Annotated:
            continue
        if get_args(hint)[0] in READ:
            hint = Annotated[str | None, get_args(hint)[1]]
        yield inspect.Parameter(
            member.name, inspect.Parameter.KEYWORD_ONLY, annotation=hint,
            default=inspect.Parameter.empty if default is MISSING
            else ",".join(map(str, default)) if isinstance(default, tuple) else default,
        )  # fmt: skip


def _instance(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """A dataclass instance from the values that typer passes."""
    hints = get_type_hints(kind)
    parsed = {}
    for member in fields(kind):  # type: ignore[arg-type]
        name, hint = member.name, hints[member.name]
        if is_dataclass(hint):
            parsed[name] = _instance(hint, values)  # type: ignore[arg-type]
        elif name in values:
            value = values[name]
            parsed[name] = READ[hint](name, value) if hint in READ and value is not None else value
    return kind(**parsed)


def parse_size(name: str, text: str) -> int | float:
    """An int for a whole number (a count), a float for a fraction ('0.05', '1/20')."""
    try:
        if "/" in text:
            numerator, denominator = text.split("/")
            return float(numerator) / float(denominator)
        return int(text) if text.strip().lstrip("+-").isdigit() else float(text)
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(
            f"{name}: got {text!r}, expected a count (100) or a fraction (0.05 or 1/20)"
        ) from None


def parse_numbers(name: str, text: str, kind: type = float) -> tuple[Any, ...]:
    """Comma-separated numbers, or whole numbers for ``kind`` int."""
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError:
        what = "whole numbers (1,2,2)" if kind is int else "numbers"
        raise ArgumentError(f"{name}: got {text!r}, expected comma-separated {what}") from None


def parse_patch_size(name: str, text: str) -> PatchSizes:
    """A number, a calibration's name, or pairs (sigma, size) from ``golddiff oracle patch-sizes``.

    Raises:
        ArgumentError: a JSON file is missing or holds no pairs (sigma, size).
    """
    if not text.endswith(".json"):
        return int(text) if re.fullmatch("[+-]?[0-9]+", text) else text
    try:
        pairs = json.loads(Path(text).read_text("utf-8"))["patch_sizes"]
        return tuple((float(sigma), size) for sigma, size in pairs)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArgumentError(
            f"{name}: got {text}, expected a file of golddiff oracle patch-sizes --json "
            f"({type(error).__name__})"
        ) from None


# Parsers by type, called with an option's name and text.
READ: dict[Any, Callable[[str, str], Any]] = {
    tuple[int, ...]: partial(parse_numbers, kind=int),
    tuple[int, ...] | None: partial(parse_numbers, kind=int),
    tuple[float, ...] | None: parse_numbers,
    tuple[float, ...] | str | None: lambda name, text: (
        text if text == "any" else parse_numbers(name, text)
    ),
    int | float | None: parse_size,
    PatchSizes | None: parse_patch_size,
}
