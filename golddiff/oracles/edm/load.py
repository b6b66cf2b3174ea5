"""Opening NVIDIA's EDM pickles without running any code in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from golddiff.errors import ArgumentError, CheckpointError
from golddiff.oracles.edm.arguments import Arguments
from golddiff.oracles.edm.machine import read_pickle
from golddiff.oracles.edm.network import build_network
from golddiff.oracles.edm.oracle import EDMOracle
from golddiff.oracles.edm.records import Record
from golddiff.oracles.edm.standins import ALLOWED

# The largest published network takes 1.2e9 bytes.
MOST_BYTES = 16 * 2**30

# What else comes under such a name: a page that says that the download failed, for one.
BEGINNINGS = {
    b"\x1f\x8b": "it is compressed with gzip; unpack it first",
    b"PK\x03\x04": "it is a zip archive, as torch.save writes them",
    b"<": "it is a page of text, perhaps of a failed download",
    b"version https://git-lfs": "it is a pointer to a file kept in Git LFS",
    b"\x89HDF": "it is an HDF5 file",
}


def load_edm(
    path: str | os.PathLike[str], device: str | torch.device = "cpu", batch_size: int = 32
) -> EDMOracle:
    """Open a network of EDM's, as NVIDIA publishes them and its training code writes them.

    The file is a pickle that brings its own source code. None of it is run: tensors and
    constructor arguments are taken out of it, and the networks are this package's own.

    Args:
        path: such as ``edm-cifar10-32x32-uncond-vp.pkl``.
        device: where the network runs, in float32.
        batch_size: images that it denoises together; memory grows with it, results do not depend
            on it.

    Raises:
        CheckpointError: no such file, not an EDM pickle, a damaged one, one that asks for anything
            else than tensors and plain data (which is not run), or another network than a
            SongUNet or DhariwalUNet with EDM, VP, VE or iDDPM preconditioning.
        ArgumentError: a device that is not there, a batch size below 1.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise ArgumentError(f"batch_size: got {batch_size!r}, expected an integer of 1 or more")
    place = _device(device)
    data = _read(Path(path))
    try:
        whole, _ = read_pickle(memoryview(data), ALLOWED)
        network, arguments = build_network(_ema(whole), len(data))
    except Exception as error:
        # A damaged pickle raises nearly anything, as it drives conversions with wrong values.
        reason = _one_line(str(error)) or type(error).__name__
        raise CheckpointError(f"{path} is not a readable EDM pickle: {reason}") from error
    side, channels, classes = arguments.images.values()
    return EDMOracle(network, (channels, side, side), classes, _kind(arguments), place, batch_size)


def _one_line(text: str) -> str:
    """A message that may quote the file: short, and without what would drive a terminal."""
    short = " ".join(text[:500].split())
    return "".join(char if char.isprintable() else "?" for char in short)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise CheckpointError(f"{path} is no file" if path.exists() else f"{path} does not exist")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CheckpointError(f"{path} is larger than any EDM pickle")
        with path.open("rb") as file:
            head = file.read(32)
            for beginning, meaning in BEGINNINGS.items():
                if head.startswith(beginning):
                    raise CheckpointError(f"{path} is not an EDM pickle: {meaning}")
            if not head.startswith(b"\x80"):
                raise CheckpointError(
                    f"{path} is not an EDM pickle: "
                    + (f"it begins with {head[:8]!r}" if head else "it is empty")
                )
            file.seek(0)
            return file.read()
    except (OSError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not fit into memory"
        raise CheckpointError(f"{path} cannot be read: {reason}") from error


def _ema(whole: Any) -> Record:
    """The averaged network, the one that NVIDIA's own sampler uses."""
    if not isinstance(whole, dict):
        raise CheckpointError(f"it holds a {type(whole).__name__}, expected a dict with 'ema'")
    if "ema" not in whole:
        found = ", ".join(str(name)[:40] for name in list(whole)[:8]) or "nothing"
        raise CheckpointError(f"it has no 'ema', the averaged network; it has {found}")
    if type(whole["ema"]) is not Record:
        raise CheckpointError(f"its 'ema' is a {type(whole['ema']).__name__}, expected a network")
    return whole["ema"]


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0][:120]
        raise ArgumentError(f"device: got {device!r}, which is not there ({reason})") from error
    return place


def _kind(arguments: Arguments) -> str:
    """The paper's names for the architectures (Table 1)."""
    named = {"DhariwalUNet": "ADM"}.get(arguments.model)
    if arguments.model == "SongUNet":
        parts = ("embedding_type", "encoder_type", "decoder_type")
        defaults = ("positional", "standard", "standard")
        chosen = tuple(
            arguments.network.get(part, default)
            for part, default in zip(parts, defaults, strict=True)
        )
        named = {
            ("positional", "standard", "standard"): "DDPM++",
            ("fourier", "residual", "standard"): "NCSN++",
        }.get(chosen)
    precond = arguments.precond.removesuffix("Precond")
    return f"{precond} ({', '.join(filter(None, (arguments.model, named)))})"
