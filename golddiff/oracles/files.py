"""Weight files of the DDPM U-Net: golddiff's own, and those that were published with the paper.

Ours are safetensors with the network's description in the header; the checkpoints that Lukoianov et
al. and the paper publish are what torch.save wrote, and tell their sizes by their weights' shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from golddiff.oracles.parameterisations import EPSILON, PREDICTIONS, TIMESTEPS
from golddiff.oracles.unet import TABLE, UNet, UNetConfig, sinusoids
from golddiff.oracles.weights import checked_weights, fill, listed, read_safetensors, regular_file
from golddiff.system.errors import ArgumentError, CheckpointError, one_line
from golddiff.system.numbers import check_count
from golddiff.system.torch_files import read_torch

FORMAT = "golddiff-oracle"
VERSION = 1
KEY = "golddiff"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
STATE = "model_state_dict"
# The published data sets by the folders that their checkpoints lie in, where the side is not 32.
FOLDERS_OF_64 = ("afhq", "celeba_hq")


def read_weights(path: Path) -> tuple[UNet, dict[str, Any]]:
    """The network of a file that ``golddiff oracle`` wrote, and what the file says of it.

    It is in evaluation mode; half-precision weights become float32.
    """
    tensors, header = read_safetensors(path)
    config, description = _described(path, header.get(KEY))
    checked_weights(tensors, path)
    network = fill(lambda: UNet(config), tensors, path, optional={TABLE}, parts=config.parts)
    return network, description


def _described(path: Path, header: str | None) -> tuple[UNetConfig, dict[str, Any]]:
    """The sizes of a network and all that the header of its file says, checked."""
    if header is None:
        raise CheckpointError(
            f"{path} is a safetensors file without a description of its network; expected one that "
            "golddiff wrote (a diffusers U-Net: give its folder)"
        )
    try:
        description: dict[str, Any] = json.loads(header)
        form = description["format"], description["version"]
        sizes = description["network"]
        config = UNetConfig(**{**sizes, "multipliers": tuple(sizes["multipliers"])})
        config.check()
        side, training = description["resolution"], description["training"]
        if type(side) is not int or side < 1 or side % config.divisor:
            raise ValueError(f"its resolution is {side!r}")
        if description.setdefault("prediction", EPSILON) not in PREDICTIONS:
            raise ValueError(f"it predicts {description['prediction']!r}")
        if type(training) is not dict:
            raise ValueError("it does not say how it was trained")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: its description is damaged ({one_line(error)})") from error
    if form != (FORMAT, VERSION):
        raise CheckpointError(f"{path} has format {form}, expected {(FORMAT, VERSION)}")
    return config, description


def find_weights(path: Path) -> Path:
    """The weights of a run's folder, or the file itself."""
    return regular_file(path / WEIGHTS, path) if path.is_dir() else regular_file(path)


def described(
    network: UNet, resolution: int, is_pixels: bool, kind: str, prediction: str = EPSILON
) -> dict[str, Any]:
    """A U-Net trained on DDPM's steps, as the arguments of an Oracle."""
    config = network.config
    return {
        "module": network, "parameterisation": prediction, "is_pixels": is_pixels, "kind": kind,
        "shape": (config.image_channels, resolution, resolution),
        "num_classes": config.classes, "no_class": config.classes or None,
    }  # fmt: skip


def load_own(path: Path, resolution: int | None = None) -> dict[str, Any]:
    """The arguments of an Oracle, of a file or folder that ``golddiff oracle`` wrote."""
    network, about = read_weights(find_weights(path))
    kind = f"DDPM U-Net trained on {about['training'].get('data')}"
    is_pixels = about.get("is_pixels", True)
    return described(network, about["resolution"], is_pixels, kind, about["prediction"])


def load_published(path: Path, resolution: int | None = None) -> dict[str, Any]:
    """The arguments of an Oracle, of a checkpoint whose sizes its weights' shapes tell."""
    found = read_torch(path)
    if isinstance(found, Mapping) and STATE in found:
        found = found[STATE]
    tensors = checked_weights(found, path)
    config = infer_config(tensors, path)
    network: UNet = fill(lambda: UNet(config), tensors, path, parts=config.parts)
    # Levels between two timesteps are embedded by the formula, so the table must be its own.
    table = network.get_parameter(TABLE)
    if not torch.allclose(table, sinusoids(torch.arange(TIMESTEPS), table.shape[1]), atol=1e-2):
        raise CheckpointError(f"{path}: its timestep table is not the sinusoids of DDPM")
    side = resolution_of(config, path, resolution)
    return described(network, side, True, "DDPM U-Net, as published")


def resolution_of(config: UNetConfig, path: Path, resolution: int | None = None) -> int:
    """The side of the images, which the weights do not tell.

    Without ``resolution`` it is that of the published networks: 28 for three levels; for others
    64 where the file's folder bears the name of the published AFHQ or CelebA-HQ, else 32.
    """
    if resolution is None:
        by_levels = 64 if path.absolute().parent.name in FOLDERS_OF_64 else 32
        resolution = 28 if len(config.multipliers) == 3 else by_levels
    check_count("resolution", resolution)
    if resolution % config.divisor:
        raise ArgumentError(
            f"resolution: got {resolution}, expected a multiple of {config.divisor} for the "
            f"{len(config.multipliers)} levels of {path}"
        )
    return resolution


def infer_config(tensors: Mapping[str, torch.Tensor], path: Path) -> UNetConfig:
    """Sizes of the network that such weights are of."""
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
