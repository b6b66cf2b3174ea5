"""Opening NVIDIA's EDM pickles without running any code in them.

Source of the names: pickles written by ``training_loop.py`` of the EDM repository, whose
``torch_utils.persistence`` writes each module as its source text, class name and state.
"""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from golddiff.oracles.edm.preconditioning import PRECONDITIONINGS
from golddiff.oracles.edm.unets import DhariwalUNet, SongUNet
from golddiff.oracles.weights import check_state_dict, fill
from golddiff.system.errors import CheckpointError, one_line
from golddiff.system.pickles import read_pickle
from golddiff.system.torch_files import TENSORS, Storage, read_legacy

# The largest published network takes 1.2e9 bytes.
MOST_BYTES = 16 * 2**30


class Record:
    """An object of a class that is not loaded: what it was holding, and EDM's name of the class."""

    class_name = "module"
    state: dict[str, Any]

    def __new__(cls) -> Record:
        """An empty one: a pickle makes objects without ``__init__``."""
        made = super().__new__(cls)
        made.state = {}
        return made

    def __setstate__(self, state: Any) -> None:
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise UnpicklingError(f"has a {self.class_name} whose state is not a dict of names")
        self.state.update(state)


def _persistent(meta: Any) -> Record:
    """An object of ``torch_utils.persistence``. Its source text, ``module_src``, stays text."""
    if type(meta) is not dict or meta.get("type") != "class":
        raise UnpicklingError("has a persistent object of an unknown form")
    record, name = Record(), meta.get("class_name")
    if type(name) is not str:
        raise UnpicklingError("has a persistent object without a name")
    record.class_name = name
    record.__setstate__(meta.get("state"))
    return record


def _storage(data: Any) -> Storage:
    """``torch.storage._load_from_bytes``, which would run what the bytes ask for."""
    found = read_legacy(io.BytesIO(data), {}) if type(data) is bytes else None
    if type(found) is not Storage:
        raise UnpicklingError("has a storage that is not one")
    return found


def _set(values: Any = ()) -> set[str]:
    if type(values) not in (tuple, list) or not all(type(value) is str for value in values):
        raise UnpicklingError("has a set that is not made of names")
    return set(values)


_MODULES = (
    *(("container", "ModuleDict"), ("container", "ModuleList"), ("container", "Sequential")),
    *(("activation", "SiLU"), ("dropout", "Dropout"), ("linear", "Identity")),
)
NAMES: dict[tuple[str, str], Any] = {
    **TENSORS,
    ("torch_utils.persistence", "_reconstruct_persistent_obj"): _persistent,
    ("dnnlib.util", "EasyDict"): dict,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("builtins", "set"): _set,
    ("__builtin__", "set"): _set,
    **{(f"torch.nn.modules.{place}", name): Record for place, name in _MODULES},
}


def load_edm(path: Path, resolution: int | None = None) -> dict[str, Any]:
    """The arguments of an Oracle, of a network as NVIDIA publishes EDM's and its code writes them.

    The file is a pickle that brings its own source code. None of it is run: tensors and
    constructor arguments are taken out of it, and the networks are this package's own.

    Raises:
        CheckpointError: a damaged pickle, one that asks for anything else than tensors and plain
            data (which is not run), or another network than a SongUNet or DhariwalUNet with EDM,
            VP, VE or iDDPM preconditioning.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CheckpointError("it is larger than any")
        with path.open("rb") as file:
            record = _ema(read_pickle(file, NAMES))
        arguments = check_arguments(
            record.class_name, record.state.get("_init_args"), record.state.get("_init_kwargs")
        )
        model = _network(path, record, arguments)
    except Exception as error:
        # A damaged pickle raises nearly anything, as it drives conversions with wrong values.
        message = one_line(error, 1000)
        if not isinstance(error, CheckpointError):
            message = f"it {message}"
        if not message.startswith(str(path)):
            message = f"{path} is not a readable EDM pickle: {message}"
        raise CheckpointError(message) from error
    side, channels, classes = arguments.images.values()
    return {
        "module": model, "shape": (channels, side, side), "num_classes": classes,
        "kind": _kind(arguments), **PRECONDITIONINGS[arguments.precond](**arguments.settings),
    }  # fmt: skip


def _ema(whole: Any) -> Record:
    """The averaged network, the one that NVIDIA's own sampler uses."""
    if not isinstance(whole, dict):
        raise CheckpointError(f"it holds a {type(whole).__name__}, expected a dict with 'ema'")
    if "ema" not in whole:
        found = ", ".join(str(name)[:40] for name in list(whole)[:8]) or "nothing"
        raise CheckpointError(f"it has no 'ema', the averaged network; it has {found}")
    if not isinstance(whole["ema"], Record):
        raise CheckpointError(f"its 'ema' is a {type(whole['ema']).__name__}, expected a network")
    return whole["ema"]


