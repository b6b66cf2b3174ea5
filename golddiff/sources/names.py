"""Names of files and members as messages show them."""

from __future__ import annotations


def printable(name: str) -> str:
    """A name on one line: a line break in it, or what a terminal would obey, as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
