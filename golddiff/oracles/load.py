"""``load_oracle``: recognise the format of a trained network, and open it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from golddiff.oracles.diffusers_unet import CONFIG, load_diffusers, read_json
from golddiff.oracles.edm.pickled import load_edm
from golddiff.oracles.files import FORMAT, load_own, load_published
from golddiff.oracles.oracle import Oracle
from golddiff.oracles.weights import regular_file
from golddiff.system.arguments import check_device, path_of
from golddiff.system.errors import ArgumentError, CheckpointError
from golddiff.system.files import readable
from golddiff.system.numbers import check_count
from golddiff.system.torch_files import ZIP

PICKLE = b"\x80"
# The first bytes of a file of torch.save before it wrote zip archives: a pickled magic number.
LEGACY_TORCH = bytes.fromhex("8002 8a0a 6cfc 9c46 f920 6aa8 5019 2e")
# The safetensors format's own limit.
MAX_HEADER = 100_000_000
# Files that are often mistaken for networks, by their first bytes.
FOREIGN_CONTENTS = {
    b"\x1f\x8b": "is compressed with gzip; unpack it first",
    b"<": "is a page of text, perhaps of a failed download",
    b"version https:": "is a pointer to a file kept in Git LFS",
    b"\x89HDF": "is an HDF5 file",
}
EXPECTED = (
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

    The contents decide the format: a file or folder of ``golddiff oracle train`` or ``export``;
    a published checkpoint of the attention-free DDPM U-Net of Lukoianov et al.
    (``ckpt_epoch_200.pt``); a diffusers ``UNet2DModel``, alone or in a pipeline's folder; or a
    pickle of NVIDIA's EDM. No code in a file is run. :class:`golddiff.Oracle` wraps any other
    network.

    Args:
        path: file or folder.
        device: where the network runs, in float32.
        resolution: side of the images, for files that do not record it. For the published
            checkpoints the default is 28 for three levels; otherwise 64 in a folder ``afhq`` or
            ``celeba_hq``, and 32 in any other.
        batch_size: images denoised together.

    Returns:
        A :class:`golddiff.Oracle`, ready for :func:`golddiff.sample`.

    Raises:
        CheckpointError: the file is missing, damaged, of an unknown kind, or needs code to be run.
        ArgumentError: the device is not available, or the resolution does not fit.
    """
    check_count("batch_size", batch_size)
    if resolution is not None:
        check_count("resolution", resolution)
    location, checked = path_of("path", path), check_device(device)
    read = _read_folder if location.is_dir() else _read_file
    arguments = read(location, resolution)
    _, *sides = arguments["shape"]
    if resolution is not None and sides != [resolution, resolution]:
        raise ArgumentError(
            f"resolution: got {resolution}, but {location} takes images of {sides[0]} x {sides[1]}"
        )
    try:
        return Oracle(**arguments, device=checked, batch_size=batch_size)
    except ArgumentError as error:
        raise CheckpointError(f"{location} has a setting that is not allowed: {error}") from error


def _read_folder(folder: Path, resolution: int | None) -> dict[str, Any]:
    if (folder / CONFIG).is_file():
        config = read_json(regular_file(folder / CONFIG, folder))
        if config.get("format") == FORMAT:
            return load_own(folder)
        if "_class_name" in config:
            return load_diffusers(folder, resolution)
    elif (folder / "unet" / CONFIG).is_file():
        return load_diffusers(folder, resolution)
    raise CheckpointError(f"{folder} is no folder of a known network; expected {EXPECTED}")


def _read_file(path: Path, resolution: int | None) -> dict[str, Any]:
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; expected {EXPECTED}")
    with readable(f"{path} cannot be read", CheckpointError), regular_file(path).open("rb") as file:
        head = file.read(len(LEGACY_TORCH))
    # safetensors: 8 bytes of header length, then JSON. First, as the length can look like a pickle.
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= MAX_HEADER:
        return load_own(path)
    if head.startswith(ZIP) or head == LEGACY_TORCH:
        return load_published(path, resolution)
    if head.startswith(PICKLE):
        return load_edm(path)
    fault = f"begins with {head[:8]!r}" if head else "is empty"
    for beginning, known in FOREIGN_CONTENTS.items():
        if head.startswith(beginning):
            fault = known
    raise CheckpointError(f"{path} is no network: it {fault}; expected {EXPECTED}")
