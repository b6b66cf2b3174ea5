"""The configuration of an ``AnalyticUNet`` as a file holds it, read as a stranger's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from golddiff.system.errors import ArgumentError

# What has to be there, of which type.
FIELDS: dict[str, type] = {
    "denoiser": dict,
    "store": str,
    "prediction_type": str,
    "schedule": dict,
    "log_spaced": bool,
}
_ARGUMENT = "pretrained_model_name_or_path"


def read_config(path: Path) -> dict[str, Any]:
    """What ``AnalyticUNet.save_pretrained`` wrote.

    Raises:
        ArgumentError: no such file, unreadable, not such a configuration.
    """
    if not path.is_file():
        raise ArgumentError(f"{_ARGUMENT}: {path} does not exist")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(
            f"{_ARGUMENT}: {path} cannot be read ({error.strerror or error})"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{_ARGUMENT}: {path} is no JSON ({error})") from None
    missing = [name for name in FIELDS if not isinstance(saved, dict) or name not in saved]
    if missing:
        raise ArgumentError(
            f"{_ARGUMENT}: {path} is not the configuration of an AnalyticUNet "
            f"(it lacks {', '.join(missing)})"
        )
    for name, kind in FIELDS.items():
        if not isinstance(saved[name], kind):
            raise damaged(path, TypeError(f"{name} is a {type(saved[name]).__name__}"))
    if "\0" in saved["store"]:
        raise damaged(path, ValueError("store is no path"))
    result: dict[str, Any] = saved
    return result


def damaged(path: Path, error: Exception) -> ArgumentError:
    """What to raise where a value is not as written, with the reason in one line."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return ArgumentError(f"{_ARGUMENT}: {path} is damaged ({reason})")
