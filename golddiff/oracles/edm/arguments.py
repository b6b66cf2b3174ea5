"""Constructor arguments found in a file: only known names, only values within reason.

The bounds are far above what any network of the paper has; they keep a damaged or hostile file
from asking for endless work.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from golddiff.oracles.edm.preconditioning import PRECONDITIONINGS
from golddiff.oracles.edm.unets import DhariwalUNet, SongUNet
from golddiff.system.errors import CheckpointError

MODELS: dict[str, type[nn.Module]] = {"SongUNet": SongUNet, "DhariwalUNet": DhariwalUNet}
DEFAULT_MODEL = dict.fromkeys(PRECONDITIONINGS, "SongUNet") | dict.fromkeys(
    ("EDMPrecond", "iDDPMPrecond"), "DhariwalUNet"
)
# What every preconditioner takes first, in this order, and what changes nothing here.
IMAGES = ("img_resolution", "img_channels", "label_dim", "use_fp16")
UNUSED = ("use_fp16", "dropout", "label_dropout", "decoder_type")

Rule = tuple[str, Callable[[Any], bool]]


def _whole(low: int, high: int) -> Rule:
    return (f"a whole number from {low} to {high}", lambda v: type(v) is int and low <= v <= high)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value) and abs(value) < 1e30


def _choice(*allowed: str) -> Rule:
    return f"one of {', '.join(allowed)}", lambda v: type(v) is str and v in allowed


def _list(what: str, lengths: range, holds: Callable[[Any], bool]) -> Rule:
    return (
        f"{lengths.start} to {lengths.stop - 1} {what}",
        lambda v: type(v) in (list, tuple) and len(v) in lengths and all(map(holds, v)),
    )


_POSITIVE: Rule = ("a number above 0", lambda v: _is_number(v) and v > 0)
_FRACTION: Rule = ("a number from 0 to 1", lambda v: _is_number(v) and 0 <= v <= 1)
_LEVEL: Rule = ("a noise level", lambda v: v == math.inf or (_is_number(v) and v >= 0))
RULES: dict[str, Rule] = {
    **dict.fromkeys(("img_resolution", "img_channels", "model_channels"), _whole(1, 4096)),
    **dict.fromkeys(("label_dim", "augment_dim"), _whole(0, 1_000_000)),
    **dict.fromkeys(("channel_mult_emb", "channel_mult_noise", "num_blocks"), _whole(1, 64)),
    "channel_mult": _list(
        "whole numbers from 1 to 64", range(1, 13), lambda v: type(v) is int and 1 <= v <= 64
    ),
    "attn_resolutions": _list("sides", range(13), lambda v: type(v) is int),
    "resample_filter": _list("numbers, evenly many", range(2, 17, 2), _is_number),
    "embedding_type": _choice("positional", "fourier"),
    "encoder_type": _choice("standard", "residual"),
    "decoder_type": _choice("standard"),
    "use_fp16": ("true or false", lambda v: type(v) is bool),
    **dict.fromkeys(("sigma_min", "sigma_max"), _LEVEL),
    **dict.fromkeys(("sigma_data", "beta_d", "beta_min", "C_1", "C_2"), _POSITIVE),
    **dict.fromkeys(("epsilon_t", "dropout", "label_dropout"), _FRACTION),
    "M": _whole(2, 100_000),
}


@dataclass(frozen=True)
class Arguments:
    """The constructor arguments of a preconditioned network, checked."""

    precond: str  # class of the preconditioner
    model: str  # class of the network
    images: dict[str, int]  # ``img_resolution``, ``img_channels``, ``label_dim``
    settings: dict[str, Any]  # the preconditioner's own
    network: dict[str, Any]  # the network's


def check_arguments(precond: str, positional: Any, named: Any) -> Arguments:
    """Sort and check what a preconditioned network was constructed with."""
    if precond not in PRECONDITIONINGS:
        known = ", ".join(PRECONDITIONINGS)
        raise CheckpointError(f"its network is a {precond}, expected one of {known}")
    if type(positional) not in (tuple, list) or not isinstance(named, dict):
        raise CheckpointError(f"it does not say what its {precond} was made with")
    own = list(inspect.signature(PRECONDITIONINGS[precond]).parameters)
    order = [*IMAGES, *own, "model_type"]
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
    sizes = set(inspect.signature(MODELS[model]).parameters) - {"in_channels", "out_channels"}
    for name, value in given.items():
        if name not in {*IMAGES, *own, *sizes, *UNUSED}:
            raise CheckpointError(f"its {precond} or {model} takes an unknown argument {name}")
        expected, holds = RULES[name]
        if not holds(value):
            raise CheckpointError(f"its {model} has {name}={_shown(value)}, expected {expected}")
    for name in IMAGES[:2]:
        if name not in given:
            raise CheckpointError(f"its {precond} was made without {name}")
    levels = len(given.get("channel_mult", (1,) * 4))
    if given["img_resolution"] % 2 ** (levels - 1):
        raise CheckpointError(
            f"its images of side {given['img_resolution']} cannot be halved {levels - 1} times"
        )
    return Arguments(
        precond,
        model,
        {name: given.get(name, 0) for name in IMAGES[:3]},
        {name: given[name] for name in own if name in given},
        {name: given[name] for name in sizes - set(IMAGES) if name in given},
    )


def _shown(value: Any) -> str:
    """A value for a message. Of containers only the type: nested ones can be of endless length."""
    if value is None or type(value) in (bool, int, float, str):
        return str(value)
    return type(value).__name__
