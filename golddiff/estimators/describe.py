"""A denoiser as plain data and back: what a saved model says of the method that it runs.

A description is a dictionary that JSON can hold, with no code in it::

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
        # A schedule that was fitted to its estimator is described as it was before.
        schedule = getattr(description["schedule"], "settings", description["schedule"])
        described = _described("schedule", schedule, "schedule", SCHEDULES)
        description["schedule"] = described
    return description


def build(description: Mapping[str, Any], store: ImageStore) -> Denoiser:
    """The denoiser that a description stands for, over a store.

    Settings that the description leaves out have their defaults.
    """
    kind, settings = _parsed(description, "method", _methods())
    if "base" in settings:
        settings["base"] = build(settings["base"], store)
    elif description["method"] == "golddiff":
        raise ArgumentError("description: golddiff needs a base, the description of an estimator")
    if "schedule" in settings:
        schedule, sizes = _parsed(settings["schedule"], "schedule", SCHEDULES)
        settings["schedule"] = schedule(**sizes)
    if description["method"] == "golddiff":
        made: Denoiser = kind(**settings)
    else:
        made = kind(store, **settings)
    return made


def _described(argument: str, thing: object, key: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    for name, kind in kinds.items():
        if type(thing) is kind:
            return {key: name, **{s: _plain(getattr(thing, s)) for s in _settings(kind)}}
    raise ArgumentError(
        f"{argument}: got {type(thing).__name__}, which has no description; expected one of "
        f"{', '.join(kind.__name__ for kind in kinds.values())}"
    )


def _settings(kind: Any) -> list[str]:
    """Arguments of what makes it that may be given by place, but the store."""
    given = inspect.signature(kind).parameters.values()
    return [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "store"]


def _plain(value: Any) -> Any:
    """NumPy numbers as Python's, tuples as lists: what JSON gives back."""
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
