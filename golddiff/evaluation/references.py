"""The oracle's runs on disk, so that no network is run twice for the same noise."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from golddiff.evaluation.compare import check_oracle
from golddiff.evaluation.runs import OracleCall, Run, RunSettings, run
from golddiff.sampling import OnStep, Space, noise_levels
from golddiff.store.cache import cache_folder
from golddiff.system.errors import ArgumentError
from golddiff.system.files import written_whole

TENSORS = ("images", "states", "predictions")
TIMES = ("seconds", "processor_seconds")

_FORMAT = 1  # of the files; another number, and none of the old are found


@dataclass
class Oracle:
    """An oracle and where it came from; the network is loaded when it is first needed.

    Attributes:
        name: as tables show it: the last part of the path.
        path: file or folder of the weights.
        checksum: SHA-256 of the weights (see :func:`weights_checksum`).
    """

    name: str
    path: Path
    checksum: str
    _loaded: OracleCall | None = None

    @classmethod
    def at(cls, path: str | Path) -> Oracle:
        """The oracle at a path, which must exist.

        Raises:
            ArgumentError: nothing there.
        """
        place = Path(path).expanduser()
        return cls(place.name, place, weights_checksum(place))

    @property
    def call(self) -> OracleCall:
        """The network, loaded once.

        Raises:
            GoldDiffError: it cannot be loaded.
        """
        if self._loaded is None:
            import golddiff

            if not hasattr(golddiff, "load_oracle"):
                raise ArgumentError("oracle: this golddiff has no loader for neural oracles")
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._loaded = golddiff.load_oracle(self.path, device=device)
        return self._loaded


def weights_checksum(path: Path) -> str:
    """SHA-256 of a file, or of names and contents of a folder's weights.

    In a folder with .safetensors files these and .json files (the network's description) are its
    weights, logs and optimiser states beside them are not; in any other folder every file is.

    Raises:
        ArgumentError: nothing there.
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

    Args:
        oracle: the network.
        store: gives the images' shape.
        settings: what to sample; the batch size does not matter to the file.
        folder: of the files; default ``oracle-runs`` in the cache folder.
        on_step: called after each step of each batch, where the network has to run.

    Raises:
        ArgumentError: the oracle is for other images, or the folder cannot be written.
    """
    path = (
        folder or cache_folder() / "oracle-runs"
    ) / f"{_key(oracle, store, settings)}.safetensors"
    kept = _read(path, settings)
    if kept is not None:
        return kept
    check_oracle(oracle.call, store)
    made = run(oracle.call, store, settings, on_step)
    with written_whole("oracle", path) as temporary:
        save_file(
            {name: getattr(made, name).contiguous() for name in TENSORS},
            temporary,
            {name: repr(getattr(made, name)) for name in TIMES},
        )
    return made


def _read(path: Path, settings: RunSettings) -> Run | None:
    """The run in a file; None where there is none, or it is damaged and has to be made again."""
    if not path.is_file():
        return None
    levels = noise_levels(settings.steps, settings.sampler)
    try:
        with safe_open(path, "pt") as file:
            images, states, predictions = (file.get_tensor(name) for name in TENSORS)
            told = file.metadata() or {}
            times = [float(told[name]) for name in TIMES]
        return Run(
            images, settings.kept, [levels[i] for i in settings.kept], states, predictions, *times
        )  # fmt: skip
    except (SafetensorError, KeyError, ValueError):
        return None


def _key(oracle: Oracle, store: Space, settings: RunSettings) -> str:
    identity: dict[str, Any] = {
        "format": _FORMAT,
        "oracle": oracle.checksum,
        "shape": list(store.shape),
        "clipped": store.is_pixels,
        "n": settings.n,
        "steps": settings.steps,
        "sampler": settings.sampler,
        "seed": settings.seed,
        "labels": settings.labels,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
