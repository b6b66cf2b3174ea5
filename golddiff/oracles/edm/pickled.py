"""Opening NVIDIA's EDM pickles without running any code in them.

Source of the names: pickles written by ``training_loop.py`` of the EDM repository, whose
``torch_utils.persistence`` writes each module as its source text, class name and state.
"""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from golddiff.oracles.edm.preconditioning import PRECONDITIONINGS
from golddiff.oracles.edm.unets import DhariwalUNet, SongUNet
from golddiff.oracles.weights import checked_weights, fill
from golddiff.system.errors import CheckpointError, one_line
from golddiff.system.pickles import read_pickle
from golddiff.system.torch_files import TENSORS, Storage, read_row


class Record:
    """A module that is not loaded: its class's name where the file says it, and its state."""

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

    def named(self, group: str) -> dict[str, Any]:
        """Its ``_parameters``, ``_buffers`` or ``_modules``."""
        values = self.state.get(group)
        if not isinstance(values, dict) or not all(type(name) is str for name in values):
            raise CheckpointError(f"a {self.class_name} in it has no {group}")
        return values


def _persistent(meta: Any) -> Record:
    """An object of ``torch_utils.persistence``. Its source text, ``module_src``, stays text."""
    known = type(meta) is dict and meta.get("type") == "class"
    if not known or type(meta.get("class_name")) is not str:
        raise UnpicklingError("has a persistent object of an unknown form")
    record = Record()
    record.class_name = meta["class_name"]
    record.__setstate__(meta.get("state"))
    return record


def _storage(data: Any) -> Storage:
    """``torch.storage._load_from_bytes``, which would run what the bytes ask for."""
    found = read_row(io.BytesIO(data), {}) if type(data) is bytes else None
    if type(found) is not Storage:
        raise UnpicklingError("has a storage that is not one")
    return found


def _set(values: Any = ()) -> set[str]:
    if type(values) not in (tuple, list) or not all(type(value) is str for value in values):
        raise UnpicklingError("has a set that is not made of names")
    return set(values)


