"""Serialisation of a denoiser as plain data, as a saved model stores it.

A description is a JSON-compatible dictionary without code::

    {"method": "golddiff", "seed": 0,
     "base": {"method": "pca", "mask_threshold": 0.03, "weighting": "ss", ...},
     "schedule": {"schedule": "paper", "k_min": 0.05, ..., "variant": "released"}}
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from golddiff.denoiser import Denoiser
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.registry import METHODS
from golddiff.store.images import ImageStore
from golddiff.supports.adaptive import AdaptiveSchedule
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError

SCHEDULES = {"paper": PaperSchedule, "adaptive": AdaptiveSchedule}


def _methods() -> dict[str, Any]:
    own = {name: method.kind for name, method in METHODS.items() if method.subsets is None}
    return own | {"golddiff": GoldDiff}


def describe(denoiser: Denoiser) -> dict[str, Any]:
    """The method of a denoiser and all its settings, without its store."""
    description = _described("denoiser", denoiser, "method", _methods())
    if "base" in description:
        description["base"] = describe(description["base"])
        # A schedule fitted to its estimator is described by the settings it was fitted from.
        schedule = getattr(description["schedule"], "settings", description["schedule"])
        description["schedule"] = _described("schedule", schedule, "schedule", SCHEDULES)
    return description


def build(description: Mapping[str, Any], store: ImageStore) -> Denoiser:
    """Build the denoiser of a description over a store; missing settings take their defaults."""
    kind, settings = _parsed(description, "method", _methods())
    if "base" in settings:
        settings["base"] = build(settings["base"], store)
    elif description["method"] == "golddiff":
        raise ArgumentError("description: golddiff needs a base, the description of an estimator")
    if "schedule" in settings:
        schedule, sizes = _parsed(settings["schedule"], "schedule", SCHEDULES)
        settings["schedule"] = schedule(**sizes)
    arguments = () if description["method"] == "golddiff" else (store,)
    return kind(*arguments, **settings)


def _described(argument: str, value: object, key: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    for name, kind in kinds.items():
        if type(value) is kind:
            return {key: name, **{s: _plain(getattr(value, s)) for s in _settings(kind)}}
    raise ArgumentError(
        f"{argument}: got {type(value).__name__}, which has no description; expected one of "
        f"{', '.join(kind.__name__ for kind in kinds.values())}"
    )


def _settings(kind: Any) -> list[str]:
    """The names of a constructor's arguments, except the store."""
    return [name for name in inspect.signature(kind).parameters if name != "store"]


def _plain(value: Any) -> Any:
    """NumPy numbers as Python numbers and tuples as lists, as after a round trip through JSON."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.item() if hasattr(value, "item") else value


def _parsed(description: object, key: str, kinds: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    if not isinstance(description, Mapping):
        raise ArgumentError(
            f"description: got {type(description).__name__}, expected a dictionary with {key!r}"
        )
    name = str(description.get(key))
    if name not in kinds:
        raise ArgumentError(
            f"description: got {key} {name!r}, expected one of {', '.join(map(repr, kinds))}"
        )
    kind = kinds[name]
    settings, known = {s: v for s, v in description.items() if s != key}, _settings(kind)
    for setting in settings:
        if setting not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise ArgumentError(f"description: {name} has no setting {setting!r}; {allowed}")
    return kind, settings
