"""Weights on disk: safetensors with the network's description in the header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from golddiff.files import written_whole
from golddiff.oracles.unet import UNet

FORMAT = "golddiff-oracle"
VERSION = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
# Made again from its formula.
TABLE = "time_embedding.timembedding.0.weight"


def describe_network(network: UNet, resolution: int, training: dict[str, Any]) -> dict[str, Any]:
    """What a file says of its network: format, sizes, and how it was trained."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": network.config.as_dict(),
        "resolution": resolution,
        "training": training,
    }


def write_weights(
    path: Path, network: UNet, description: dict[str, Any], dtype: torch.dtype = torch.float32
) -> None:
    """Write weights and description to one safetensors file, whole or not at all.

    Raises:
        ArgumentError: the file cannot be written.
    """
    tensors = {
        name: value.detach().to("cpu", dtype).contiguous()
        for name, value in network.state_dict().items()
        if name != TABLE
    }
    with written_whole("out", path) as temporary:
        save_file(tensors, temporary, {"golddiff": json.dumps(description, allow_nan=False)})


def write_folder(folder: Path, network: UNet, description: dict[str, Any]) -> None:
    """Write ``model.safetensors``, and beside it ``config.json`` to be read by people."""
    write_weights(folder / WEIGHTS, network, description)
    with written_whole("out", folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(description, indent=1, allow_nan=False) + "\n", "utf-8")
