"""golddiff's own weight files: safetensors with the network's description in the header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from golddiff.oracles.oracle import Oracle
from golddiff.oracles.parameterisations import EPSILON, PREDICTIONS
from golddiff.oracles.unet import TABLE, UNet, UNetConfig
from golddiff.oracles.weights import checked_weights, fill, read_safetensors, regular_file
from golddiff.system.errors import ArgumentError, CheckpointError, one_line
from golddiff.system.files import written_whole

FORMAT = "golddiff-oracle"
VERSION = 1
KEY = "golddiff"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def describe_network(
    config: UNetConfig,
    resolution: int,
    is_pixels: bool,
    training: dict[str, Any],
    prediction: str = EPSILON,
) -> dict[str, Any]:
    """What a file says of its network: format, sizes, what it predicts and how it was trained."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": config.as_dict(),
        "resolution": resolution,
        "is_pixels": is_pixels,
        "prediction": prediction,
        "training": training,
    }


def write_weights(
    path: Path, network: UNet, description: dict[str, Any], dtype: torch.dtype = torch.float32
) -> None:
    """Write weights and description to one safetensors file, whole or not at all.

    The table of timestep embeddings is left out: reading makes it again from its formula.
    """
    tensors = {
        name: value.detach().to("cpu", dtype).contiguous()
        for name, value in network.state_dict().items()
        if name != TABLE
    }
    for name, value in tensors.items():
        if not bool(value.isfinite().all()):
            raise ArgumentError(f"dtype: {name} has values that {dtype} cannot hold")
    with written_whole("out", path) as temporary:
        save_file(tensors, temporary, {KEY: json.dumps(description, allow_nan=False)})


def write_folder(folder: Path, network: UNet, description: dict[str, Any]) -> None:
    """Write ``model.safetensors``, and beside it ``config.json`` to be read by people."""
    write_weights(folder / WEIGHTS, network, description)
    with written_whole("out", folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(description, indent=1, allow_nan=False) + "\n", "utf-8")


def read_weights(path: Path) -> tuple[UNet, dict[str, Any]]:
    """The network of a file that :func:`write_weights` wrote, and what the file says of it.

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
