"""The readers of the rest that golddiff keeps: masks, results, lists, settings."""

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
from golddiff.estimators import kept_masks
from golddiff.figures.curves import Panel, draw_panels
from golddiff.store.artifacts import Artifacts
from golddiff_lab.cells import Cells
from golddiff_lab.figures.recorded import panels_of
from reliability.fuzz.stores import base
from reliability.fuzz.structured import json_values, safetensors_header, sealed_json
from reliability.fuzz.target import Target

SIGMA, THRESHOLD = 1.0, 0.02


def targets() -> list[Target]:
    """All of them."""
    return [
        Target("kept masks", masks, _masks, (safetensors_header,)),
        Target("reproduced result", cells, _cell, (json_values,)),
        Target("list of shards", lists, _list, (sealed_json,)),
        Target("artifact", artifacts, _artifact, (safetensors_header,)),
        Target("pipeline", pipelines, _pipeline, (json_values,)),
        Target("recorded figures", records, _record, (json_values,)),
    ]


class _Elsewhere:
    """A store as far as masks need one: its folder is another."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.artifacts = Artifacts(folder, base().artifacts._identity)

    def __getattr__(self, name: str) -> Any:
        return getattr(base(), name)


@functools.cache
def masks() -> list[bytes]:
    """The kept masks of a noise level."""
    kept_masks.MIN_VALUES = 1
    with tempfile.TemporaryDirectory() as place:
        store: Any = _Elsewhere(Path(place))
        kept_masks.tree_of(store, SIGMA, THRESHOLD)
        return [store.artifacts.path(kept_masks.name_of(SIGMA, THRESHOLD)).read_bytes()]


def _masks(data: bytes, folder: Path) -> None:
    store: Any = _Elsewhere(folder)
    path = store.artifacts.path(kept_masks.name_of(SIGMA, THRESHOLD))
    path.parent.mkdir()
    path.write_bytes(data)
    added = kept_masks.load(store, SIGMA, THRESHOLD)
    if added is not None:
        kept_masks.tree_from_additions(added, base().shape)


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


def lists() -> list[bytes]:
    """A list of shards."""
    with tempfile.TemporaryDirectory() as place:
        Listing([ShardRecord(f"{i}.store", 3, f"{i}") for i in "ab"]).write(Path(place))
        return [(Path(place) / LIST).read_bytes()]


def _list(data: bytes, folder: Path) -> None:
    (folder / LIST).write_bytes(data)
    for path in Listing.of(folder).paths:
        assert Path(path).resolve().is_relative_to(folder.resolve())


IDENTITY = "0123456789abcdef"


def artifacts() -> list[bytes]:
    """What was computed from images and lies beside them."""
    with tempfile.TemporaryDirectory() as place:
        kept = Artifacts(Path(place), IDENTITY)
        kept.save("x", {"factor": np.zeros((3, 3))})
        return [kept.path("x").read_bytes()]


def _artifact(data: bytes, folder: Path) -> None:
    kept = Artifacts(folder, IDENTITY)
    kept.path("x").write_bytes(data)
    kept.load("x")


@functools.cache
def pipelines() -> list[bytes]:
    """The configurations of three methods in a pipeline of diffusers."""
    from golddiff import PCA, AdaptiveSchedule, GoldDiff, Kamb, PaperSchedule
    from golddiff.diffusers import AnalyticUNet

    made = []
    methods = (
        GoldDiff(PCA(base()), PaperSchedule()),
        GoldDiff(PCA(base()), AdaptiveSchedule()),
        Kamb(base(), patch_sizes=3),
    )
    for method in methods:
        with tempfile.TemporaryDirectory() as place:
            AnalyticUNet(method).save_pretrained(place)
            made.append((Path(place) / AnalyticUNet.config_name).read_bytes())
    return made


def _pipeline(data: bytes, folder: Path) -> None:
    from golddiff.diffusers import AnalyticUNet

    (folder / AnalyticUNet.config_name).write_bytes(data)
    AnalyticUNet.from_pretrained(folder, store=base())


def records() -> list[bytes]:
    """What commands write with --json, as far as it can be plotted."""
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
