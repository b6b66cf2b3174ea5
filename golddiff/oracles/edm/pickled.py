"""Reader of NVIDIA's EDM pickles that runs none of their code.

``training_loop.py`` of the EDM repository writes them; its ``torch_utils.persistence`` stores each
module as source text, class name and state. Only tensors and constructor arguments are read; the
networks are implemented in this package.
"""

from __future__ import annotations

import functools
import inspect
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from torch import nn

from golddiff.oracles.edm.preconditioning import PRECONDITIONINGS
from golddiff.oracles.edm.unets import DhariwalUNet, SongUNet
from golddiff.oracles.weights import build_network, check_run, check_sizes, check_state_dict
from golddiff.system.errors import CheckpointError, one_line
from golddiff.system.files import readable
from golddiff.system.pickles import read_pickle
from golddiff.system.torch_files import TENSORS, Storage, read_legacy

# The largest published network takes 1.2e9 bytes.
MAX_BYTES = 16 * 2**30


class Record:
    """Placeholder for an object: its state and EDM's name of its class, which is not loaded."""

    class_name = "module"
    state: dict[str, Any]

    def __new__(cls) -> Record:
        """An empty record; unpickling does not call ``__init__``."""
        record = super().__new__(cls)
        record.state = {}
        return record

    def __setstate__(self, state: Any) -> None:
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise UnpicklingError(f"it has a {self.class_name} whose state is not a dict of names")
        self.state.update(state)


def _persistent(meta: Any) -> Record:
    """An object of ``torch_utils.persistence``; its source text, ``module_src``, is not run."""
    name = meta.get("class_name") if type(meta) is dict and meta.get("type") == "class" else None
    if type(name) is not str:
        raise UnpicklingError("it has a persistent object of an unknown form")
    record = Record()
    record.class_name = name
    record.__setstate__(meta.get("state"))
    return record


def _storage(data: Any) -> Storage:
    """Replacement for ``torch.storage._load_from_bytes``, which would unpickle the bytes."""
    storage = read_legacy(io.BytesIO(data), {}) if type(data) is bytes else None
    if type(storage) is not Storage:
        raise UnpicklingError("it has a storage that is not one")
    return storage


def _set(values: Any = ()) -> set[str]:
    if type(values) not in (tuple, list) or not all(type(value) is str for value in values):
        raise UnpicklingError("it has a set that is not made of names")
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


def load_edm(path: Path) -> dict[str, Any]:
    """The arguments of an Oracle for a network that NVIDIA's EDM code saved.

    Raises:
        CheckpointError: the pickle is damaged or uses anything but tensors and plain data, or the
            network is not a SongUNet or DhariwalUNet with EDM, VP, VE or iDDPM preconditioning.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointError(f"it has {size:,} bytes, more than any network of EDM's")
        with path.open("rb") as file:
            record = _ema(read_pickle(file, NAMES))
        arguments = check_arguments(
            record.class_name, record.state.get("_init_args"), record.state.get("_init_kwargs")
        )
        model = _network(path, record, arguments)
        preconditioning = PRECONDITIONINGS[arguments.precond](**arguments.settings)
    except Exception as error:
        # A damaged pickle calls conversions with wrong values, which raise nearly any exception.
        message = one_line(error)
        if not message.startswith(str(path)):
            message = f"{path} is not a readable EDM pickle: {message}"
        raise CheckpointError(message) from error
    side, channels, classes = arguments.images.values()
    return {
        "module": model, "shape": (channels, side, side), "num_classes": classes,
        "kind": _kind(arguments), **preconditioning,
    }  # fmt: skip


def _ema(checkpoint: Any) -> Record:
    """The averaged network, which NVIDIA's own sampler uses."""
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"it holds a {type(checkpoint).__name__}, expected a dict with 'ema'")
    if "ema" not in checkpoint:
        names = ", ".join(str(name)[:40] for name in list(checkpoint)[:8]) or "nothing"
        raise CheckpointError(f"it has no 'ema', the averaged network; it has {names}")
    ema = checkpoint["ema"]
    if not isinstance(ema, Record):
        raise CheckpointError(f"its 'ema' is a {type(ema).__name__}, expected a network")
    return ema


