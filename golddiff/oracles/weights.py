"""Reading the weights of a file, and loading exactly these into a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from golddiff.system.errors import CheckpointError
from golddiff.system.files import check_inside, readable

SHOWN = 10
# Limits far above any network in use.
MAX_VALUE, MAX_LAYERS = 65_536, 64


def regular_file(path: Path, folder: Path | None = None) -> Path:
    """The path, once it is known to be a file, and inside ``folder`` if one is given.

    Links out of the folder are refused, except within a model in the hub's cache, where snapshots
    consist of links.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is no file" if path.exists() else f"{path} does not exist")
    if folder is not None:
        caches = [above.parent for above in folder.absolute().parents if above.name == "snapshots"]
        check_inside(caches[0] if caches else folder, path, CheckpointError)
    return path


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and the metadata of its header."""
    with (
        readable(f"{path} cannot be read as safetensors", CheckpointError),
        safe_open(path, "pt") as file,
    ):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata() or {}


def check_state_dict(state: Any, path: Path) -> dict[str, torch.Tensor]:
    """The state dict, once every entry is known to be a floating-point tensor with a name."""
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, expected a state dict")
    invalid = []
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            kind = getattr(value, "kind", None)
            invalid.append(f"{name} ({kind})" if kind else str(name))
        elif not isinstance(name, str) or not value.is_floating_point():
            invalid.append(f"{name} ({value.dtype})")
    if invalid:
        raise CheckpointError(
            f"{path} is no state dict: {join_names(sorted(invalid))} are not tensors of numbers"
        )
    # Tensors may share their numbers, of which each gets a copy when it is loaded.
    total_bytes = sum(value.numel() * value.element_size() for value in state.values())
    if total_bytes > path.stat().st_size:
        raise CheckpointError(
            f"{path} is damaged: its tensors share memory, and together are larger than the file"
        )
    return dict(state)


def check_sizes(sizes: Mapping[str, Any], whose: str) -> None:
    """Raise CheckpointError unless a network's arguments are plain, of values below a limit.

    A few bytes of a file can describe a network that takes endless time or memory to create.
    """
    for name, value in sizes.items():
        values = value if isinstance(value, list | tuple) else [value]
        limit = MAX_LAYERS if name in ("layers_per_block", "num_blocks") else MAX_VALUE
        plain = all(value is None or type(value) in (bool, int, float, str) for value in values)
        small = all(
            not isinstance(v, int | float) or -limit <= v <= limit or v == math.inf for v in values
        )
        if not (plain and small and len(values) <= MAX_LAYERS):
            shown = str(value)[:80] if plain else type(value).__name__  # nested ones may be endless
            raise CheckpointError(f"{whose} {name} is {shown}")


def build_network(
    make: Callable[[], nn.Module],
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    *,
    optional: Collection[str] = (),
) -> Any:
    """Create a network and load ``tensors`` into it, in float32 and evaluation mode.

    A few bytes of a file can describe a network of any size, so names and shapes are compared
    before the network takes memory. ``optional`` names may be missing.
    """
    with torch.device("meta"):
        expected = make().state_dict()
    shapes = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in sorted(expected.keys() & tensors.keys())
        if tensors[name].shape != expected[name].shape
    ]
    problems = {
        "lacks": sorted(expected.keys() - tensors.keys() - set(optional)),
        "has unexpected": sorted(tensors.keys() - expected.keys()),
        "has wrong shapes:": shapes,
    }
    faults = [f"{problem} {join_names(names)}" for problem, names in problems.items() if names]
    if faults:
        raise CheckpointError(f"{path} does not fit the network: it {'; it '.join(faults)}")
    weights = {name: value.float() for name, value in tensors.items()}
    for name, value in weights.items():
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{path}: {name} holds NaN, infinity, or more than float32 can")
    network = make()
    network.load_state_dict(weights, strict=False)
    return network.float().eval().requires_grad_(False)


@torch.no_grad()
def check_run(name: str, make: Callable[[], nn.Module], shape: Sequence[int], classes: int) -> None:
    """Call a new network on the meta device, to find sizes that do not fit together.

    Raises:
        CheckpointError: the network fails, or returns less than an image of this shape (C, H, W).
    """
    with torch.device("meta"):
        x, t = torch.empty(1, *shape), torch.empty(1)
        labels = torch.zeros(1, dtype=torch.int64) if classes else None
        network = make()
    with readable(f"{name} cannot run", CheckpointError):
        out = network(x, t, labels)
    out = getattr(out, "sample", out)
    if out[:, : x.shape[1]].shape != x.shape:
        raise CheckpointError(f"{name} makes images of shape {tuple(out.shape[1:])}")


def join_names(names: list[str]) -> str:
    """The names joined by commas; of more than ten, their number and the first ten."""
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{len(names)} names: {shown}, ..."
