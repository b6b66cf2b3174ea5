"""A denoiser as plain data and back: what a saved model says of the method that it runs.

A description is a dictionary that JSON can hold, with no code in it::

    {"method": "golddiff", "seed": 0,
     "base": {"method": "pca", "mask_threshold": 0.03, "weighting": "ss", ...},
     "schedule": {"schedule": "paper", "k_min": 0.05, ..., "variant": "released"}}
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from golddiff.denoiser import Denoiser
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError

# Where each class lives: it is loaded, and its kernels with it, when it is asked for. Its settings
# are the arguments of its constructor that may be given by place, but the store.
METHODS = {
    "optimal": "golddiff.estimators.optimal:Optimal",
    "wiener": "golddiff.estimators.wiener:Wiener",
    "pca": "golddiff.estimators.pca:PCA",
    "kamb": "golddiff.estimators.kamb:Kamb",
    "nearest": "golddiff.estimators.nearest_image:NearestImage",
    "scfdm": "golddiff.estimators.scfdm:SCFDM",
    "pspc-square": "golddiff.estimators.pspc:PSPCSquare",
    "pspc-flex": "golddiff.estimators.pspc:PSPCFlex",
    "network-like": "golddiff.estimators.network_like:NetworkLike",
    "golddiff": "golddiff.estimators.golden:GoldDiff",
}
SCHEDULES = {
    "paper": "golddiff.supports.paper:PaperSchedule",
    "adaptive": "golddiff.supports.adaptive:AdaptiveSchedule",
}


def describe(denoiser: Denoiser) -> dict[str, Any]:
    """The method of a denoiser and all its settings, without its store."""
    description = _described("denoiser", denoiser, "method", METHODS)
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
    kind, settings = _parsed(description, "method", METHODS)
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


def _described(argument: str, thing: object, key: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    for name, place in kinds.items():
        if type(thing) is (kind := resolve_name(place)):
            return {key: name, **{s: _plain(getattr(thing, s)) for s in _settings(kind)}}
    raise ArgumentError(
        f"{argument}: got {type(thing).__name__}, which has no description; expected one of "
        f"{', '.join(place.rpartition(':')[2] for place in kinds.values())}"
    )


def _settings(kind: type) -> list[str]:
    given = inspect.signature(kind).parameters.values()
    return [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "store"]


def _plain(value: Any) -> Any:
    """NumPy numbers as Python's, tuples as lists: what JSON gives back."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.item() if hasattr(value, "item") else value


def _parsed(description: object, key: str, kinds: Mapping[str, str]) -> tuple[type, dict[str, Any]]:
    if not isinstance(description, Mapping):
        raise ArgumentError(
            f"description: got {type(description).__name__}, expected a dictionary with {key!r}"
        )
    name = str(description.get(key))
    if name not in kinds:
        raise ArgumentError(
            f"description: got {key} {name!r}, expected one of {', '.join(map(repr, kinds))}"
        )
    kind: type = resolve_name(kinds[name])
    settings, known = {s: v for s, v in description.items() if s != key}, _settings(kind)
    for setting in settings:
        if setting not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise ArgumentError(f"description: {name} has no setting {setting!r}; {allowed}")
    return kind, settings
