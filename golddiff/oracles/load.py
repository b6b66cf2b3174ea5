"""Opening a trained network, whichever of the known formats it is in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from golddiff.errors import ArgumentError, CheckpointError
from golddiff.oracles.device import checked_device
from golddiff.oracles.oracle import NeuralDenoiser

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
) -> NeuralDenoiser:
    """Open a trained network as a denoiser ``D(x, sigma, labels) -> E[x0 | x]``.

    What a file is, is told from its contents: what ``golddiff oracle train`` or ``export`` wrote;
    a checkpoint of the attention-free DDPM U-Net that Lukoianov et al. publish
    (``ckpt_epoch_200.pt``); a diffusers ``UNet2DModel``, alone or in a pipeline's folder; an EDM
    pickle of NVIDIA's. No code in a file is run.

    Args:
        path: file or folder.
        device: where the network runs, in float32.
        resolution: side of the images, where the file does not tell it. The published checkpoints
            do not: by default 28 for three levels; for others 64 in a folder ``afhq`` or
            ``celeba_hq``, else 32.
        batch_size: images denoised together.

    Returns:
        A callable with the attributes ``shape``, ``num_classes`` (0: unconditional), ``sigma_min``,
        ``sigma_max``, ``kind``, ``device``, ``batch_size`` and ``store``; it goes into
        :func:`golddiff.sample`.

    Raises:
        CheckpointError: no such file, damaged, of another architecture or format, or one that asks
            for code to be run.
        ArgumentError: a device that is not there, a resolution that does not fit.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ArgumentError(f"batch_size: got {batch_size!r}, expected an integer of 1 or more")
    place, where = Path(path), checked_device(device)
    if place.is_dir():
        return _folder(place, where, resolution, batch_size)
    form = _form(place)
    if form == "edm":
        from golddiff.oracles.edm import load_edm  # type: ignore[import-not-found, unused-ignore]

        edm = cast(NeuralDenoiser, load_edm(place, where, batch_size))
        return _fits_resolution(edm, resolution, place)
    if form == "published":
        return _published(place, where, resolution, batch_size)
    return _own(place, where, resolution, batch_size)


def check_fits(oracle: NeuralDenoiser, store: ImageStore) -> None:
    """Raise where an oracle's images are not a store's.

    Raises:
        ArgumentError: another number of channels, another side, points.
    """
    if tuple(store.shape) != tuple(oracle.shape):
        raise ArgumentError(
            f"oracle: takes images of shape {tuple(oracle.shape)}, but the store has "
            f"{tuple(store.shape)}"
        )


def _folder(place: Path, device: str, resolution: int | None, batch_size: int) -> NeuralDenoiser:
    from golddiff.oracles.diffusers_unet import CONFIG, load_diffusers, read_json
    from golddiff.oracles.files import FORMAT, WEIGHTS

    if (place / CONFIG).is_file():
        config = read_json(place / CONFIG)
        if config.get("format") == FORMAT:
            return _own(place / WEIGHTS, device, resolution, batch_size)
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
        with place.open("rb") as file:
            head = file.read(len(OLD_TORCH))
        size = place.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{place} cannot be read: {error.strerror or error}") from error
    # First, because the length of a header can begin like a pickle: 8 bytes of it, then JSON.
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= LONGEST_HEADER:
        return "safetensors"
    if head.startswith(ZIP) or head == OLD_TORCH:
        return "published"
    if head.startswith(PICKLE):
        return "edm"
    found = f"begins with {head[:8]!r}" if size else "is empty"
    raise CheckpointError(f"{place} is no network: it {found}; expected {KNOWN}")


def _own(place: Path, device: str, resolution: int | None, batch_size: int) -> NeuralDenoiser:
    from golddiff.oracles.files import make_oracle, predicted, read_weights

    loaded = read_weights(place)
    side, data = loaded.description["resolution"], loaded.description["training"].get("data")
    kind = f"DDPM U-Net trained on {data}"
    oracle = make_oracle(
        loaded.network, side, loaded.description.get("is_pixels", True), kind, device, batch_size,
        predicted(loaded.description),
    )  # fmt: skip
    return _fits_resolution(oracle, resolution, place)


def _published(place: Path, device: str, resolution: int | None, batch_size: int) -> NeuralDenoiser:
    from golddiff.oracles.files import make_oracle
    from golddiff.oracles.published import read_published, resolution_of

    network = read_published(place)
    side = resolution_of(network.config, place, resolution)
    return make_oracle(network, side, True, "DDPM U-Net, as published", device, batch_size)


def _fits_resolution(oracle: NeuralDenoiser, resolution: int | None, place: Path) -> NeuralDenoiser:
    if resolution is not None and oracle.shape[1:] != (resolution, resolution):
        raise ArgumentError(
            f"resolution: got {resolution}, but {place} is of images of side {oracle.shape[1]}"
        )
    return oracle
