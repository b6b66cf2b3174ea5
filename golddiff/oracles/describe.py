"""What a checkpoint is, as figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from golddiff import __version__
from golddiff.errors import CheckpointError
from golddiff.oracles.files import find_weights, read_description
from golddiff.oracles.load import load_oracle
from golddiff.oracles.unet import TABLE, UNet


def describe_checkpoint(path: Path, resolution: int | None = None) -> dict[str, Any]:
    """Everything about a checkpoint that fits in JSON; it is loaded, so damage is found.

    Args:
        path: of any format that :func:`golddiff.load_oracle` reads.
        resolution: side of the images, where the file does not tell it.

    Raises:
        CheckpointError: as :func:`golddiff.load_oracle`.
        ArgumentError: a resolution that does not fit.
    """
    oracle = load_oracle(path, resolution=resolution)
    network = oracle.network if isinstance(oracle.network, UNet) else None
    try:
        training = read_description(find_weights(path))["training"]
    except CheckpointError:
        training = None  # another format than golddiff's own
    return {
        "golddiff": __version__,
        "path": str(path),
        "bytes": None if network is None else find_weights(path).stat().st_size,
        "kind": oracle.kind,
        "shape": list(oracle.shape),
        "num_classes": oracle.num_classes,
        "sigma_min": oracle.sigma_min,
        "sigma_max": oracle.sigma_max,
        "parameters": sum(p.numel() for n, p in oracle.network.named_parameters() if n != TABLE),
        "network": None if network is None else network.config.as_dict(),
        "training": training,
    }
