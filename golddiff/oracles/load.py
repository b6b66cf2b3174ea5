"""Opening a trained network, whichever of the known formats it is in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from golddiff.oracles.diffusers_unet import CONFIG, load_diffusers, read_json
from golddiff.oracles.edm.pickled import load_edm
from golddiff.oracles.files import FORMAT, load_own, load_published
from golddiff.oracles.oracle import Oracle, checked_device
from golddiff.oracles.weights import regular_file
from golddiff.system.arguments import path_of
from golddiff.system.errors import ArgumentError, CheckpointError
from golddiff.system.numbers import check_count
from golddiff.system.torch_files import ZIP

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


# What a file is read by, into the arguments of an Oracle; the side of its images may be asked for.
Reader = Callable[[Path, int | None], dict[str, Any]]


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
    read = _reader_of_folder(place) if place.is_dir() else _reader_of_file(place)
    found = read(place, resolution)
    _, *sides = found["shape"]
    if resolution is not None and sides != [resolution, resolution]:
        raise ArgumentError(
            f"resolution: got {resolution}, but {place} is of images of {sides[0]} x {sides[1]}"
        )
    return Oracle(**found, device=where, batch_size=batch_size)


def _reader_of_folder(place: Path) -> Reader:
    if (place / CONFIG).is_file():
        config = read_json(regular_file(place / CONFIG, place))
        if config.get("format") == FORMAT:
            return load_own
        if "_class_name" in config:
            return load_diffusers
    elif (place / "unet" / CONFIG).is_file():
        return load_diffusers
    raise CheckpointError(f"{place} is no folder of a known network; expected {KNOWN}")


def _reader_of_file(place: Path) -> Reader:
    """By the file's first bytes."""
    if not place.exists():
        raise CheckpointError(f"{place} does not exist; expected {KNOWN}")
    try:
        with regular_file(place).open("rb") as file:
            head = file.read(len(OLD_TORCH))
    except OSError as error:
        raise CheckpointError(f"{place} cannot be read: {error.strerror or error}") from error
    # First, because the length of a header can begin like a pickle: 8 bytes of it, then JSON.
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= LONGEST_HEADER:
        return load_own
    if head.startswith(ZIP) or head == OLD_TORCH:
        return load_published
    if head.startswith(PICKLE):
        return load_edm
    known = [kind for beginning, kind in OTHERS.items() if head.startswith(beginning)]
    kind = known[0] if known else f"begins with {head[:8]!r}" if head else "is empty"
    raise CheckpointError(f"{place} is no network: it {kind}; expected {KNOWN}")
