"""The oracle's runs on disk, so that no network is run twice for the same noise."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golddiff.evaluation.compare import check_oracle
from golddiff.evaluation.runs import OracleCall, Run, RunSettings, run
from golddiff.samplers import Space
from golddiff.sampling import OnStep
from golddiff.store.artifacts import Artifacts
from golddiff.store.cache import cache_folder
from golddiff.system.errors import ArgumentError

TENSORS = ("images", "states", "predictions")
_FORMAT = 2  # of the files; another number, and none of the old are found


@dataclass
class Oracle:
    """An oracle and where it came from; the network is loaded when it is first needed."""

    path: Path  # file or folder of the weights
    checksum: str  # see :func:`weights_checksum`

    @classmethod
    def at(cls, path: str | Path) -> Oracle:
        """The oracle at a path, which must exist."""
        place = Path(path).expanduser()
        return cls(place, weights_checksum(place))

    @property
    def name(self) -> str:
        """As tables show it: the last part of the path."""
        return self.path.name

    @cached_property
    def call(self) -> OracleCall:
        """The network, on the GPU where there is one."""
        import golddiff

        device = "cuda" if torch.cuda.is_available() else "cpu"
        return golddiff.load_oracle(self.path, device=device)


def weights_checksum(path: Path) -> str:
    """SHA-256 of a file, or of names and contents of a folder's weights.

    In a folder with .safetensors files these and .json files (the network's description) are its
    weights, logs and optimiser states beside them are not; in any other folder every file is.
    """
    if not path.exists():
        raise ArgumentError(f"oracle: {path} does not exist")
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    if any(file.suffix == ".safetensors" for file in files):
        files = [file for file in files if file.suffix in (".safetensors", ".json")]
    for file in files:
        with file.open("rb") as stream:
            contents = hashlib.file_digest(stream, "sha256").hexdigest()
        name = "" if path.is_file() else file.relative_to(path).as_posix()
        digest.update(f"{name}\0{contents}\n".encode())
    return digest.hexdigest()


def reference_run(
    oracle: Oracle,
    store: Space,
    settings: RunSettings,
    folder: Path | None = None,
    on_step: OnStep = lambda images: None,
) -> Run:
    """The oracle's run with these settings: read from disk, or made and kept there.

    The batch size does not matter to the file; by default it lies in the cache folder.
    """
    identity = json.dumps(_identity(oracle, store, settings), sort_keys=True)
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    folder = folder or cache_folder() / "oracle-runs"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    runs = Artifacts(folder, identity)
    found = runs.load(name)
    if found is None:
        check_oracle(oracle.call, store)
        made = run(oracle.call, store, settings, on_step)
        arrays = {part: getattr(made, part).numpy() for part in TENSORS}
        runs.save(name, {**arrays, "seconds": np.array([made.seconds, made.processor_seconds])})
        return made
    images, states, predictions = (torch.from_numpy(found[part]) for part in TENSORS)
    return Run(settings, images, states, predictions, *found["seconds"].tolist())


def _identity(oracle: Oracle, store: Space, settings: RunSettings) -> dict[str, Any]:
    """What decides a run's figures; the batch size does not."""
    return {
        "format": _FORMAT,
        "oracle": oracle.checksum,
        "shape": list(store.shape),
        "clipped": store.is_pixels,
        **{name: value for name, value in asdict(settings).items() if name != "batch"},
    }
