"""Plans kept with a store, so that they are measured once.

They lie in ``plans.json`` in the store's folder, outside the manifest: a file that is missing,
damaged or of another store is measured again, never trusted.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from golddiff.adaptive.plan import Kind, Plan
from golddiff.errors import ArgumentError
from golddiff.kernels.mask_tiles import OfChannel, Side
from golddiff.store.images import ImageStore
from golddiff.store.manifest import identity_of
from golddiff.system.files import leads_out, written_whole

NAME = "plans.json"
VERSION = 4
KINDS = ("full", "drawn", "nearest", "screened")
TILES: dict[str, Side | None] = {"image": None, "8": 8, "4": 4, "8 of a channel": OfChannel(8)}
NAMES = {side: name for name, side in TILES.items()}


def recall(store: ImageStore, key: str) -> Plan | None:
    """The plan kept under a key, if there is a sound one."""
    found = _plans(store).get(key)
    try:
        name, tile, k, error, by_blocks, *more = found  # type: ignore[misc]
        weighed, steady = [*more, None, None][:2]
        sound = name in KINDS and 1 <= k <= store.n and (weighed is None or 0 < weighed <= k)
        sound = sound and (steady is None or 0 <= steady < math.inf)
        kind = Kind(name, TILES[tile], by_blocks is True)
        return Plan(kind, int(k), float(error), weighed, steady) if sound else None
    except (TypeError, ValueError, KeyError):
        return None


def remember(store: ImageStore, key: str, plan: Plan) -> None:
    """Keep a plan under a key, where the store's folder may be written to."""
    if not Path(store.path).is_dir():
        return  # the store was deleted meanwhile: its folder must not come back
    plans = _plans(store)
    kind = plan.kind
    how = [kind.name, NAMES[kind.side], plan.k, plan.error, kind.by_blocks]
    plans[key] = [*how, plan.weighed, plan.steady]
    body = {"version": VERSION, "store": identity(store), "plans": plans}
    with (
        contextlib.suppress(ArgumentError, OSError),
        written_whole("plans", store.path / NAME) as path,
    ):
        path.write_text(json.dumps(body, indent=0), encoding="utf-8")


def identity(store: ImageStore) -> str:
    """The checksums of the pixels and labels."""
    return identity_of(store.manifest)


def _plans(store: ImageStore) -> dict[str, Any]:
    path = Path(store.path) / NAME
    if leads_out(store.path, path):
        return {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["version"] == VERSION and body["store"] == identity(store):
            return dict(body["plans"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return {}
