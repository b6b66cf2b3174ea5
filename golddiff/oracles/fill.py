"""Weights into a network: every one of them, and no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
    _compare(wanted, tensors, path, optional)
    for name in wanted.keys() & tensors.keys():
        if not bool(torch.isfinite(tensors[name]).all()):
            raise CheckpointError(f"{path}: {name} holds NaN or infinity")
    network.load_state_dict(
        {name: value.to(wanted[name].dtype) for name, value in tensors.items()}, strict=False
    )


def check_fits(
    make: Callable[[], nn.Module],
    parts: int,
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    optional: Collection[str] = (),
) -> None:
    """Raise where weights are not those of a network, before it takes any memory.

    A file can describe a network of any size in a few bytes.

    Args:
        make: builds the network.
        parts: a number of weights that it has at least.
        tensors: by parameter name.
        path: where they come from, for messages.
        optional: names that may be missing.

    Raises:
        CheckpointError: as :func:`fill`; too few weights.
    """
    if parts > len(tensors):
        raise CheckpointError(
            f"{path} does not fit the network: it has {len(tensors)} weights for {parts} blocks"
        )
    with torch.device("meta"):
        _compare(make().state_dict(), tensors, path, optional)


def _compare(
    wanted: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    optional: Collection[str],
) -> None:
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


def listed(names: list[str]) -> str:
    """At most ten names, and how many there are."""
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{len(names)} names: {shown}, ..."