NAMES: dict[tuple[str, str], Any] = {
    **TENSORS,
    ("torch_utils.persistence", "_reconstruct_persistent_obj"): _persistent,
    ("dnnlib.util", "EasyDict"): dict,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("builtins", "set"): _set,
    ("__builtin__", "set"): _set,
    **{
        ("torch.nn.modules.container", n): Record
        for n in ("ModuleDict", "ModuleList", "Sequential")
    },
    ("torch.nn.modules.activation", "SiLU"): Record,
    ("torch.nn.modules.dropout", "Dropout"): Record,
    ("torch.nn.modules.linear", "Identity"): Record,
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
        with path.open("rb") as file:
            record = _ema(read_pickle(file, NAMES))
        arguments = check_arguments(
            record.class_name, record.state.get("_init_args"), record.state.get("_init_kwargs")
        )
        made = PRECONDITIONINGS[arguments.precond](**arguments.settings)
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
        "module": model, "parameterisation": made.parameterisation, "schedule": made.schedule,
        "shape": (channels, side, side), "num_classes": classes,
        "sigma_range": (made.sigma_min, made.sigma_max), "kind": _kind(arguments),
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
    tensors = checked_weights(dict(_tensors(record, "", set())), path)
    inner = record.named("_modules").get("model")
    if not isinstance(inner, Record) or inner.class_name != arguments.model:
        found = inner.class_name if isinstance(inner, Record) else "nothing"
        raise CheckpointError(f"it was made with a {arguments.model}, but holds {found}")
    # iDDPM's noise levels, which follow from its settings.
    tensors.pop("u", None)
    _check_run(arguments)
    network: nn.Module = fill(
        lambda: nn.ModuleDict({"model": architecture(arguments)}), tensors, path
    )
    return network.get_submodule("model")


def architecture(arguments: Arguments) -> nn.Module:
    """The network of checked arguments, its tensors not yet set: on the default device."""
    side, channels, classes = arguments.images.values()
    # iDDPM's networks predict a variance too.
    out = 2 * channels if arguments.precond == "iDDPMPrecond" else channels
    return MODELS[arguments.model](side, channels, out, classes, **arguments.network)


@torch.no_grad()
def _check_run(arguments: Arguments) -> None:
    """One call, of shapes only: odd numbers of channels, for one, fit nowhere."""
    side, channels, classes = arguments.images.values()
    try:
        with torch.device("meta"):
            labels = torch.zeros(1, dtype=torch.int64) if classes else None
            x, noise = torch.empty(1, channels, side, side), torch.empty(1)
            made = architecture(arguments)(x, noise, labels)
    except Exception as error:
        raise CheckpointError(f"its {arguments.model} cannot run: {one_line(error)}") from error
    if made.shape[2:] != (side, side):
        raise CheckpointError(f"its {arguments.model} makes images of side {made.shape[2]}")


def _tensors(record: Record, prefix: str, met: set[int]) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers of a module record and all below it, named as in a state dict."""
    if id(record) in met:  # modules that hold the one before twice would be walked without end
        raise CheckpointError(f"{prefix.rstrip('.')} in it is a module that stands elsewhere too")
    met.add(id(record))
    hidden = record.state.get("_non_persistent_buffers_set", set())
    for group in ("_parameters", "_buffers"):
        for name, tensor in record.named(group).items():
            if tensor is not None and not (group == "_buffers" and name in hidden):
                yield prefix + name, tensor
    for name, child in record.named("_modules").items():
        if isinstance(child, Record):
            yield from _tensors(child, f"{prefix}{name}.", met)
        elif child is not None:
            raise CheckpointError(f"{prefix}{name} in it is no module")


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


MODELS: dict[str, type[nn.Module]] = {"SongUNet": SongUNet, "DhariwalUNet": DhariwalUNet}
# What every preconditioner takes first, in this order, and what changes nothing here.
IMAGES = ("img_resolution", "img_channels", "label_dim", "use_fp16")
UNUSED = ("use_fp16", "dropout", "label_dropout", "decoder_type")
# Far above what any network of the paper has: a file must not ask for endless work.
LONGEST, LARGEST = 16, 4096
LARGER = {"label_dim": 1_000_000, "augment_dim": 1_000_000, "M": 100_000, "num_blocks": 64,
          "sigma_max": math.inf}  # fmt: skip
CHOICES = {
    "embedding_type": ("positional", "fourier"),
    "encoder_type": ("standard", "residual"),
    "decoder_type": ("standard",),
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
    given = dict(zip(order, positional, strict=False))
    if len(positional) > len(order) or given.keys() & named.keys():
        raise CheckpointError(
            f"its {precond} was made with {len(positional)} arguments in order, or two of a name"
        )
    given |= named
    adm = precond in ("EDMPrecond", "iDDPMPrecond")  # whose default it is
    model = given.pop("model_type", "DhariwalUNet" if adm else "SongUNet")
    if type(model) is not str or model not in MODELS:
        raise CheckpointError(
            f"its {precond} holds a {_shown(model)}, expected one of {', '.join(MODELS)}"
        )
    sizes = set(inspect.signature(MODELS[model]).parameters) - {"in_channels", "out_channels"}
    for name, value in given.items():
        if name not in {*IMAGES, *own, *sizes, *UNUSED}:
            raise CheckpointError(f"its {precond} or {model} takes an unknown argument {name}")
        _check_value(name, value)
    for name in IMAGES[:2]:
        if not given.get(name):
            raise CheckpointError(f"its {precond} was made without {name}")
    return Arguments(
        precond,
        model,
        {name: given.get(name, 0) for name in IMAGES[:3]},
        {name: given[name] for name in own if name in given},
        {name: given[name] for name in sizes - set(IMAGES) if name in given},
    )


def _check_value(name: str, value: Any) -> None:
    """Raise for a word that is not known, and for numbers below 0 or beyond reason."""
    most = LARGER.get(name, LARGEST)
    if name in CHOICES:
        expected, fits = f"one of {', '.join(CHOICES[name])}", value in CHOICES[name]
    else:
        parts = value if type(value) in (list, tuple) else [value]
        numbers = all(type(v) in (int, float, bool) and 0 <= v <= most for v in parts)
        expected, fits = f"numbers from 0 to {most}", numbers and len(parts) <= LONGEST
    if not fits:
        raise CheckpointError(f"its network has {name}={_shown(value)}, expected {expected}")


def _shown(value: Any) -> str:
    """A value for a message. Of containers only the type: nested ones can be of endless length."""
    if value is None or type(value) in (bool, int, float, str):
        return str(value)
    return type(value).__name__
