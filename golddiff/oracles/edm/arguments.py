"""Constructor arguments found in a file: only known names, only values within reason.

The bounds are far above what any network of the paper has; they keep a damaged or hostile file
from asking for endless work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from golddiff.system.errors import CheckpointError


@dataclass(frozen=True)
class Rule:
    """What an argument may be."""

    expected: str
    holds: Callable[[Any], bool]


def _whole(low: int, high: int) -> Rule:
    return Rule(
        f"a whole number from {low} to {high}", lambda v: type(v) is int and low <= v <= high
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value) and abs(value) < 1e30


def _choice(*allowed: str) -> Rule:
    return Rule(f"one of {', '.join(allowed)}", lambda v: type(v) is str and v in allowed)


def _several(what: str, most: int, holds: Callable[[Any], bool]) -> Rule:
    return Rule(
        f"1 to {most} {what}",
        lambda v: type(v) in (list, tuple) and 1 <= len(v) <= most and all(map(holds, v)),
    )


CHANNELS = _whole(1, 4096)
CLASSES = _whole(0, 1_000_000)
FLAG = Rule("true or false", lambda v: type(v) is bool)
POSITIVE = Rule("a number above 0", lambda v: _is_number(v) and v > 0)
LEVEL = Rule(
    "a noise level", lambda v: (_is_number(v) and v >= 0) or (type(v) is float and v == math.inf)
)
FRACTION = Rule("a number from 0 to 1", lambda v: _is_number(v) and 0 <= v <= 1)
SIDE = _whole(1, 4096)
MULTIPLES = _several("whole numbers from 1 to 64", 12, lambda v: type(v) is int and 1 <= v <= 64)

UNET: dict[str, Rule] = {
    "augment_dim": CLASSES,
    "model_channels": CHANNELS,
    "channel_mult": MULTIPLES,
    "channel_mult_emb": _whole(1, 64),
    "num_blocks": _whole(1, 64),
    "attn_resolutions": Rule(
        "a list of sides",
        lambda v: type(v) in (list, tuple) and len(v) <= 12 and all(type(s) is int for s in v),
    ),
    "dropout": FRACTION,
    "label_dropout": FRACTION,
}
MODELS: dict[str, dict[str, Rule]] = {
    "SongUNet": {
        **UNET,
        "embedding_type": _choice("positional", "fourier"),
        "channel_mult_noise": _whole(1, 64),
        "encoder_type": _choice("standard", "skip", "residual"),
        "decoder_type": _choice("standard", "skip"),
        "resample_filter": Rule(
            "2 to 16 numbers, evenly many",
            lambda v: (
                type(v) in (list, tuple) and len(v) in range(2, 17, 2) and all(map(_is_number, v))
            ),
        ),
    },
    "DhariwalUNet": UNET,
}

# What every preconditioner takes first, in this order.
IMAGES: dict[str, Rule] = {
    "img_resolution": SIDE,
    "img_channels": CHANNELS,
    "label_dim": CLASSES,
    "use_fp16": FLAG,
}
# Their own settings, in the order of their constructors, and the network that is the default.
SETTINGS: dict[str, dict[str, Rule]] = {
    "EDMPrecond": {"sigma_min": LEVEL, "sigma_max": LEVEL, "sigma_data": POSITIVE},
    "VPPrecond": {
        "beta_d": POSITIVE,
        "beta_min": POSITIVE,
        "M": _whole(2, 100_000),
        "epsilon_t": FRACTION,
    },
    "VEPrecond": {"sigma_min": LEVEL, "sigma_max": LEVEL},
    "iDDPMPrecond": {"C_1": POSITIVE, "C_2": POSITIVE, "M": _whole(2, 100_000)},
}
DEFAULT_MODEL = {
    "EDMPrecond": "DhariwalUNet",
    "VPPrecond": "SongUNet",
    "VEPrecond": "SongUNet",
    "iDDPMPrecond": "DhariwalUNet",
}


@dataclass(frozen=True)
class Arguments:
    """The constructor arguments of a preconditioned network, checked.

    Attributes:
        precond: class of the preconditioner.
        model: class of the network.
        images: ``img_resolution``, ``img_channels``, ``label_dim``.
        settings: the preconditioner's own.
        network: the network's.
    """

    precond: str
    model: str
    images: dict[str, int]
    settings: dict[str, Any]
    network: dict[str, Any]


def check_arguments(precond: str, positional: Any, named: Any) -> Arguments:
    """Sort and check what a preconditioned network was constructed with.

    Args:
        precond: its class.
        positional: positional arguments, a tuple or list.
        named: named arguments, a dict.

    Raises:
        CheckpointError: another class, an unknown argument, or a value that is not allowed.
    """
    if precond not in SETTINGS:
        raise CheckpointError(f"its network is a {precond}, expected one of {', '.join(SETTINGS)}")
    if type(positional) not in (tuple, list) or not isinstance(named, dict):
        raise CheckpointError(f"it does not say what its {precond} was made with")
    order = [*IMAGES, *SETTINGS[precond], "model_type"]
    if len(positional) > len(order):
        raise CheckpointError(f"its {precond} was made with {len(positional)} arguments in order")
    given = dict(zip(order, positional, strict=False))
    for name, value in named.items():
        if name in given:
            raise CheckpointError(f"its {precond} was made with two values for {name}")
        given[name] = value
    model = given.pop("model_type", DEFAULT_MODEL[precond])
    if type(model) is not str or model not in MODELS:
        raise CheckpointError(
            f"its {precond} holds a {_shown(model)}, expected one of {', '.join(MODELS)}"
        )
    rules = IMAGES | SETTINGS[precond] | MODELS[model]
    for name, value in given.items():
        if name not in rules:
            raise CheckpointError(f"its {precond} or {model} takes an unknown argument {name}")
        if not rules[name].holds(value):
            raise CheckpointError(
                f"its {model} has {name}={_shown(value)}, expected {rules[name].expected}"
            )
    for name in ("img_resolution", "img_channels"):
        if name not in given:
            raise CheckpointError(f"its {precond} was made without {name}")
    levels = len(given.get("channel_mult", (1,) * 4))
    if given["img_resolution"] % 2 ** (levels - 1):
        raise CheckpointError(
            f"its images of side {given['img_resolution']} cannot be halved {levels - 1} times"
        )
    images = {name: given.get(name, 0) for name in ("img_resolution", "img_channels", "label_dim")}
    return Arguments(
        precond,
        model,
        images,
        {name: given[name] for name in SETTINGS[precond] if name in given},
        # Dropout only acts in training.
        {
            name: given[name]
            for name in MODELS[model]
            if name in given and name not in ("dropout", "label_dropout")
        },
    )


def _shown(value: Any) -> str:
    """A value for a message. Of containers only the type: nested ones can be of endless length."""
    if value is None or type(value) in (bool, int, float, str):
        return str(value)
    return type(value).__name__
