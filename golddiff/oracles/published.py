"""The checkpoints that Lukoianov et al. and the paper publish, as torch.save wrote them."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from golddiff.errors import ArgumentError, CheckpointError, SourceError
from golddiff.oracles.fill import check_fits, fill, listed
from golddiff.oracles.layers import TIMESTEPS, sinusoids
from golddiff.oracles.unet import TABLE, UNet, UNetConfig
from golddiff.pickle_scan import scan
from golddiff.sources.bombs import check_unpacked

STATE = "model_state_dict"
# The published data sets by the folders that their checkpoints lie in, where the side is not 32.
FOLDERS_OF_64 = ("afhq", "celeba_hq")


def read_published(path: Path) -> UNet:
    """The network of a checkpoint, its sizes inferred from the shapes of its weights.

    Nothing but tensors and plain values is unpickled.

    Raises:
        CheckpointError: unreadable, asks for other classes, another architecture.
    """
    tensors = _tensors(path)
    config = infer_config(tensors, path)
    check_fits(lambda: UNet(config), config.parts, tensors, path)
    network = UNet(config)
    fill(network, tensors, path)
    _check_table(network, path)
    return network.eval()


def resolution_of(config: UNetConfig, path: Path, resolution: int | None = None) -> int:
    """The side of the images, which the weights do not tell.

    Without ``resolution`` it is that of the published networks: 28 for three levels; for others
    64 where the file's folder bears the name of the published AFHQ or CelebA-HQ, else 32.

    Args:
        config: the network's sizes.
        path: its file.
        resolution: what the caller says.

    Raises:
        ArgumentError: a side that the network's levels do not divide.
    """
    if resolution is None:
        by_levels = 64 if path.absolute().parent.name in FOLDERS_OF_64 else 32
        resolution = 28 if len(config.multipliers) == 3 else by_levels
    if isinstance(resolution, bool) or not isinstance(resolution, int) or resolution < 1:
        raise ArgumentError(f"resolution: got {resolution!r}, expected an integer of 1 or more")
    if resolution % config.divisor:
        raise ArgumentError(
            f"resolution: got {resolution}, expected a multiple of {config.divisor} for the "
            f"{len(config.multipliers)} levels of {path}"
        )
    return resolution


def infer_config(tensors: Mapping[str, torch.Tensor], path: Path) -> UNetConfig:
    """Sizes of the network that such weights are of.

    Raises:
        CheckpointError: weights of another architecture.
    """
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    head = shapes.get("head.weight", ())
    widths, halvings = _down(shapes)
    if len(head) != 4 or not widths or head[0] < 1 or any(w % head[0] for w in widths):
        names = listed(sorted(tensors)) or "nothing"
        raise CheckpointError(f"{path} holds no attention-free DDPM U-Net; it has {names}")
    channels, image_channels = head[:2]
    levels, blocks = len(halvings) + 1, len(widths) // (len(halvings) + 1)
    config = UNetConfig(
        channels=channels,
        multipliers=tuple(widths[i * blocks] // channels for i in range(levels)) if blocks else (),
        blocks=blocks,
        image_channels=image_channels,
        classes=shapes.get("class_embedding.weight", (1,))[0] - 1,
    )
    try:
        config.check()
    except ArgumentError as error:
        raise CheckpointError(f"{path} holds no network of this architecture: {error}") from error
    return config


def _down(shapes: Mapping[str, tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Widths of the blocks on the way down, and the places where the side is halved."""
    widths, halvings = [], []
    place = 0
    while True:
        if shape := shapes.get(f"downblocks.{place}.block1.2.weight"):
            widths.append(shape[0])
        elif f"downblocks.{place}.main.weight" in shapes:
            halvings.append(place)
        else:
            return widths, halvings
        place += 1


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    _check_archive(path)
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        asked = re.search(r"(?:Unsupported global: GLOBAL|GLOBAL) ([\w.]+)", str(error))
        if asked:
            raise CheckpointError(
                f"{path} asks for {asked[1]}, which is not run: only tensors and plain values are "
                "read from a checkpoint"
            ) from error
        raise CheckpointError(f"{path} is not a checkpoint of tensors and plain values") from error
    except Exception as error:
        # A damaged archive raises nearly anything.
        raise CheckpointError(f"{path} is damaged or truncated: it cannot be read") from error
    if isinstance(found, Mapping) and STATE in found:
        found = found[STATE]
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, expected a state dict")
    others = sorted(str(name) for name, value in found.items() if not _is_weight(name, value))
    if others:
        raise CheckpointError(f"{path} is no state dict: {listed(others)} are not tensors")
    # A step of 0 lets a few numbers stand for a huge tensor.
    size = path.stat().st_size
    if sum(value.numel() * value.element_size() for value in found.values()) > size:
        raise CheckpointError(f"{path} is damaged: its tensors are larger than the file")
    return dict(found)


def _check_archive(path: Path) -> None:
    """Look through the pickle of a checkpoint before torch reads it.

    Raises:
        CheckpointError: it unpacks to far more than it holds, or would crash the reader.
    """
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                for _ in range(4):  # magic number, version, word sizes, then the state dict
                    scan(file)
            return
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            unpacked = sum(member.file_size for member in members)
            check_unpacked(str(path), path.stat().st_size, unpacked)
            for member in members:
                if member.filename.endswith("data.pkl"):
                    scan(archive.read(member))
    except SourceError as error:
        raise CheckpointError(str(error)) from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path} is damaged or truncated: it cannot be read ({reason})"
        ) from error


def _is_weight(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, torch.Tensor) and value.is_floating_point()


def _check_table(network: UNet, path: Path) -> None:
    """Levels between two timesteps are embedded by the formula, so the table must be its own."""
    table = network.get_parameter(TABLE)
    if not torch.allclose(table, sinusoids(torch.arange(TIMESTEPS), table.shape[1]), atol=1e-2):
        raise CheckpointError(f"{path}: its timestep table is not the sinusoids of DDPM")
