"""The checkpoints that Lukoianov et al. and the paper publish, as torch.save wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from golddiff.oracles.parameterisations import TIMESTEPS
from golddiff.oracles.unet import TABLE, UNet, UNetConfig, sinusoids
from golddiff.oracles.weights import checked_weights, fill, listed
from golddiff.system.arguments import check_count
from golddiff.system.errors import ArgumentError, CheckpointError
from golddiff.system.torch_files import read_torch

STATE = "model_state_dict"
# The published data sets by the folders that their checkpoints lie in, where the side is not 32.
FOLDERS_OF_64 = ("afhq", "celeba_hq")


def read_published(path: Path) -> UNet:
    """The network of a checkpoint, its sizes inferred from the shapes of its weights."""
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
    return network


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
