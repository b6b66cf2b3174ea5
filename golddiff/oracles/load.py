"""Opening a trained network, whichever of the known formats it is in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from golddiff.oracles.diffusers_unet import CONFIG, load_diffusers, read_json
from golddiff.oracles.edm.pickled import load_edm
from golddiff.oracles.files import FORMAT, find_weights, make_oracle, predicted, read_weights
from golddiff.oracles.oracle import Oracle, checked_batch_size, checked_device
from golddiff.oracles.published import read_published, resolution_of
from golddiff.oracles.unet import TABLE, UNet
from golddiff.oracles.weights import regular_file
from golddiff.system.arguments import path_of
from golddiff.system.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

ZIP = b"PK\x03\x04"
PICKLE = b"\x80"
# How torch.save began before it wrote zip archives: a pickle of this number.
OLD_TORCH = bytes.fromhex("8002 8a0a 6cfc 9c46 f920 6aa8 5019 2e")
# The safetensors format's own limit.
LONGEST_HEADER = 100_000_000
KNOWN = (
    "a folder or file that golddiff oracle wrote, a .pt checkpoint of the published attention-free "
    "U-Net, a diffusers UNet2DModel or pipeline folder, or an EDM .pkl"
)


def load_oracle(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    resolution: int | None = None,
    batch_size: int = 64,
) -> Oracle:
    """Open a trained network as a denoiser ``D(x, sigma, labels) -> E[x0 | x]``.

    What a file is, is told from its contents: what ``golddiff oracle train`` or ``export`` wrote;
    a checkpoint of the attention-free DDPM U-Net that Lukoianov et al. publish
    (``ckpt_epoch_200.pt``); a diffusers ``UNet2DModel``, alone or in a pipeline's folder; an EDM
    pickle of NVIDIA's. No code in a file is run. For any other network: :class:`golddiff.Oracle`.

    Args:
        path: file or folder.
        device: where the network runs, in float32.
        resolution: side of the images, where the file does not tell it. The published checkpoints
            do not: by default 28 for three levels; for others 64 in a folder ``afhq`` or
            ``celeba_hq``, else 32.
        batch_size: images denoised together.

    Returns:
        A :class:`golddiff.Oracle`; it goes into :func:`golddiff.sample`.

    Raises:
        CheckpointError: no such file, damaged, of another architecture or format, or one that asks
            for code to be run.
        ArgumentError: a device that is not there, a resolution that does not fit.
    """
    checked_batch_size(batch_size)
    place, where = path_of("path", path), checked_device(device)
    if place.is_dir():
        oracle = _folder(place, where, resolution, batch_size)
    else:
        form = _form(place)
        if form == "published":
            network = read_published(place)
            side = resolution_of(network.config, place, resolution)
            return make_oracle(network, side, True, "DDPM U-Net, as published", where, batch_size)
        if form == "edm":
            oracle = load_edm(place, where, batch_size)
        else:
            oracle = _own(place, where, batch_size)
    if resolution is not None and oracle.store.shape[1:] != (resolution, resolution):
        raise ArgumentError(
            f"resolution: got {resolution}, but {place} is of images of side "
            f"{oracle.store.shape[1]}"
        )
    return oracle


def check_fits(oracle: Oracle, store: ImageStore) -> None:
    """Raise where an oracle's images are not a store's.

    Raises:
        ArgumentError: another number of channels, another side, points.
    """
    if tuple(store.shape) != oracle.store.shape:
        raise ArgumentError(
            f"oracle: takes images of shape {oracle.store.shape}, but the store has "
            f"{tuple(store.shape)}"
        )


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
    network = oracle.network
    own = isinstance(network, UNet)
    try:
        training = read_weights(find_weights(path)).description["training"] if own else None
    except CheckpointError:
        training = None  # a published checkpoint
    return {
        "path": str(path),
        "bytes": find_weights(path).stat().st_size if own else None,
        "kind": oracle.kind,
        "shape": list(oracle.store.shape),
        "num_classes": oracle.num_classes,
        "sigma_min": oracle.sigma_min,
        "sigma_max": oracle.sigma_max,
        "parameters": sum(p.numel() for n, p in network.named_parameters() if n != TABLE),
        "network": network.config.as_dict() if own else None,
        "training": training,
    }


def _folder(place: Path, device: str, resolution: int | None, batch_size: int) -> Oracle:
    if (place / CONFIG).is_file():
        config = read_json(regular_file(place / CONFIG, place))
        if config.get("format") == FORMAT:
            return _own(place, device, batch_size)
        if "_class_name" in config:
            return load_diffusers(place, resolution, device, batch_size)
    elif (place / "unet" / CONFIG).is_file():
        return load_diffusers(place, resolution, device, batch_size)
    raise CheckpointError(f"{place} is no folder of a known network; expected {KNOWN}")


def _form(place: Path) -> str:
    """Which loader a file is for, from its first bytes."""
    if not place.exists():
        raise CheckpointError(f"{place} does not exist; expected {KNOWN}")
    try:
        with regular_file(place).open("rb") as file:
            head = file.read(len(OLD_TORCH))
    except OSError as error:
        raise CheckpointError(f"{place} cannot be read: {error.strerror or error}") from error
    # First, because the length of a header can begin like a pickle: 8 bytes of it, then JSON.
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= LONGEST_HEADER:
        return "safetensors"
    if head.startswith(ZIP) or head == OLD_TORCH:
        return "published"
    if head.startswith(PICKLE):
        return "edm"
    found = f"begins with {head[:8]!r}" if head else "is empty"
    raise CheckpointError(f"{place} is no network: it {found}; expected {KNOWN}")


def _own(place: Path, device: str, batch_size: int) -> Oracle:
    loaded = read_weights(find_weights(place))
    about = loaded.description
    return make_oracle(
        loaded.network,
        about["resolution"],
        about.get("is_pixels", True),
        f"DDPM U-Net trained on {about['training'].get('data')}",
        device,
        batch_size,
        predicted(about),
    )