def _network(path: Path, record: Record, arguments: Arguments) -> nn.Module:
    """The network that a record describes, with its tensors, in evaluation mode."""
    tensors = check_state_dict(dict(_tensors(record, "", set())), path)
    inner = record.state["_modules"].get("model")
    if not isinstance(inner, Record) or inner.class_name != arguments.model:
        found = inner.class_name if isinstance(inner, Record) else "nothing"
        raise CheckpointError(f"it was made with a {arguments.model}, but holds {found}")
    # iDDPM's noise levels, which follow from its settings.
    tensors.pop("u", None)
    with torch.device("meta"):
        _check_run(architecture(arguments), arguments)
    network: nn.Module = fill(
        lambda: nn.ModuleDict({"model": architecture(arguments)}), tensors, path
    )
    return network.get_submodule("model")


def architecture(arguments: Arguments) -> nn.Module:
    """The network of checked arguments, its tensors not yet set: on the default device."""
    side, channels, classes = arguments.images.values()
    # iDDPM's networks predict a variance too.
    out = 2 * channels if arguments.precond == "iDDPMPrecond" else channels
    try:
        return MODELS[arguments.model](side, channels, out, classes, **arguments.network)
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        raise CheckpointError(f"its {arguments.model} is impossible: {one_line(error)}") from error


@torch.no_grad()
def _check_run(model: nn.Module, arguments: Arguments) -> None:
    """One call, of shapes only: odd numbers of channels, for one, fit nowhere."""
    side, channels, classes = arguments.images.values()
    labels = torch.zeros(1, dtype=torch.int64) if classes else None
    try:
        made = model(torch.empty(1, channels, side, side), torch.empty(1), labels)
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        raise CheckpointError(f"its {arguments.model} cannot run: {one_line(error)}") from error
    if made.shape[2:] != (side, side):
        raise CheckpointError(
            f"its {arguments.model} makes images of shape {tuple(made.shape[1:])}"
        )


def _tensors(record: Record, prefix: str, met: set[int]) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers of a module record and all below it, named as in a state dict."""
    if id(record) in met:  # modules that hold the one before twice would be walked without end
        raise CheckpointError(f"{prefix.rstrip('.')} in it is a module that stands elsewhere too")
    met.add(id(record))
    hidden = record.state.get("_non_persistent_buffers_set", set())
    for group in ("_parameters", "_buffers"):
        for name, tensor in _named(record, group).items():
            if tensor is not None and not (group == "_buffers" and name in hidden):
                yield prefix + name, tensor
    for name, child in _named(record, "_modules").items():
        if isinstance(child, Record):
            yield from _tensors(child, f"{prefix}{name}.", met)
        elif child is not None:
            raise CheckpointError(f"{prefix}{name} in it is no module")


def _named(module: Record, group: str) -> dict[str, Any]:
    values = module.state.get(group)
    if not isinstance(values, dict) or not all(type(name) is str for name in values):
        raise CheckpointError(f"a {module.class_name} in it has no {group}")
    return values


def _kind(arguments: Arguments) -> str:
    """The paper's names for the architectures (Table 1)."""
    sizes = arguments.network
    if arguments.model == "DhariwalUNet":
        named = "ADM"
    else:
        design = sizes.get("embedding_type", "positional"), sizes.get("encoder_type", "standard")
        names = {("positional", "standard"): "DDPM++", ("fourier", "residual"): "NCSN++"}
        named = names.get(design, "mixed")
    return f"{arguments.precond.removesuffix('Precond')} ({arguments.model}, {named})"


# Constructor arguments found in a file: only known names, only values within reason. The bounds are
# far above what any network of the paper has; they keep a damaged or hostile file from asking for
# endless work.
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
