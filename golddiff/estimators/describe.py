"""A denoiser as plain data and back: what a saved model says of the method that it runs.

A description is a dictionary that JSON can hold, with no code in it::

    {"method": "golddiff", "seed": 0,
     "base": {"method": "pca", "mask_threshold": 0.03, "weighting": "ss", ...},
     "schedule": {"schedule": "paper", "k_min": 0.05, ..., "variant": "released"}}
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from golddiff.denoiser import Denoiser
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError


class Kind(NamedTuple):
    """A class that can be described: where it lives, and its constructor's plain settings."""

    home: str
    name: str
    settings: tuple[str, ...]

    def load(self) -> type:
        """The class itself; its kernels load with it."""
        loaded: type = getattr(importlib.import_module(self.home), self.name)
        return loaded


METHODS = {
    "optimal": Kind("golddiff.estimators.optimal", "Optimal", ("memory_limit",)),
    "wiener": Kind("golddiff.estimators.wiener", "Wiener", ()),
    "pca": Kind(
        "golddiff.estimators.pca",
        "PCA",
        ("mask_threshold", "weighting", "batch_size", "memory_limit", "share"),
    ),
    "kamb": Kind("golddiff.estimators.kamb", "Kamb", ("patch_sizes", "boundary", "memory_limit")),
    "nearest": Kind("golddiff.estimators.nearest_image", "NearestImage", ()),
    "scfdm": Kind(
        "golddiff.estimators.scfdm", "SCFDM", ("smoothing", "copies", "seed", "memory_limit")
    ),
    "network-like": Kind("golddiff.estimators.network_like", "NetworkLike", ("seed",)),
    "golddiff": Kind("golddiff.estimators.golden", "GoldDiff", ("base", "schedule", "seed")),
}

SCHEDULES = {
    "paper": Kind(
        "golddiff.supports.paper", "PaperSchedule", ("k_min", "k_max", "m_min", "m_max", "variant")
    ),
    "adaptive": Kind("golddiff.supports.adaptive", "AdaptiveSchedule", ("tol",)),
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


def _described(argument: str, thing: object, key: str, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    for name, kind in kinds.items():
        if type(thing) is kind.load():
            return {key: name, **{s: _plain(getattr(thing, s)) for s in kind.settings}}
    raise ArgumentError(
        f"{argument}: got {type(thing).__name__}, which has no description; expected one of "
        f"{', '.join(kind.name for kind in kinds.values())}"
    )


def _plain(value: Any) -> Any:
    """NumPy numbers as Python's, tuples as lists: what JSON gives back."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.item() if hasattr(value, "item") else value


def _parsed(
    description: object, key: str, kinds: Mapping[str, Kind]
) -> tuple[type, dict[str, Any]]:
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
    settings = {s: value for s, value in description.items() if s != key}
    for setting in settings:
        if setting not in kind.settings:
            allowed = f"it has {', '.join(kind.settings)}" if kind.settings else "it has none"
            raise ArgumentError(f"description: {name} has no setting {setting!r}; {allowed}")
    return kind.load(), settings
