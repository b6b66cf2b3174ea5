"""Opening NVIDIA's EDM pickles without running any code in them.

Source of the names: pickles written by ``training_loop.py`` of the EDM repository, whose
``torch_utils.persistence`` writes each module as its source text, class name and state.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from golddiff.oracles.edm.arguments import MODELS, Arguments, check_arguments
from golddiff.oracles.edm.preconditioning import PRECONDITIONINGS
from golddiff.oracles.oracle import Oracle
from golddiff.oracles.weights import checked_weights, fill
from golddiff.system.errors import CheckpointError, one_line
from golddiff.system.pickles import read_pickle
from golddiff.system.torch_files import TENSORS, Storage, read_row

# The largest published network takes 1.2e9 bytes.
MOST_BYTES = 16 * 2**30


class Record:
    """An object of a class that is not loaded: the class's name, and what it was holding."""

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
    found = read_row(io.BytesIO(data), {}) if type(data) is bytes else None
    if type(found) is not Storage:
        raise UnpicklingError("has a storage that is not one")
    return found


def _set(values: Any = ()) -> set[str]:
    if type(values) not in (tuple, list) or not all(type(value) is str for value in values):
        raise UnpicklingError("has a set that is not made of names")
    return set(values)


def _modules() -> dict[tuple[str, str], Any]:
    places = {"container": ("ModuleDict", "ModuleList", "Sequential"), "activation": ("SiLU",),
              "dropout": ("Dropout",), "linear": ("Identity",)}  # fmt: skip
    return {
        (f"torch.nn.modules.{place}", name): type(name, (Record,), {"class_name": name})
        for place, names in places.items()
        for name in names
    }


NAMES: dict[tuple[str, str], Any] = {
    **TENSORS,
    ("torch_utils.persistence", "_reconstruct_persistent_obj"): _persistent,
    ("dnnlib.util", "EasyDict"): dict,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("builtins", "set"): _set,
    ("__builtin__", "set"): _set,
    **_modules(),
}


def load_edm(path: Path, device: str | torch.device, batch_size: int) -> Oracle:
    """Open a network of EDM's, as NVIDIA publishes them and its training code writes them.

    The file is a pickle that brings its own source code. None of it is run: tensors and
    constructor arguments are taken out of it, and the networks are this package's own.

    Args:
        path: such as ``edm-cifar10-32x32-uncond-vp.pkl``.
        device: where the network runs, in float32.
        batch_size: images that it denoises together.

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
        told = one_line(error, 1000)
        if not isinstance(error, CheckpointError):
            told = f"it {told}"
        if not told.startswith(str(path)):
            told = f"{path} is not a readable EDM pickle: {told}"
        raise CheckpointError(told) from error
    side, channels, classes = arguments.images.values()
    made = PRECONDITIONINGS[arguments.precond](**arguments.settings)
    return Oracle(
        model,
        made.parameterisation,
        made.schedule,
        shape=(channels, side, side),
        num_classes=classes,
        sigma_range=(made.sigma_min, made.sigma_max),
        kind=_kind(arguments),
        device=device,
        batch_size=batch_size,
    )


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
    tensors = checked_weights(dict(_tensors(record)), path)
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


def _tensors(record: Record, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Parameters and buffers of a module record and all below it, named as in a state dict."""
    hidden = record.state.get("_non_persistent_buffers_set", set())
    for group in ("_parameters", "_buffers"):
        for name, tensor in _named(record, group).items():
            if tensor is not None and not (group == "_buffers" and name in hidden):
                yield prefix + name, tensor
    for name, child in _named(record, "_modules").items():
        if isinstance(child, Record):
            yield from _tensors(child, f"{prefix}{name}.")
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
