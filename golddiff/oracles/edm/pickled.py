"""Opening NVIDIA's EDM pickles without running any code in them.

Source of the names: pickles written by ``training_loop.py`` of the EDM repository, whose
``torch_utils.persistence`` writes each module as its source text, class name and state.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from golddiff.oracles.edm.arguments import MODELS, Arguments, check_arguments
from golddiff.oracles.edm.preconditioning import PRECONDITIONINGS
from golddiff.oracles.oracle import Oracle, checked_batch_size, checked_device
from golddiff.oracles.weights import checked_weights, fill, regular_file
from golddiff.system.errors import CheckpointError, one_line
from golddiff.system.pickles import read_pickle
from golddiff.system.torch_files import TENSORS, Storage, plain, read_row

# The largest published network takes 1.2e9 bytes.
MOST_BYTES = 16 * 2**30
# The largest networks have about 1,500 modules and tensors, 5 deep.
MOST_MEMBERS, MOST_DEPTH = 100_000, 20
# What else comes under such a name: a page that says that the download failed, for one.
BEGINNINGS = {
    b"\x1f\x8b": "it is compressed with gzip; unpack it first",
    b"PK\x03\x04": "it is a zip archive, as torch.save writes them",
    b"<": "it is a page of text, perhaps of a failed download",
    b"version https://git-lfs": "it is a pointer to a file kept in Git LFS",
    b"\x89HDF": "it is an HDF5 file",
}


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


class EasyDict(dict[Any, Any]):
    """EDM's dict with attributes, as a dict."""

    def __setstate__(self, state: Any) -> None:
        raise UnpicklingError("sets the state of an EasyDict")


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
    ("dnnlib.util", "EasyDict"): EasyDict,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("builtins", "set"): _set,
    ("__builtin__", "set"): _set,
    **_modules(),
}


class WithClasses(nn.Module):
    """A network of EDM's, which takes its classes one-hot."""

    def __init__(self, model: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.model, self.num_classes = model, num_classes

    def forward(
        self, x: torch.Tensor, noise: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The network's output for x (B, C, H, W), noise (B,) and class indices (B,) or None."""
        one_hot = None if labels is None else nn.functional.one_hot(labels, self.num_classes)
        made: torch.Tensor = self.model(x, noise, None if one_hot is None else one_hot.to(x))
        return made


def load_edm(
    path: str | os.PathLike[str], device: str | torch.device = "cpu", batch_size: int = 32
) -> Oracle:
    """Open a network of EDM's, as NVIDIA publishes them and its training code writes them.

    The file is a pickle that brings its own source code. None of it is run: tensors and
    constructor arguments are taken out of it, and the networks are this package's own.

    Args:
        path: such as ``edm-cifar10-32x32-uncond-vp.pkl``.
        device: where the network runs, in float32.
        batch_size: images that it denoises together; memory grows with it, results do not depend
            on it.

    Raises:
        CheckpointError: no such file, not an EDM pickle, a damaged one, one that asks for anything
            else than tensors and plain data (which is not run), or another network than a
            SongUNet or DhariwalUNet with EDM, VP, VE or iDDPM preconditioning.
        ArgumentError: a device that is not there, a batch size below 1.
    """
    checked_batch_size(batch_size)
    where, place = checked_device(device), Path(path)
    try:
        record = _ema(_read(place))
        arguments = check_arguments(
            record.class_name, record.state.get("_init_args"), record.state.get("_init_kwargs")
        )
        model = _network(place, record, arguments)
    except CheckpointError as error:
        told = one_line(error, 1000)
        raise CheckpointError(
            told if told.startswith(str(path)) else f"{path} is not a readable EDM pickle: {told}"
        ) from error
    except Exception as error:
        # A damaged pickle raises nearly anything, as it drives conversions with wrong values.
        raise CheckpointError(
            f"{path} is not a readable EDM pickle: it {one_line(error)}"
        ) from error
    side, channels, classes = arguments.images.values()
    made = PRECONDITIONINGS[arguments.precond](**arguments.settings)
    return Oracle(
        WithClasses(model, classes),
        made.parameterisation,
        made.schedule,
        shape=(channels, side, side),
        num_classes=classes,
        sigma_range=(made.sigma_min, made.sigma_max),
        kind=_kind(arguments),
        device=where,
        batch_size=batch_size,
    )


def _read(path: Path) -> Any:
    if regular_file(path).stat().st_size > MOST_BYTES:
        raise CheckpointError(f"{path} is larger than any EDM pickle")
    try:
        with path.open("rb") as file:
            head = file.read(32)
            for beginning, meaning in BEGINNINGS.items():
                if head.startswith(beginning):
                    raise CheckpointError(f"{path} is not an EDM pickle: {meaning}")
            if not head.startswith(b"\x80"):
                raise CheckpointError(
                    f"{path} is not an EDM pickle: "
                    + (f"it begins with {head[:8]!r}" if head else "it is empty")
                )
            file.seek(0)
            return read_pickle(file, NAMES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


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
    """The network of checked arguments, its tensors not yet set: on the default device.

    Raises:
        CheckpointError: arguments that do not fit together.
    """
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
    one_hot = torch.empty(1, classes) if classes else None
    try:
        made = model(torch.empty(1, channels, side, side), torch.empty(1), one_hot)
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        raise CheckpointError(f"its {arguments.model} cannot run: {one_line(error)}") from error
    if made.shape[2:] != (side, side):
        raise CheckpointError(
            f"its {arguments.model} makes images of shape {tuple(made.shape[1:])}"
        )


def _tensors(record: Record) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers of a module record and all below it, named as in a state dict."""
    waiting = [("", record, 0)]
    seen = 0
    while waiting:
        prefix, module, depth = waiting.pop()
        groups = [_named(module, group) for group in ("_parameters", "_buffers", "_modules")]
        seen += 1 + sum(map(len, groups))
        if seen > MOST_MEMBERS or depth > MOST_DEPTH:
            raise CheckpointError("its modules are nested without end")
        hidden = module.state.get("_non_persistent_buffers_set", set())
        parameters, buffers, modules = groups
        kept = {name: tensor for name, tensor in buffers.items() if name not in hidden}
        for name, tensor in (parameters | kept).items():
            if tensor is not None:
                yield prefix + name, plain(tensor)
        for name, child in modules.items():
            if child is None:
                continue
            if not isinstance(child, Record):
                raise CheckpointError(f"{prefix}{name} in it is no module")
            waiting.append((f"{prefix}{name}.", child, depth + 1))


def _named(module: Record, group: str) -> dict[str, Any]:
    values = module.state.get(group)
    if not isinstance(values, dict) or not all(type(name) is str for name in values):
        raise CheckpointError(f"a {module.class_name} in it has no {group}")
    return values


def _kind(arguments: Arguments) -> str:
    """The paper's names for the architectures (Table 1)."""
    named = {"DhariwalUNet": "ADM"}.get(arguments.model)
    if arguments.model == "SongUNet":
        parts = ("embedding_type", "encoder_type", "decoder_type")
        defaults = ("positional", "standard", "standard")
        chosen = tuple(
            arguments.network.get(part, default)
            for part, default in zip(parts, defaults, strict=True)
        )
        named = {
            ("positional", "standard", "standard"): "DDPM++",
            ("fourier", "residual", "standard"): "NCSN++",
        }.get(chosen)
    precond = arguments.precond.removesuffix("Precond")
    return f"{precond} ({', '.join(filter(None, (arguments.model, named)))})"
