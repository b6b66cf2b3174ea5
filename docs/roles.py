"""An extension of griffe: the reST of docstrings, roles and ``::``, becomes Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([^`]+)`")
LINK = r'<autoref identifier="\1" optional><code>\1</code></autoref>'  # code, if no page shows it
BLOCK_FOLLOWS = re.compile("::$", re.MULTILINE)


class Roles(griffe.Extension):
    """What the pages of the reference show in place of ``:class:`golddiff.Oracle```."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite a docstring when its object is read."""
        if obj.docstring is not None:
            text = ROLE.sub(LINK, obj.docstring.value)
            obj.docstring.value = BLOCK_FOLLOWS.sub(":", text)
