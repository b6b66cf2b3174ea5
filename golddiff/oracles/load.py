"""Opening a trained network, whichever of the known formats it is in."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from golddiff.oracles.diffusers_unet import CONFIG, load_diffusers, read_json
from golddiff.oracles.edm.pickled import load_edm
from golddiff.oracles.files import (
    FORMAT,
    find_weights,
    make_oracle,
    predicted,
    read_published,
    read_weights,
    resolution_of,
)
from golddiff.oracles.oracle import Oracle, checked_device
from golddiff.oracles.weights import regular_file
from golddiff.system.arguments import check_count, path_of
from golddiff.system.errors import ArgumentError, CheckpointError

ZIP = b"PK\x03\x04"
PICKLE = b"\x80"
# How torch.save began before it wrote zip archives: a pickle of this number.
OLD_TORCH = bytes.fromhex("8002 8a0a 6cfc 9c46 f920 6aa8 5019 2e")
# The safetensors format's own limit.
LONGEST_HEADER = 100_000_000
# What else comes under such a name: a page that says that the download failed, for one.
OTHERS = {
    b"\x1f\x8b": "is compressed with gzip; unpack it first",
    b"<": "is a page of text, perhaps of a failed download",
    b"version https:": "is a pointer to a file kept in Git LFS",
    b"\x89HDF": "is an HDF5 file",
}
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

    A file is recognised by its contents: what ``golddiff oracle train`` or ``export`` wrote;
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
    check_count("batch_size", batch_size)
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
    known = [kind for beginning, kind in OTHERS.items() if head.startswith(beginning)]
    kind = known[0] if known else f"begins with {head[:8]!r}" if head else "is empty"
    raise CheckpointError(f"{place} is no network: it {kind}; expected {KNOWN}")


def _own(place: Path, device: str, batch_size: int) -> Oracle:
    network, about = read_weights(find_weights(place))
    return make_oracle(
        network,
        about["resolution"],
        about.get("is_pixels", True),
        f"DDPM U-Net trained on {about['training'].get('data')}",
        device,
        batch_size,
        predicted(about),
    )
