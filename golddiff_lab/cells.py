"""A disk cache of results, one small JSON file per result, written atomically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golddiff import __version__
from golddiff.cli.terminal import write_json

FORMAT = 1  # changing it invalidates all cached results

Key = dict[str, Any]
Result = dict[str, Any]


class Cells:
    """A folder of results, stored by key; it is created when the first result is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: Key, compute: Callable[[], Result]) -> Result:
        """The stored result of ``key``; if there is none, ``compute()`` is called and stored.

        The key, which holds everything that the result depends on, and the result fit in JSON.
        """
        path = self.path(key)
        stored = _read(path, key)
        if stored is not None:
            return stored
        result = compute()
        body = {"golddiff": __version__, "format": FORMAT, "key": key, "result": result}
        write_json(path, body, "out")
        return result

    def path(self, key: Key) -> Path:
        """Path of the file for ``key``."""
        canonical = json.dumps({"format": FORMAT, **key}, sort_keys=True)
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:20]
        return self.folder / f"{key['kind']}-{digest}.json"


def _read(path: Path, key: Key) -> Result | None:
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    # Convert the key through JSON, which turns tuples into lists.
    if not isinstance(body, dict) or body.get("key") != json.loads(json.dumps(key)):
        return None
    result = body.get("result")
    return result if isinstance(result, dict) else None
