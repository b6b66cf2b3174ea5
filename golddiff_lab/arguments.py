"""Checks of arguments that several commands share."""

from __future__ import annotations

from collections.abc import Iterable

from golddiff.cli.parse import parse_numbers
from golddiff.estimators.registry import METHODS, MethodSettings
from golddiff.system.errors import ArgumentError


def at_least(job: object, **least: int) -> None:
    """Raise ArgumentError where a number of a job, if it has one, is less than it may be."""
    for name, smallest in least.items():
        value = getattr(job, name)
        if value is not None and value < smallest:
            raise ArgumentError(f"{name}: got {value}, expected {smallest} or more")


def check_methods(
    methods: Iterable[str], settings: MethodSettings, others: Iterable[str] = ()
) -> None:
    """Raise where a name is no method, or where none of them has a setting.

    Args:
        methods: the names.
        settings: given for all of them.
        others: settings that somebody else has.

    Raises:
        ArgumentError: says which methods there are, or which setting does not apply.
    """
    for method in methods:
        if method not in METHODS:
            raise ArgumentError(f"method: got {method!r}, expected one of {', '.join(METHODS)}")
    having = frozenset(others).union(*(METHODS[method].settings for method in methods))
    for setting in settings.given():
        if setting not in having:
            raise ArgumentError(f"{setting}: does not apply to {', '.join(methods)}")


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between.

    Raises:
        ArgumentError: something else.
    """
    numbers = parse_numbers(name, text) or ()
    if any(n != int(n) for n in numbers):
        raise ArgumentError(f"{name}: got {text!r}, expected whole numbers with commas between")
    return tuple(int(n) for n in numbers)
