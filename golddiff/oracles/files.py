"""Weight files of the DDPM U-Net: golddiff's own format and the published checkpoints.

golddiff writes safetensors with a description of the network in the header. The checkpoints of
Lukoianov et al. and the paper come from torch.save; the shapes of the weights give the sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from golddiff.oracles.parameterisations import EPSILON, PREDICTIONS, TIMESTEPS
from golddiff.oracles.unet import TABLE, UNet, UNetConfig, sinusoids
from golddiff.oracles.weights import (
    build_network,
    check_state_dict,
    join_names,
    read_safetensors,
    regular_file,
)
from golddiff.system.errors import ArgumentError, CheckpointError, one_line
from golddiff.system.torch_files import read_torch

FORMAT = "golddiff-oracle"
VERSION = 1
KEY = "golddiff"
WEIGHTS = "model.safetensors"
STATE = "model_state_dict"
# What is read of a description of the training.
TRAINING: dict[str, Any] = {"steps": int, "minutes": (int, float), "loss": list,
                            "class_names": (list, type(None))}  # fmt: skip
# Folders of the published checkpoints whose images have side 64.
FOLDERS_OF_64 = ("afhq", "celeba_hq")


def read_weights(path: Path) -> tuple[UNet, dict[str, Any]]:
    """The network that ``golddiff oracle`` wrote to a file or folder, and its header's description.

    The network is in evaluation mode; half-precision weights become float32.
    """
    path = find_weights(path)
    tensors, header = read_safetensors(path)
    config, description = _parse_header(path, header.get(KEY))
    check_state_dict(tensors, path)
    network = build_network(lambda: UNet(config), tensors, path, optional={TABLE})
    return network, description


def _parse_header(path: Path, header: str | None) -> tuple[UNetConfig, dict[str, Any]]:
    """The sizes of a network and the description in its file's header, checked."""
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
        if type(description.get("is_pixels", True)) is not bool:
            raise ValueError(f"is_pixels is {description['is_pixels']!r}")
        if type(training) is not dict:
            raise ValueError("it does not say how it was trained")
        for name, kinds in TRAINING.items():
            if name in training and not isinstance(training[name], kinds):
                raise ValueError(f"{name} is {training[name]!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: its description is damaged ({one_line(error)})") from error
    if form != (FORMAT, VERSION):
        raise CheckpointError(f"{path} has format {form}, expected {(FORMAT, VERSION)}")
    return config, description


def find_weights(path: Path) -> Path:
    """The weight file in a folder that ``golddiff oracle`` wrote, or the file itself."""
    if not path.is_dir():
        return regular_file(path)
    if not (path / WEIGHTS).exists():
        raise CheckpointError(f"{path} holds no {WEIGHTS}, as golddiff oracle train writes it")
    return regular_file(path / WEIGHTS, path)


def unet_arguments(
    network: UNet, resolution: int, is_pixels: bool, kind: str, prediction: str = EPSILON
) -> dict[str, Any]:
    """The arguments of an Oracle for a U-Net trained on DDPM's timesteps."""
    config = network.config
    return {
        "module": network, "parameterisation": prediction, "is_pixels": is_pixels, "kind": kind,
        "shape": (config.image_channels, resolution, resolution),
        "num_classes": config.classes, "no_class": config.classes or None,
    }  # fmt: skip


def load_own(path: Path) -> dict[str, Any]:
    """The arguments of an Oracle for a file or folder that ``golddiff oracle`` wrote."""
    network, header = read_weights(path)
    training, prediction = header["training"], header["prediction"]
    kind = f"DDPM U-Net trained on {training.get('data')}, {prediction}"
    is_pixels = header.get("is_pixels", True)
    arguments = unet_arguments(network, header["resolution"], is_pixels, kind, prediction)
    return {**arguments, "class_names": training.get("class_names")}


def load_published(path: Path, resolution: int | None) -> dict[str, Any]:
    """The arguments of an Oracle for a published checkpoint, sized by its weights' shapes."""
    state = read_torch(path)
    if isinstance(state, Mapping) and STATE in state:
        state = state[STATE]
    tensors = check_state_dict(state, path)
    config = infer_config(tensors, path)
    network: UNet = build_network(lambda: UNet(config), tensors, path)
    # Fractional timesteps are embedded by the formula, so the table must agree with it.
    table = network.get_parameter(TABLE)
    if not torch.allclose(table, sinusoids(torch.arange(TIMESTEPS), table.shape[1]), atol=1e-2):
        raise CheckpointError(f"{path}: its timestep table is not the sinusoids of DDPM")
    if resolution is None:  # which the weights do not tell
        default = 64 if path.absolute().parent.name in FOLDERS_OF_64 else 32
        resolution = 28 if len(config.multipliers) == 3 else default
    if resolution % config.divisor:
        raise ArgumentError(
            f"resolution: got {resolution}, expected a multiple of {config.divisor} for the "
            f"{len(config.multipliers)} levels of {path}"
        )
    return unet_arguments(network, resolution, True, "DDPM U-Net, as published")


def infer_config(tensors: Mapping[str, torch.Tensor], path: Path) -> UNetConfig:
    """The sizes of a network, from the shapes of its weights."""
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    head = shapes.get("head.weight", ())
    down = [f"downblocks.{i}" for i in range(len(shapes))]  # blocks, and layers that halve the side
    widths = [shape[0] for name in down if (shape := shapes.get(f"{name}.block1.2.weight"))]
    levels = 1 + sum(f"{name}.main.weight" in shapes for name in down)
    if len(head) != 4 or not widths or head[0] < 1 or any(w % head[0] for w in widths):
        names = join_names(sorted(tensors)) or "nothing"
        raise CheckpointError(f"{path} holds no attention-free DDPM U-Net; it has {names}")
    channels, image_channels = head[:2]
    blocks = len(widths) // levels
    config = UNetConfig(
        channels=channels,
        multipliers=tuple(widths[i * blocks] // channels for i in range(levels)),
        blocks=blocks,
        image_channels=image_channels,
        classes=(*shapes.get("class_embedding.weight", ()), 1)[0] - 1,
    )
    try:
        config.check()
    except ArgumentError as error:
        raise CheckpointError(f"{path} holds no network of this architecture: {error}") from error
    return config
