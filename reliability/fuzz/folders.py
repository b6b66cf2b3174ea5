"""Targets for readers of folders: images, class folders, EDM data sets, parquet, idx, CIFAR."""

from __future__ import annotations

import functools
import json
import pickle
import random
from pathlib import Path

import numpy as np

from golddiff.sources import open_source
from reliability.fuzz.bundle import bundle, link_to, unbundle, written
from reliability.fuzz.images import IMAGE_FLOOR, IMAGE_MULTIPLE, array, cifars, encoded, idx
from reliability.fuzz.images import parquets as tables
from reliability.fuzz.mutate import mutated
from reliability.fuzz.structured import json_values
from reliability.fuzz.target import Target


def targets() -> list[Target]:
    """All targets of this module."""
    return [
        Target(
            "folder",
            folders,
            _read,
            (_mutate_files,),
            general=False,
            floor=IMAGE_FLOOR,
            multiple=IMAGE_MULTIPLE,
        )
    ]


@functools.cache
def folders() -> list[bytes]:
    """A small folder of each kind."""
    edm = {"labels": [["00000/img00000000.png", 1], ["00000/img00000001.png", 0]]}
    return [
        bundle({f"{i}.png": encoded(array(i)) for i in range(3)}),
        bundle({f"{'ab'[i % 2]}/{i}.png": encoded(array(i)) for i in range(4)}),
        bundle({f"{s}/{c}/0.png": encoded(array(0)) for s in ("train", "test") for c in "ab"}),
        bundle(
            {
                "00000/img00000000.png": encoded(array(0)),
                "00000/img00000001.png": encoded(array(1)),
                "dataset.json": json.dumps(edm).encode(),
            }
        ),
        bundle({f"train-0000{i}-of-00002.parquet": table for i, table in enumerate(tables()[2:])}),
        bundle(
            {
                "train-images-idx3-ubyte": idx(array(0, (3, 4, 5))),
                "train-labels-idx1-ubyte": idx(np.arange(3, dtype=np.uint8)),
            }
        ),
        bundle(
            {"train": cifars()[0], "meta": pickle.dumps({"fine_label_names": ["a", "b", "c"]}, 2)}
        ),
    ]


def _mutate_files(rng: random.Random, data: bytes) -> bytes:
    """Damage, rename, delete or copy a file, or replace it by a link to a file elsewhere."""
    files = unbundle(data)
    if not files:
        return folders()[0]
    name = rng.choice(sorted(files))
    choice = rng.random()
    if choice < 0.1:
        files[name] = link_to(files[name])
    elif choice < 0.2:
        files[_new_name(rng, name)] = files.pop(name)
    elif choice < 0.25:
        del files[name]
    elif choice < 0.3:
        files[_new_name(rng, name)] = files[name]
    elif name.endswith(".json") and choice < 0.8:
        files[name] = json_values(rng, files[name])
    else:
        files[name] = mutated(rng, files[name], list(files.values()))
    return bundle(files)


def _new_name(rng: random.Random, name: str) -> str:
    """A new name within the folder, as unpacked archives stay within theirs."""
    first, last = name.split("/")[0], name.split("/")[-1]
    names = (f"x/{name}", last, f".{last}", f"{first}.d/{last}", f"{name}.png", "dataset.json")
    return rng.choice((*names, "train-images-idx3-ubyte", "a" * 200, "\u202e.png", "train/" + last))


def _read(data: bytes, folder: Path) -> None:
    files = unbundle(data)
    (folder / "d").mkdir()
    written(files, folder / "d")
    for _ in open_source(folder / "d").batches(2):
        pass
