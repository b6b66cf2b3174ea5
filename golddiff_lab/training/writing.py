"""Write golddiff's weight files; :mod:`golddiff.oracles.files` reads them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from golddiff.cli.terminal import write_json
from golddiff.oracles.diffusers_unet import CONFIG
from golddiff.oracles.files import FORMAT, KEY, VERSION, WEIGHTS
from golddiff.oracles.parameterisations import EPSILON
from golddiff.oracles.unet import TABLE, UNet, UNetConfig
from golddiff.system.errors import ArgumentError
from golddiff.system.files import atomic_write


def describe_network(
    config: UNetConfig,
    resolution: int,
    is_pixels: bool,
    training: dict[str, Any],
    prediction: str = EPSILON,
) -> dict[str, Any]:
    """Metadata of a weight file: format, network sizes, prediction and training."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": asdict(config),
        "resolution": resolution,
        "is_pixels": is_pixels,
        "prediction": prediction,
        "training": training,
    }


def write_weights(
    path: Path, network: UNet, description: dict[str, Any], dtype: torch.dtype = torch.float32
) -> None:
    """Write weights and description atomically to one safetensors file.

    The table of timestep embeddings is omitted, because readers recompute it.
    """
    tensors = {
        name: value.detach().to("cpu", dtype).contiguous()
        for name, value in network.state_dict().items()
        if name != TABLE
    }
    for name, value in tensors.items():
        if not bool(value.isfinite().all()):
            raise ArgumentError(f"dtype: {name} has values that {dtype} cannot hold")
    with atomic_write("out", path) as temporary:
        # Not safetensors' save_file, whose files only their owner can read.
        temporary.write_bytes(save(tensors, {KEY: json.dumps(description, allow_nan=False)}))


def write_folder(folder: Path, network: UNet, description: dict[str, Any]) -> None:
    """Write ``model.safetensors``, and a human-readable ``config.json``."""
    write_weights(folder / WEIGHTS, network, description)
    write_json(folder / CONFIG, description, "out")
