"""What an interrupted build of an index left, taken up only where it is sound.

It lies in the store's folder, which may have come from elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from golddiff.index.blocks import Blocks, of_tensors
from golddiff.index.fitting import Fitted, check_fitted
from golddiff.index.layout import VERSION, tensors_name
from golddiff.index.screen import TENSORS as SCREEN_TENSORS
from golddiff.index.views import View, views_of
from golddiff.store.images import ImageStore
from golddiff.system.files import written_whole

STATE = "state.json"
Views = list[tuple[View, Fitted]]


def resumed(
    store: ImageStore, part: Path, identity: str
) -> tuple[Views, Blocks, dict[str, Any]] | None:
    """The fitted views, blocks and the state of an interrupted build; None where it begins anew.

    Args:
        store: the training set.
        part: the folder that the build works in.
        identity: what the index must be of.
    """
    try:
        if part.is_symlink() or any(path.is_symlink() for path in part.iterdir()):
            return None
        state: dict[str, Any] = json.loads((part / STATE).read_text(encoding="utf-8"))
        views = views_of(store.shape)
        if state["store"] != identity or state["version"] != VERSION:
            return None
        rows, placed = state["rows"], state["placed"]
        counts = [rows, *placed.values()]
        if any(type(count) is not int or count < 0 for count in counts) or rows > store.n:
            return None
        fits = [(view, Fitted(**load_file(part / tensors_name(view)))) for view in views]
        for view, fit in fits:
            check_fitted(fit, view, store.shape)
        screen = of_tensors(store.shape, load_file(part / SCREEN_TENSORS))
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        SafetensorError,
    ):
        return None
    return fits, screen, {name: state[name] for name in ("store", "version", "rows", "placed")}


def save_state(part: Path, state: dict[str, Any]) -> None:
    """Write how far a build has come.

    Raises:
        ArgumentError: it cannot be written.
    """
    with written_whole("index", part / STATE) as path:
        path.write_text(json.dumps(state), encoding="utf-8")
