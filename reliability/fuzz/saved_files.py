"""Targets for readers of other saved files: masks, results, shard lists, settings."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from golddiff.cluster.listing import NAME as LIST
from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.estimators import masks as pca_masks
from golddiff.figures.curves import Panel, draw_panels
from golddiff.store.artifacts import Artifacts
from golddiff_lab.cells import Cells
from golddiff_lab.figures.recorded import panels_of
from reliability.fuzz.stores import base
from reliability.fuzz.structured import json_values, safetensors_header, sealed_json
from reliability.fuzz.target import Target

SIGMA, THRESHOLD = 1.0, 0.02


def targets() -> list[Target]:
    """All targets of this module."""
    return [
        Target("kept masks", masks, _masks, (safetensors_header,)),
        Target("reproduced result", cells, _cell, (json_values,)),
        Target("list of shards", lists, _list, (sealed_json,)),
        Target("artifact", artifacts, _artifact, (safetensors_header,)),
        Target("pipeline", pipelines, _pipeline, (json_values,)),
        Target("recorded figures", records, _record, (json_values,)),
    ]


class _MovedStore:
    """The base store with artifacts in another folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.artifacts = Artifacts(folder, base().artifacts._identity)

    def __getattr__(self, name: str) -> Any:
        return getattr(base(), name)


@functools.cache
def masks() -> list[bytes]:
    """The cached masks of a noise level."""
    with tempfile.TemporaryDirectory() as folder:
        store: Any = _MovedStore(Path(folder))
        pca_masks.tree_of(store, SIGMA, THRESHOLD)
        return [store.artifacts.path(pca_masks.name_of(SIGMA, THRESHOLD)).read_bytes()]


def _masks(data: bytes, folder: Path) -> None:
    store: Any = _MovedStore(folder)
    path = store.artifacts.path(pca_masks.name_of(SIGMA, THRESHOLD))
    path.parent.mkdir()
    path.write_bytes(data)
    additions = pca_masks.load(store, SIGMA, THRESHOLD)
    if additions is not None:
        pca_masks.tree_from_additions(additions, base().shape)


KEY = {"kind": "table", "seed": 0, "data": "abc"}


def cells() -> list[bytes]:
    """A result of ``reproduce``."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Cells(Path(folder))
        cache.get(KEY, lambda: {"mse": 0.5, "r2": [0.1, 0.2]})
        return [cache.path(KEY).read_bytes()]


def _cell(data: bytes, folder: Path) -> None:
    cache = Cells(folder)
    cache.path(KEY).write_bytes(data)
    result = cache.get(KEY, lambda: {"mse": 0.5})
    assert isinstance(result, dict)


def lists() -> list[bytes]:
    """A list of shards."""
    with tempfile.TemporaryDirectory() as folder:
        Listing([ShardRecord(f"{i}.store", 3, f"{i}") for i in "ab"]).write(Path(folder))
        return [(Path(folder) / LIST).read_bytes()]


def _list(data: bytes, folder: Path) -> None:
    (folder / LIST).write_bytes(data)
    for path in Listing.of(folder).paths:
        assert Path(path).resolve().is_relative_to(folder.resolve())


IDENTITY = "0123456789abcdef"


def artifacts() -> list[bytes]:
    """An artifact of a store."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Artifacts(Path(folder), IDENTITY)
        saved.save("x", {"factor": np.zeros((3, 3))})
        return [saved.path("x").read_bytes()]


def _artifact(data: bytes, folder: Path) -> None:
    saved = Artifacts(folder, IDENTITY)
    saved.path("x").write_bytes(data)
    saved.load("x")


@functools.cache
def pipelines() -> list[bytes]:
    """The configurations of three methods in diffusers pipelines."""
    from golddiff import PCA, AdaptiveSchedule, GoldDiff, Kamb, PaperSchedule
    from golddiff.diffusers import AnalyticUNet

    files = []
    methods = (
        GoldDiff(PCA(base()), PaperSchedule()),
        GoldDiff(PCA(base()), AdaptiveSchedule()),
        Kamb(base(), patch_sizes=3),
    )
    for method in methods:
        with tempfile.TemporaryDirectory() as folder:
            AnalyticUNet(method).save_pretrained(folder)
            files.append((Path(folder) / AnalyticUNet.config_name).read_bytes())
    return files


def _pipeline(data: bytes, folder: Path) -> None:
    from golddiff.diffusers import AnalyticUNet

    (folder / AnalyticUNet.config_name).write_bytes(data)
    AnalyticUNet.from_pretrained(folder, store=base())


def records() -> list[bytes]:
    """JSON files of commands that can be plotted."""
    race = {"levels": [{"sigma": 1.0, "sides": {"ours": {"seconds": 0.1, "rmse": None}}}]}
    run = {"method": "pca", "n": 2, "sigmas": [1.0, 0.1], "seconds": {"per_step": [0.1, 0.2]}}
    panel = vars(Panel("a", "x", "y", [], "log", "log", falling=True))
    curve = {"name": "a", "x": [1.0, 2.0], "y": [1.0, None], "low": [0.5, 1.0], "high": [2, 3]}
    panels = {"panels": [panel | {"series": [curve]}]}
    return [json.dumps(body).encode() for body in (race, run, panels)]


def _record(data: bytes, folder: Path) -> None:
    from golddiff_lab.cli.plot import _read

    (folder / "x.json").write_bytes(data)
    panels = panels_of(_read(folder / "x.json"))
    FigureCanvasAgg(draw_panels(panels)).draw()
