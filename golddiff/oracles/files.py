"""golddiff's own weight files: safetensors with the network's description in the header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from golddiff.oracles.oracle import Oracle
from golddiff.oracles.parameterisations import EPSILON, PREDICTIONS
from golddiff.oracles.unet import TABLE, UNet, UNetConfig
from golddiff.oracles.weights import checked_weights, fill, read_safetensors, regular_file
from golddiff.system.errors import CheckpointError, one_line

FORMAT = "golddiff-oracle"
VERSION = 1
KEY = "golddiff"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def read_weights(path: Path) -> tuple[UNet, dict[str, Any]]:
    """The network of a file that ``golddiff oracle`` wrote, and what the file says of it.

    It is in evaluation mode; half-precision weights become float32.
    """
    tensors, header = read_safetensors(path)
    description = check_description(path, header.get(KEY))
    config = config_of(description)
    checked_weights(tensors, path)
    network = fill(lambda: UNet(config), tensors, path, optional={TABLE}, parts=config.parts)
    return network, description


def check_description(path: Path, header: str | None) -> dict[str, Any]:
    """What the header of a file says of its network, checked."""
    if header is None:
        raise CheckpointError(
            f"{path} is a safetensors file without a description of its network; expected one that "
            "golddiff wrote (a diffusers U-Net: give its folder)"
        )
    try:
        description: dict[str, Any] = json.loads(header)
        form = description["format"], description["version"]
        config = config_of(description)
        config.check()
        side, training = description["resolution"], description["training"]
        if type(side) is not int or side < 1 or side % config.divisor:
            raise ValueError(f"its resolution is {side!r}")
        if predicted(description) not in PREDICTIONS:
            raise ValueError(f"it predicts {predicted(description)!r}")
        if type(training) is not dict:
            raise ValueError("it does not say how it was trained")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: its description is damaged ({one_line(error)})") from error
    if form != (FORMAT, VERSION):
        raise CheckpointError(f"{path} has format {form}, expected {(FORMAT, VERSION)}")
    return description


def find_weights(path: Path) -> Path:
    """The weights of a run's folder, or the file itself."""
    return regular_file(path / WEIGHTS, path) if path.is_dir() else regular_file(path)


def config_of(description: dict[str, Any]) -> UNetConfig:
    """The sizes of the network that a description is of."""
    sizes = description["network"]
    return UNetConfig(**{**sizes, "multipliers": tuple(sizes["multipliers"])})


def predicted(description: dict[str, Any]) -> str:
    """What the network returns, a name in ``PREDICTIONS``."""
    return str(description.get("prediction", EPSILON))


def make_oracle(
    network: UNet,
    resolution: int,
    is_pixels: bool,
    kind: str,
    device: str,
    batch_size: int,
    prediction: str = EPSILON,
) -> Oracle:
    """A U-Net trained on DDPM's steps as a denoiser."""
    config = network.config
    return Oracle(
        network,
        prediction,
        shape=(config.image_channels, resolution, resolution),
        num_classes=config.classes,
        no_class=config.classes or None,
        is_pixels=is_pixels,
        kind=kind,
        device=device,
        batch_size=batch_size,
    )
