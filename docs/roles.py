"""An extension of griffe: roles in docstrings, such as :func:`name`, become plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([^`]+)`")


class Roles(griffe.Extension):
    """What the pages of the reference show in place of ``:class:`golddiff.Oracle```."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite a docstring when its object is read."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
