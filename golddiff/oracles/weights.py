"""Weights into a network: every one of them, and no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from golddiff.system.errors import CheckpointError, one_line
from golddiff.system.files import leads_out

SHOWN = 10


def regular_file(path: Path, folder: Path | None = None) -> Path:
    """A path, where it is that of a file, and of the folder that the user named.

    Links that lead out of it are not followed, except within a model of the hub's cache, whose
    snapshots are links.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is no file" if path.exists() else f"{path} does not exist")
    if folder is not None:
        cache = [place.parent for place in folder.absolute().parents if place.name == "snapshots"]
        if leads_out(cache[0] if cache else folder, path):
            raise CheckpointError(f"{path} is a symbolic link that leads out of its folder")
    return path


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and its header's own entries."""
    try:
        with safe_open(regular_file(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (SafetensorError, OSError, MemoryError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {one_line(error)}") from error


def checked_weights(found: Any, path: Path) -> dict[str, torch.Tensor]:
    """A state dict, once all of it is plain tensors of floating-point numbers."""
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, expected a state dict")
    others = []
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            kind = getattr(value, "kind", None)
            others.append(f"{name} ({kind})" if kind else str(name))
        elif not isinstance(name, str) or not value.is_floating_point():
            others.append(f"{name} ({value.dtype})")
    if others:
        raise CheckpointError(
            f"{path} is no state dict: {listed(sorted(others))} are not tensors of numbers"
        )
    # A step of 0 lets a few numbers stand for a huge tensor.
    held = sum(value.numel() * value.element_size() for value in found.values())
    if held > path.stat().st_size:
        raise CheckpointError(
            f"{path} is damaged: its tensors share memory, and together are larger than the file"
        )
    return dict(found)


def fill(
    make: Callable[[], nn.Module],
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    *,
    optional: Collection[str] = (),
    parts: int = 0,
) -> Any:
    """Make a network and load ``tensors`` into it, in float32 and evaluation mode.

    A file can describe a network of any size in a few bytes: names and shapes are compared before
    the network takes any memory, and it has at least ``parts`` weights.
    """
    if parts > len(tensors):
        raise CheckpointError(
            f"{path} does not fit the network: it has {len(tensors)} weights for {parts} blocks"
        )
    with torch.device("meta"):
        wanted = make().state_dict()
    shapes = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & tensors.keys())
        if tensors[name].shape != wanted[name].shape
    ]
    problems = {
        "lacks": sorted(wanted.keys() - tensors.keys() - set(optional)),
        "has unexpected": sorted(tensors.keys() - wanted.keys()),
        "has wrong shapes:": shapes,
    }
    faults = [f"{what} {listed(names)}" for what, names in problems.items() if names]
    if faults:
        raise CheckpointError(f"{path} does not fit the network: it {'; it '.join(faults)}")
    plain = {name: value.float() for name, value in tensors.items()}
    for name, value in plain.items():
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{path}: {name} holds NaN, infinity, or more than float32 can")
    network = make()
    network.load_state_dict(plain, strict=False)
    return network.float().eval().requires_grad_(False)


def listed(names: list[str]) -> str:
    """At most ten names, and how many there are."""
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{len(names)} names: {shown}, ..."
