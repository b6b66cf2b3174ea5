"""Weights into a network: every one of them, and no other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import nn

from golddiff.errors import CheckpointError

SHOWN = 10


def fill(
    network: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    optional: Collection[str] = (),
) -> None:
    """Load ``tensors`` into ``network``, in the network's own precision.

    Args:
        network: changed in place.
        tensors: by parameter name.
        path: where they come from, for messages.
        optional: names that may be missing.

    Raises:
        CheckpointError: names missing or left over, shapes that differ, values that are not
            finite numbers.
    """
    wanted = network.state_dict()
    missing = sorted(wanted.keys() - tensors.keys() - set(optional))
    unexpected = sorted(tensors.keys() - wanted.keys())
    shapes = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & tensors.keys())
        if tensors[name].shape != wanted[name].shape
    ]
    found = (("lacks", missing), ("has unexpected", unexpected), ("has wrong shapes:", shapes))
    problems = [f"{what} {listed(names)}" for what, names in found if names]
    if problems:
        raise CheckpointError(f"{path} does not fit the network: it {'; it '.join(problems)}")
    for name in wanted.keys() & tensors.keys():
        if not bool(torch.isfinite(tensors[name]).all()):
            raise CheckpointError(f"{path}: {name} holds NaN or infinity")
    network.load_state_dict(
        {name: value.to(wanted[name].dtype) for name, value in tensors.items()}, strict=False
    )


def listed(names: list[str]) -> str:
    """At most ten names, and how many there are."""
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{len(names)} names: {shown}, ..."