def _network(path: Path, record: Record, arguments: Arguments) -> nn.Module:
    """The network that a record describes, with its tensors, in evaluation mode."""
    tensors = check_state_dict(dict(_tensors(record, "", set())), path)
    inner = record.state["_modules"].get("model")
    if not isinstance(inner, Record) or inner.class_name != arguments.model:
        name = inner.class_name if isinstance(inner, Record) else "nothing"
        raise CheckpointError(f"it was made with a {arguments.model}, but holds {name}")
    tensors.pop("u", None)  # iDDPM's noise levels, which follow from its settings
    side, channels, classes = arguments.images.values()
    make = functools.partial(architecture, arguments)
    check_run(f"its {arguments.model}", make, (channels, side, side), classes)
    network: nn.Module = build_network(lambda: nn.ModuleDict({"model": make()}), tensors, path)
    return network.get_submodule("model")


def architecture(arguments: Arguments) -> nn.Module:
    """The network of checked arguments on the default device, with uninitialised tensors."""
    side, channels, classes = arguments.images.values()
    # iDDPM's networks also predict a variance.
    out = 2 * channels if arguments.precond == "iDDPMPrecond" else channels
    with readable(f"its {arguments.model} is impossible", CheckpointError):
        return MODELS[arguments.model](side, channels, out, classes, **arguments.network)


def _tensors(record: Record, prefix: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers of a module record and its submodules, named as in a state dict."""
    if id(record) in visited:  # shared modules could make the walk exponentially long
        raise CheckpointError(f"{prefix.rstrip('.')} in it is a module that stands elsewhere too")
    visited.add(id(record))
    hidden = record.state.get("_non_persistent_buffers_set", set())
    for group in ("_parameters", "_buffers"):
        for name, tensor in _named(record, group).items():
            if tensor is not None and not (group == "_buffers" and name in hidden):
                yield prefix + name, tensor
    for name, child in _named(record, "_modules").items():
        if isinstance(child, Record):
            yield from _tensors(child, f"{prefix}{name}.", visited)


def _named(module: Record, group: str) -> dict[str, Any]:
    values = module.state.get(group)
    if not isinstance(values, dict) or not all(type(name) is str for name in values):
        raise CheckpointError(f"a {module.class_name} in it has no {group}")
    return values


def _kind(arguments: Arguments) -> str:
    """The preconditioner, the class, and the paper's name of the architecture (Table 1)."""
    sizes = arguments.network
    if arguments.model == "DhariwalUNet":
        named = "ADM"
    else:
        design = sizes.get("embedding_type", "positional"), sizes.get("encoder_type", "standard")
        names = {("positional", "standard"): "DDPM++", ("fourier", "residual"): "NCSN++"}
        named = names.get(design, "mixed")
    return f"{arguments.precond.removesuffix('Precond')} ({arguments.model}, {named})"


MODELS: dict[str, type[nn.Module]] = {"SongUNet": SongUNet, "DhariwalUNet": DhariwalUNet}
DEFAULT_MODEL = dict.fromkeys(PRECONDITIONINGS, "SongUNet") | dict.fromkeys(
    ("EDMPrecond", "iDDPMPrecond"), "DhariwalUNet"
)
# The first arguments of every preconditioner, in order; arguments that have no effect here.
IMAGES = ("img_resolution", "img_channels", "label_dim", "use_fp16")
UNUSED = ("use_fp16", "dropout", "label_dropout", "decoder_type")


@dataclass(frozen=True)
class Arguments:
    """The constructor arguments of a preconditioned network, checked."""

    precond: str  # class of the preconditioner
    model: str  # class of the network
    images: dict[str, int]  # ``img_resolution``, ``img_channels``, ``label_dim``
    settings: dict[str, Any]  # the preconditioner's own
    network: dict[str, Any]  # the network's


def check_arguments(precond: str, positional: Any, named: Any) -> Arguments:
    """Check the constructor arguments of a preconditioned network and group them."""
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
    for name in given.keys() & named.keys():
        raise CheckpointError(f"its {precond} was made with two values for {name}")
    given |= named
    model = given.pop("model_type", DEFAULT_MODEL[precond])
    if type(model) is not str or model not in MODELS:
        shown = model if type(model) is str else type(model).__name__
        raise CheckpointError(f"its {precond} holds a {shown}, expected {' or '.join(MODELS)}")
    sizes = set(inspect.signature(MODELS[model]).parameters) - {"in_channels", "out_channels"}
    for name in given.keys() - {*IMAGES, *own, *sizes, *UNUSED}:
        raise CheckpointError(f"its {precond} or {model} takes an unknown argument {name}")
    check_sizes(given, f"its {model}'s")
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
