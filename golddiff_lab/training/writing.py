"""golddiff's own weight files, written; :mod:`golddiff.oracles.files` reads them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from golddiff.oracles.files import CONFIG, FORMAT, KEY, VERSION, WEIGHTS
from golddiff.oracles.parameterisations import EPSILON
from golddiff.oracles.unet import TABLE, UNet, UNetConfig
from golddiff.system.errors import ArgumentError
from golddiff.system.files import written_whole


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
        "network": asdict(config),
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
        # A file that the library writes itself is for its owner's eyes alone.
        temporary.write_bytes(save(tensors, {KEY: json.dumps(description, allow_nan=False)}))


def write_folder(folder: Path, network: UNet, description: dict[str, Any]) -> None:
    """Write ``model.safetensors``, and beside it ``config.json`` to be read by people."""
    write_weights(folder / WEIGHTS, network, description)
    with written_whole("out", folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(description, indent=1, allow_nan=False) + "\n", "utf-8")
