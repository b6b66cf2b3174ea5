"""Which class an image belongs to, told from where it lies or from EDM's dataset.json."""

from __future__ import annotations

import json
import re

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import SourceError
from golddiff.sources.names import printable

# Names of sub folders that are parts of a data set rather than classes.
SPLIT_NAMES = frozenset({"train", "test", "val", "valid", "validation", "dev", "eval"})

# EDM's tool numbers images and puts them by the thousand in folders; those are not classes.
_NUMBERED = re.compile(r"^(.*/)?\d{5}/img\d{8}\.\w+$")


def in_split(names: list[str], split: str, description: str) -> tuple[str, list[str]]:
    """Take off the folders that hold everything, and pick the split where they are splits.

    Args:
        names: paths of the images with ``/`` between folders.
        split: the split that is wanted where the folders are named after splits.
        description: the source's name for messages.

    Returns:
        The prefix taken off (empty, or ending in ``/``), and the names that begin with it.

    Raises:
        SourceError: the folders are splits, and the one wanted is not among them.
    """
    prefix = ""
    while names:
        tops = {_top(name, prefix) for name in names}
        if None in tops:
            break
        found = sorted(top for top in tops if top is not None)
        if SPLIT_NAMES.issuperset(found):
            if split not in found:
                raise SourceError(
                    f"{description} has no split {split!r}; it has: {', '.join(found)}"
                )
            prefix += f"{split}/"
            names = [name for name in names if name.startswith(prefix)]
        elif len(found) == 1:
            prefix += f"{found[0]}/"
        else:
            break
    return prefix, names


def by_folder(
    names: list[str], prefix: str, description: str
) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
    """Labels from folders: one sub folder a class, in sorted order; none where all lie flat.

    Args:
        names: paths of the images with ``/`` between folders, each beginning with ``prefix``.
        prefix: the folder below which the classes are.
        description: the source's name for messages.

    Raises:
        SourceError: some images lie in sub folders and others do not.
    """
    tops = [_top(name, prefix) for name in names]
    if all(top is None for top in tops) or all(_NUMBERED.match(name) for name in names):
        return None, None
    if None in tops:
        loose = names[tops.index(None)]
        inside = next(name for name, top in zip(names, tops, strict=True) if top is not None)
        raise SourceError(
            f"{description} holds images both loose ({loose}) and in sub folders ({inside}); put "
            "all in one folder, or each in the sub folder of its class"
        )
    class_names = tuple(sorted({top for top in tops if top is not None}))
    index = {name: position for position, name in enumerate(class_names)}
    return np.array([index[top] for top in tops if top is not None], np.int64), class_names


def by_edm(text: bytes, names: list[str], description: str) -> NDArray[np.int64] | None:
    """Labels from EDM's dataset.json, ``{"labels": [[name, index], ...]}``; None where null.

    Raises:
        SourceError: the file is damaged, or gives an image no class index.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"dataset.json of {description} is not JSON: {error}") from error
    pairs = table.get("labels") if isinstance(table, dict) else None
    if pairs is None:
        return None
    try:
        label_of = {name.replace("\\", "/"): label for name, label in pairs}
    except (TypeError, ValueError, AttributeError) as error:
        raise SourceError(
            f"dataset.json of {description}: 'labels' is not a list of [name, index] pairs"
        ) from error
    labels = []
    for name in names:
        label = label_of.get(name)
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < 2**62:
            given = "no label" if name not in label_of else f"{label!r}, no class index,"
            raise SourceError(f"dataset.json of {description} gives {given} for {printable(name)}")
        labels.append(label)
    return np.array(labels, np.int64)


def _top(name: str, prefix: str) -> str | None:
    """The first folder of ``name`` below ``prefix``, or None where there is none."""
    top, slash, _ = name[len(prefix) :].partition("/")
    return top if slash else None
