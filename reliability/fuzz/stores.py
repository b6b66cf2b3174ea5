"""Targets for readers of stores and indexes."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import tempfile
from pathlib import Path

import numpy as np

from golddiff.sources import open_source
from golddiff.store.images import ImageStore
from golddiff.supports.index.image_index import Index
from reliability.fuzz.bundle import bundle, files_of, link_to, unbundle, written
from reliability.fuzz.images import array
from reliability.fuzz.mutate import flip, mutated
from reliability.fuzz.structured import json_values, safetensors_header, sealed_json
from reliability.fuzz.target import Target

SIDE, IMAGES = 8, 12


def targets() -> list[Target]:
    """All targets of this module."""
    return [
        Target("store", stores, _store, (_mutate_store,), general=False),
        Target("index", indexes, _index, (_mutate_index,), general=False),
    ]


@functools.cache
def base() -> ImageStore:
    """A store with labels and an index, which stays on disk."""
    folder = Path(tempfile.mkdtemp(prefix="golddiff-fuzz-"))
    pixels = array(0, (IMAGES, 3, SIDE, SIDE))
    store = ImageStore.build(pixels, folder / "store", np.arange(IMAGES) % 3)
    Index.build(store)
    return store


@functools.cache
def stores() -> list[bytes]:
    """Bundles of a store of labelled images and a store of points."""
    with tempfile.TemporaryDirectory() as folder:
        points = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
        ImageStore.build(points, Path(folder) / "points")
        files = files_of(base().path)
        own_files = {
            name: body for name, body in files.items() if "/" not in name and name[0] != "."
        }
        return [bundle(own_files), bundle(files_of(Path(folder) / "points"))]


def _mutate_store(rng: random.Random, data: bytes) -> bytes:
    """Damage a file of a store; usually correct its size and checksum in the manifest."""
    files = unbundle(data)
    name = rng.choice(["manifest.json", "manifest.json", *sorted(files)])
    if rng.random() < 0.05:
        return bundle(files | {name: link_to(files[name])})
    if name == "manifest.json":
        files[name] = sealed_json(rng, files[name])
    elif name.endswith(".safetensors"):
        files[name] = safetensors_header(rng, files[name])
    else:
        files[name] = mutated(rng, files[name], [files[name]])
    if name != "manifest.json" and rng.random() < 0.8:
        files["manifest.json"] = _updated_manifest(files)
    return bundle(files)


def _updated_manifest(files: dict[str, bytes]) -> bytes:
    try:
        body = json.loads(files["manifest.json"])
        for name in body["files"]:
            contents = files[name]
            digest = hashlib.sha256(contents).hexdigest()
            body["files"][name] = {"bytes": len(contents), "sha256": digest}
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
    assert sum(store.class_counts.values()) in (0, store.n)
    store.factor()
    store.proxies(store.manifest.proxy_shape)
    store.verify()


@functools.cache
def indexes() -> list[bytes]:
    """A bundle of the index of the base store."""
    return [bundle(files_of(base().path / "index"))]


@functools.cache
def sound_store() -> dict[str, bytes]:
    """The files of the base store without its index."""
    return unbundle(stores()[0])


def _mutate_index(rng: random.Random, data: bytes) -> bytes:
    files = unbundle(data)
    name = rng.choice(["index.json", *sorted(files)])
    if rng.random() < 0.05:
        return bundle(files | {name: link_to(files[name])})
    if name.endswith(".json"):
        files[name] = json_values(rng, files[name])
    elif name.endswith(".safetensors"):
        files[name] = safetensors_header(rng, files[name])
    else:
        files[name] = flip(rng, files[name])
    if rng.random() < 0.8 and name != "index.json":
        try:
            body = json.loads(files["index.json"])
            body["files"][name]["bytes"] = len(files[name])
            files["index.json"] = json.dumps(body).encode()
        except (ValueError, KeyError, TypeError):
            pass
    return bundle(files)


def _index(data: bytes, folder: Path) -> None:
    written(unbundle(data), folder / "index")
    written(sound_store(), folder)
    store = ImageStore.open(folder)
    index = Index.open(store)
    index.numbers[0], index.lengths[0]
    index.check_contents()
