"""The readers of what golddiff keeps: stores, indexes, plans, masks, results, costs."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golddiff import kept_masks
from golddiff.adaptive import memory
from golddiff.adaptive.plan import Kind, Plan
from golddiff.cluster.listing import NAME as LIST
from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.evaluation import references
from golddiff.evaluation.runs import RunSettings
from golddiff.experiments.cells import Cells
from golddiff.index.build import build as build_index
from golddiff.index.files import Index
from golddiff.machine import CONSTANTS
from golddiff.machine import read as read_machine
from golddiff.sampling import noise_levels
from golddiff.sources import open_source
from golddiff.store import ImageStore
from reliability.fuzz.bundle import bundle, files_of, unbundle, written
from reliability.fuzz.images import array
from reliability.fuzz.mutate import flip, mutated
from reliability.fuzz.structured import json_values, safetensors_header, sealed_json
from reliability.fuzz.target import Target

SIDE, IMAGES = 8, 12
SIGMA, THRESHOLD = 1.0, 0.02


def targets() -> list[Target]:
    """All of them."""
    whole: dict[str, Any] = {"general": False}
    return [
        Target("store", stores, _store, (_store_parts,), **whole),
        Target("index", indexes, _index, (_index_parts,), **whole),
        Target("plans.json", plans, _plans, (json_values,)),
        Target("machine.json", machines, _machine, (json_values,)),
        Target("kept masks", masks, _masks, (safetensors_header,)),
        Target("reproduced result", cells, _cell, (json_values,)),
        Target("oracle's run", runs, _run, (safetensors_header,)),
        Target("list of shards", lists, _list, (sealed_json,)),
    ]


@functools.cache
def base() -> ImageStore:
    """A labelled store with an index, on disk as long as the process lives."""
    folder = Path(tempfile.mkdtemp(prefix="golddiff-fuzz-"))
    pixels = array(0, (IMAGES, 3, SIDE, SIDE))
    store = ImageStore.build(pixels, folder / "store", np.arange(IMAGES) % 3)
    build_index(store)
    return store


@functools.cache
def stores() -> list[bytes]:
    """A store of pixels and labels, and one of points."""
    with tempfile.TemporaryDirectory() as place:
        points = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
        ImageStore.build(points, Path(place) / "points")
        files = files_of(base().path)
        kept = {name: body for name, body in files.items() if "/" not in name and name[0] != "."}
        return [bundle(kept), bundle(files_of(Path(place) / "points"))]


def _store_parts(rng: random.Random, data: bytes) -> bytes:
    """A file of a store hurt; the manifest mostly tells its new size and checksum."""
    files = unbundle(data)
    name = rng.choice(["manifest.json", "manifest.json", *sorted(files)])
    if name == "manifest.json":
        files[name] = sealed_json(rng, files[name])
    elif name.endswith(".safetensors"):
        files[name] = safetensors_header(rng, files[name])
    else:
        files[name] = mutated(rng, files[name], [files[name]])
    if name != "manifest.json" and rng.random() < 0.8:
        files["manifest.json"] = _resealed(files)
    return bundle(files)


def _resealed(files: dict[str, bytes]) -> bytes:
    try:
        body = json.loads(files["manifest.json"])
        for name in body["files"]:
            found = files[name]
            digest = hashlib.sha256(found).hexdigest()
            body["files"][name] = {"bytes": len(found), "sha256": digest}
        body.pop("digest", None)
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
        body["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
        return json.dumps(body).encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        return files["manifest.json"]


def _store(data: bytes, folder: Path) -> None:
    written(unbundle(data), folder / "s")
    if (folder / "s" / "manifest.json").is_file() and len(data) % 4 == 0:
        for _ in open_source(folder / "s").batches(4):
            pass
    store = ImageStore.open(folder / "s")
    store.images(slice(0, 3))
    store.class_counts()
    store.factor()
    store.proxies(store.manifest.proxy_shape)
    store.verify()


@functools.cache
def indexes() -> list[bytes]:
    """The index of the store."""
    return [bundle(files_of(base().path / "index"))]


@functools.cache
def _sound_store() -> dict[str, bytes]:
    return unbundle(stores()[0])


def _index_parts(rng: random.Random, data: bytes) -> bytes:
    files = unbundle(data)
    name = rng.choice(["index.json", *sorted(files)])
    if name.endswith(".json"):
        files[name] = json_values(rng, files[name])
    elif name.endswith(".safetensors"):
        files[name] = safetensors_header(rng, files[name])
    else:
        files[name] = flip(rng, files[name])
    if rng.random() < 0.8 and name != "index.json":
        body = json.loads(files["index.json"])
        try:
            body["files"][name]["bytes"] = len(files[name])
            files["index.json"] = json.dumps(body).encode()
        except (KeyError, TypeError):
            pass
    return bundle(files)


def _index(data: bytes, folder: Path) -> None:
    written(unbundle(data), folder / "index")
    written(_sound_store(), folder)
    store = ImageStore.open(folder)
    index = Index.open(store)
    for locations in index.views.values():
        locations.rows[0], locations.coordinates[0], locations.rest[0]
    index.verify()


def plans() -> list[bytes]:
    """A plan."""
    with tempfile.TemporaryDirectory() as place:
        store = _beside_base(Path(place))
        memory.remember(store, "key", Plan(Kind("nearest", 4), 5, 0.01))
        return [(Path(place) / memory.NAME).read_bytes()]


def _beside_base(folder: Path) -> Any:
    """A store as far as plans and masks need one: its folder is another."""
    return _Elsewhere(folder)


class _Elsewhere:
    def __init__(self, folder: Path) -> None:
        self.path = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(base(), name)


def _plans(data: bytes, folder: Path) -> None:
    (folder / memory.NAME).write_bytes(data)
    plan = memory.recall(_beside_base(folder), "key")
    if plan is not None:
        # What comes of a file must be a plan that the rest of the code can follow.
        assert 1 <= plan.k <= IMAGES
        assert plan.kind.side in (None, 4, 8)


def machines() -> list[bytes]:
    """Seconds of every operation, and of one."""
    return [json.dumps(CONSTANTS).encode(), json.dumps({"value": 1e-10}).encode()]


def _machine(data: bytes, folder: Path) -> None:
    (folder / "machine.json").write_bytes(data)
    model = read_machine(folder / "machine.json")
    assert all(0 < seconds < 1 for seconds in model.values())


@functools.cache
def masks() -> list[bytes]:
    """The kept masks of a noise level."""
    kept_masks.FEWEST_VALUES = 1
    with tempfile.TemporaryDirectory() as place:
        store = _beside_base(Path(place))
        kept_masks.tree_of(store, SIGMA, THRESHOLD)
        return [kept_masks.path_of(store, SIGMA, THRESHOLD).read_bytes()]


def _masks(data: bytes, folder: Path) -> None:
    store = _beside_base(folder)
    path = kept_masks.path_of(store, SIGMA, THRESHOLD)
    path.parent.mkdir()
    path.write_bytes(data)
    added = kept_masks.recall(store, SIGMA, THRESHOLD)
    if added is not None:
        kept_masks.assembled(added, base().shape)


KEY = {"kind": "table", "seed": 0, "data": "abc"}


def cells() -> list[bytes]:
    """A result of ``reproduce``."""
    with tempfile.TemporaryDirectory() as place:
        kept = Cells(Path(place))
        kept.get(KEY, lambda: {"mse": 0.5, "r2": [0.1, 0.2]})
        return [kept.path(KEY).read_bytes()]


def _cell(data: bytes, folder: Path) -> None:
    kept = Cells(folder)
    kept.path(KEY).write_bytes(data)
    result = kept.get(KEY, lambda: {"mse": 0.5})
    assert isinstance(result, dict)


RUN = RunSettings(n=2, steps=2)


def runs() -> list[bytes]:
    """An oracle's run as ``evaluate`` keeps it."""
    from safetensors.torch import save

    kept = len(RUN.kept)
    tensors = {
        name: torch.zeros((2, 1, 4, 4) if name == "images" else (kept, 2, 1, 4, 4))
        for name in references.TENSORS
    }
    return [save(tensors, {name: "1.5" for name in references.TIMES})]


def _run(data: bytes, folder: Path) -> None:
    (folder / "run.safetensors").write_bytes(data)
    run = references._read(folder / "run.safetensors", RUN)
    if run is not None:
        assert len(noise_levels(RUN.steps, RUN.sampler)) >= len(run.steps)


def lists() -> list[bytes]:
    """A list of shards."""
    with tempfile.TemporaryDirectory() as place:
        Listing([ShardRecord(f"{i}.store", 3, f"{i}") for i in "ab"]).write(Path(place))
        return [(Path(place) / LIST).read_bytes()]


def _list(data: bytes, folder: Path) -> None:
    (folder / LIST).write_bytes(data)
    Listing.of(folder)
