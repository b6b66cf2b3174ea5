"""Jobs of a second or less, each with a check that must pass after any kill."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golddiff.store.images import ImageStore
from golddiff.store.latents import index_latents
from golddiff.supports.index import image_index
from golddiff.supports.index.image_index import Index
from golddiff.system.errors import StoreError
from golddiff_lab.cells import Cells
from golddiff_lab.training.settings import TrainSettings
from golddiff_lab.training.train import train


@dataclass(frozen=True)
class Job:
    """A job that can be killed and resumed.

    Attributes:
        name: name of the job.
        prepare: writes its inputs into an empty folder.
        work: starts or resumes the job.
        check: called after each kill; raises if an incomplete result can be opened.
        result: checksum of the result, equal for equal runs.
    """

    name: str
    prepare: Callable[[Path], None]
    work: Callable[[Path], object]
    check: Callable[[Path], object]
    result: Callable[[Path], str]


def jobs() -> list[Job]:
    """All jobs."""
    return [
        Job("store build", _nothing, _build, _check_store, _store_sum),
        Job("store rebuild", _old_store, _rebuild, _check_either_store, _store_sum),
        Job("index build", _store, _index, _check_index, _index_sum),
        Job("latent build", _nothing, _latents, _check_store, _store_sum),
        Job("oracle training", _small_store, _train, _check_weights, _weights_sum),
        Job("reproduce", _nothing, _reproduce, _check_results, _results_sum),
    ]


def pixels(n: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Images of noise."""
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def _nothing(folder: Path) -> None:
    """The job has no inputs."""


def _build(folder: Path) -> None:
    if not (folder / "store").exists():
        ImageStore.build(pixels(6000, (3, 12, 12)), folder / "store", np.arange(6000) % 5)


def _old_store(folder: Path) -> None:
    ImageStore.build(pixels(500, (3, 12, 12), seed=1), folder / "store")


def _rebuild(folder: Path) -> None:
    source, labels = pixels(6000, (3, 12, 12)), np.arange(6000) % 5
    ImageStore.build(source, folder / "store", labels, overwrite=True)


def _check_store(folder: Path) -> None:
    if (folder / "store").exists():
        ImageStore.open(folder / "store").verify()


def _check_either_store(folder: Path) -> None:
    store = ImageStore.open(folder / "store")
    store.verify()
    assert store.n in (500, 6000), store.n


def _store_sum(folder: Path) -> str:
    leftovers = [
        p.name for p in folder.iterdir() if p.name not in ("store", "start", ".store.lock")
    ]
    assert not leftovers, f"left behind: {leftovers}"
    return _sum([folder / "store"])


def _store(folder: Path) -> None:
    ImageStore.build(pixels(1500, (1, 12, 12)), folder / "store")


def _index(folder: Path) -> None:
    image_index.PIECE = 4 * 144 * 100
    Index.build(ImageStore.open(folder / "store"))


def _check_index(folder: Path) -> None:
    try:
        Index.open(ImageStore.open(folder / "store")).check_contents()
    except StoreError as error:
        if "no complete index" not in str(error):
            raise


def _index_sum(folder: Path) -> str:
    Index.open(ImageStore.open(folder / "store")).check_contents()
    return _sum([folder / "store" / "index"])


class _Coder:
    """A cheap stand-in for a VAE: scaled average pooling."""

    class config:  # noqa: N801, the name in diffusers
        """The settings of a VAE that are read."""

        in_channels, scaling_factor = 3, 0.5

        @staticmethod
        def get(name: str) -> None:
            """No other settings."""

    device, dtype = torch.device("cpu"), torch.float32

    def encode(self, images: torch.Tensor) -> Any:
        """Latents of images."""

        class _Posterior:
            mean = torch.nn.functional.avg_pool2d(images, 2)

        class _Encoded:
            latent_dist = _Posterior()

        return _Encoded()


def _latents(folder: Path) -> None:
    if not (folder / "store").exists():
        coder: Any = _Coder()
        index_latents(pixels(3000, (3, 12, 12)), folder / "store", coder)


def _small_store(folder: Path) -> None:
    ImageStore.build(pixels(40, (1, 8, 8)), folder / "data")


SETTINGS = TrainSettings(
    channels=4, multipliers=(1,), blocks=1, steps=12, batch=4, minutes=None, groups=1, dropout=0.1
)


def _train(folder: Path) -> None:
    store = ImageStore.open(folder / "data")
    train(store, folder / "out", SETTINGS, save_every=0.0)


def _check_weights(folder: Path) -> None:
    from golddiff.oracles.load import load_oracle

    if (folder / "out" / "model.safetensors").exists():
        load_oracle(folder / "out" / "model.safetensors")


def _weights_sum(folder: Path) -> str:
    state = torch.load(folder / "out" / "state.pt", weights_only=True)
    digest = hashlib.sha256()
    for name in ("network", "average"):
        for key, value in sorted(state[name].items()):
            digest.update(key.encode() + value.numpy().tobytes())
    digest.update(repr((state["step"], [row[2] for row in state["history"]])).encode())
    return digest.hexdigest()


def _reproduce(folder: Path) -> None:
    """As ``golddiff reproduce``: compute each result once, then write a page of all results."""
    from golddiff import Optimal, Wiener, sample
    from golddiff.system.files import atomic_write

    data = folder / "data"
    if not data.exists():
        ImageStore.build(pixels(200, (1, 8, 8)), data)
    store = ImageStore.open(data)
    cells = Cells(folder / "cells")
    rows = []
    for name, method in (("optimal", Optimal(store)), ("wiener", Wiener(store))):
        for seed in range(4):

            def compute(method: Any = method, seed: int = seed) -> dict[str, float]:
                images = sample(method, n=2, steps=3, seed=seed).images
                return {"mean": float(images.double().mean())}

            key = {"kind": name, "seed": seed, "data": store.manifest.files["pixels.bin"].sha256}
            rows.append([name, seed, cells.get(key, compute)["mean"]])
    with atomic_write("out", folder / "page.json") as path:
        path.write_text(json.dumps(rows), "utf-8")


def _check_results(folder: Path) -> None:
    for path in [*(folder / "cells").glob("[!.]*.json"), *folder.glob("page.json")]:
        json.loads(path.read_text("utf-8"))


def _results_sum(folder: Path) -> str:
    return hashlib.sha256((folder / "page.json").read_bytes()).hexdigest()


def _sum(folders: list[Path]) -> str:
    """Checksum of the names and contents of all files that are not hidden."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def prepare_folder(folder: Path, job: Job) -> None:
    """Empty a folder and write the inputs of a job into it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job.prepare(folder)
