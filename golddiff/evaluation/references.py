"""A disk cache of oracle runs, so that a network runs only once for the same noise."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

import golddiff
from golddiff.evaluation.compare import check_oracle
from golddiff.evaluation.runs import OracleCall, Run, RunSettings, run
from golddiff.oracles.diffusers_unet import SCHEDULER
from golddiff.samplers import Space
from golddiff.sampling import OnStep
from golddiff.store.artifacts import Artifacts
from golddiff.store.cache import cache_folder
from golddiff.system.errors import ArgumentError

TENSORS = ("images", "states", "predictions")
_FORMAT = 2  # version of the files; changing it invalidates all cached runs


class OracleFile:
    """A file or folder of weights and its checksum; the network is loaded on first use."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.checksum = weights_checksum(self.path)

    @cached_property
    def call(self) -> OracleCall:
        """The network, on the GPU if there is one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return golddiff.load_oracle(self.path, device=device)


def weights_checksum(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of the weights in a folder.

    If the folder has .safetensors files, only these and .json files (the network's configuration)
    count, not logs or optimiser states. Otherwise every file in the folder counts. So does the
    scheduler of a pipeline whose ``unet`` the folder is.
    """
    if not path.exists():
        raise ArgumentError(f"oracle: {path} does not exist")
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    if any(file.suffix == ".safetensors" for file in files):
        files = [file for file in files if file.suffix in (".safetensors", ".json")]
    scheduler = path.absolute().parent / "scheduler" / SCHEDULER
    if path.is_dir() and scheduler.is_file():
        files.append(scheduler)
    for file in files:
        with file.open("rb") as stream:
            contents = hashlib.file_digest(stream, "sha256").hexdigest()
        name = "" if path.is_file() else Path(os.path.relpath(file, path)).as_posix()
        digest.update(f"{name}\0{contents}\n".encode())
    return digest.hexdigest()


def reference_run(
    oracle: OracleFile,
    store: Space,
    settings: RunSettings,
    folder: Path | None = None,
    on_step: OnStep | None = None,
) -> Run:
    """The oracle's run with these settings, loaded from disk or computed and saved there.

    ``folder`` defaults to one in the cache folder. The batch size is not part of the key.
    """
    # Everything that the run's images depend on
    depends_on = {
        "format": _FORMAT,
        "oracle": oracle.checksum,
        "shape": list(store.shape),
        "clipped": store.is_pixels,
        **{name: value for name, value in asdict(settings).items() if name != "batch"},
    }
    identity = json.dumps(depends_on, sort_keys=True)
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    folder = folder or cache_folder() / "oracle-runs"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    runs = Artifacts(folder, identity)
    saved = runs.load(name)
    if saved is None or settings.labels:
        check_oracle(oracle.call, store, settings.labels or ())
    if saved is None:
        result = run(oracle.call, store, settings, on_step)
        arrays = {part: getattr(result, part).numpy() for part in TENSORS}
        runs.save(name, arrays | {"seconds": np.array([result.seconds, result.processor_seconds])})
        return result
    images, states, predictions = (torch.from_numpy(saved[part]) for part in TENSORS)
    return Run(settings, images, states, predictions, *saved["seconds"].tolist())
