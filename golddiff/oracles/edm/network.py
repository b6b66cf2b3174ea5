"""From the records of a file to a network: its tensors by name, its architecture, both joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from golddiff.errors import CheckpointError
from golddiff.oracles.edm.arguments import Arguments, check_arguments
from golddiff.oracles.edm.dhariwal_unet import DhariwalUNet
from golddiff.oracles.edm.preconditioning import (
    EDMPrecond,
    Preconditioned,
    VEPrecond,
    VPPrecond,
    iDDPMPrecond,
)
from golddiff.oracles.edm.records import Record
from golddiff.oracles.edm.song_unet import SongUNet

PRECONDS = {
    "EDMPrecond": EDMPrecond,
    "VPPrecond": VPPrecond,
    "VEPrecond": VEPrecond,
    "iDDPMPrecond": iDDPMPrecond,
}
MODELS: dict[str, type[nn.Module]] = {"SongUNet": SongUNet, "DhariwalUNet": DhariwalUNet}

# The largest networks have about 1,500 modules and tensors, 5 deep.
MOST_MEMBERS, MOST_DEPTH = 100_000, 20


def build_network(record: Record, most_bytes: int) -> tuple[Preconditioned, Arguments]:
    """The network that a record describes, with its tensors, in evaluation mode.

    Args:
        record: a persistent object, the value of ``ema``.
        most_bytes: what its tensors may take together: the file's size.

    Returns:
        The network in float32 on the CPU; and what it was constructed with.

    Raises:
        CheckpointError: a class or constructor argument that is not known; tensors that are not
            the network's, by name or by shape.
    """
    arguments = check_arguments(
        record.class_name, record.state.get("_init_args"), record.state.get("_init_kwargs")
    )
    tensors = dict(_tensors(record))
    if sum(t.numel() * t.element_size() for t in tensors.values()) > most_bytes:
        raise CheckpointError("its tensors share memory, and together take more than the file")
    inner = record.state["_modules"].get("model")
    if type(inner) is not Record or inner.class_name != arguments.model:
        found = inner.class_name if type(inner) is Record else "nothing"
        raise CheckpointError(f"it was made with a {arguments.model}, but holds {found}")
    with torch.device("meta"):  # shapes only: the tensors come from the file
        network = architecture(arguments)
        _check_run(network, arguments)
    _check_fit(tensors, network)
    network.load_state_dict(
        {name: tensor.float().contiguous() for name, tensor in tensors.items()},
        strict=True,
        assign=True,
    )
    return network.eval().requires_grad_(False), arguments


def architecture(arguments: Arguments) -> Preconditioned:
    """The network of checked arguments, its tensors not yet set: on the default device.

    Raises:
        CheckpointError: arguments that do not fit together.
    """
    side, channels, classes = arguments.images.values()
    # iDDPM's networks predict a variance too.
    out = 2 * channels if arguments.precond == "iDDPMPrecond" else channels
    try:
        model = MODELS[arguments.model](side, channels, out, classes, **arguments.network)
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        raise CheckpointError(f"its {arguments.model} is impossible: {error}") from error
    network: Preconditioned = PRECONDS[arguments.precond](model, **arguments.settings)
    return network


@torch.no_grad()
def _check_run(network: Preconditioned, arguments: Arguments) -> None:
    """One call, of shapes only: odd numbers of channels, for one, fit nowhere."""
    side, channels, classes = arguments.images.values()
    one_hot = torch.empty(1, classes) if classes else None
    try:
        made = network(torch.empty(1, channels, side, side), torch.empty(1), one_hot)
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        raise CheckpointError(f"its {arguments.model} cannot run: {error}") from error
    if made.shape != (1, channels, side, side):
        raise CheckpointError(
            f"its {arguments.model} makes images of shape {tuple(made.shape[1:])}"
        )


def _check_fit(tensors: dict[str, torch.Tensor], network: nn.Module) -> None:
    expected = network.state_dict()
    for what, names in (
        ("lacks", expected.keys() - tensors.keys()),
        ("holds the unknown", tensors.keys() - expected.keys()),
    ):
        if names:
            raise CheckpointError(f"its network {what} {min(names)}, and {len(names) - 1} more")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{name} in it has shape {tuple(tensor.shape)}, "
                f"expected {tuple(expected[name].shape)}"
            )


def _tensors(record: Record) -> Iterator[tuple[str, torch.Tensor]]:
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
                if not isinstance(tensor, torch.Tensor):
                    raise CheckpointError(f"{prefix}{name} in it is no tensor")
                yield prefix + name, tensor
        for name, child in modules.items():
            if child is None:
                continue
            if type(child) is not Record:
                raise CheckpointError(f"{prefix}{name} in it is no module")
            waiting.append((f"{prefix}{name}.", child, depth + 1))


def _named(module: Record, group: str) -> dict[str, Any]:
    values = module.state.get(group)
    if not isinstance(values, dict) or not all(type(name) is str for name in values):
        raise CheckpointError(f"a {module.class_name} in it has no {group}")
    return values
