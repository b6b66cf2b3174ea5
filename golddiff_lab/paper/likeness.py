"""One entry of the likeness tables: a method compared with the oracle of a data set."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from golddiff.estimators.network_like import ARTIFACT
from golddiff.estimators.registry import MethodSettings, create
from golddiff.evaluation.compare import compare
from golddiff.evaluation.references import OracleFile, reference_run
from golddiff.evaluation.runs import RunSettings
from golddiff.store.images import ImageStore
from golddiff.system.pictures import to_pixels
from golddiff_lab.cells import Key, Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DATA_SETS, DataSet

PICTURES = 8  # images stored with each result, for the grid

NO_DATA = "no data here"
NO_ORACLE = "no oracle here"
NOT_RUN = "not run"
NO_LABELS = "no labels here"


@dataclass(frozen=True)
class Row:
    """A row of a table: a method with its settings.

    Attributes:
        title: title of the row; the paper's if the paper has it.
        method: a key of :data:`golddiff.estimators.registry.METHODS`.
        settings: returns the settings for a data set.
    """

    title: str
    method: str
    settings: Callable[[DataSet], MethodSettings] = lambda data: MethodSettings()


@dataclass(frozen=True)
class Column:
    """A column of a table: data set, oracle and sampling.

    Attributes:
        title: heading.
        data: name of the data set.
        group: the paper's column; None if the paper has none. Such a column is optional.
        oracle: name of the oracle; default: that of the data set.
        steps, sampler, oracle_sampler: sampling of both sides.
        conditional: whether images are class-conditional, with the classes in turn.
    """

    title: str
    data: str
    group: str | None
    oracle: str | None = None
    steps: int = 10
    sampler: str = "ddim"
    oracle_sampler: str | None = None
    conditional: bool = False


@dataclass(frozen=True)
class Here:
    """A column whose data and oracle are available."""

    column: Column
    store: ImageStore
    oracle: OracleFile
    settings: RunSettings


def column_here(context: Context, column: Column) -> Here | str:
    """The column with its store and oracle, or else a text that says what is missing."""
    store = context.store(column.data)
    if store is None:
        return NO_DATA
    oracle = context.oracle(column.oracle or column.data)
    if oracle is None:
        return NO_ORACLE
    if context.most_steps is not None and column.steps > context.most_steps:
        return NOT_RUN
    labels = None
    if column.conditional:
        if store.labels is None:
            return NO_LABELS
        classes = store.classes
        labels = tuple(classes[i % len(classes)] for i in range(context.n))
    _ = oracle.call  # load now, so that a damaged network is reported before any work
    steps = context.steps(column.steps)
    return Here(
        column, store, oracle,
        RunSettings(context.n, steps, column.sampler, context.seed, labels, context.batch),
    )  # fmt: skip


def row_store(context: Context, here: Here, row: Row) -> ImageStore:
    """The store that a row uses; Kamb's methods may use a random part of it."""
    if not row.method.endswith("kamb"):
        return here.store
    return context.part(here.column.data, here.store, context.kamb_images)


def row_title(context: Context, here: Here, row: Row) -> str:
    """The row's title, with the number of images if the row uses only a part of them."""
    store = row_store(context, here, row)
    return row.title if store.n == here.store.n else f"{row.title} ({store.n:,} images)"


def likeness(context: Context, here: Here, row: Row) -> Result:
    """The evaluation of one method, cached or computed: ``Evaluation.figures`` and pictures."""
    store = row_store(context, here, row)
    settings = row.settings(DATA_SETS[here.column.data])
    key: Key = {
        "kind": "likeness",
        "data": here.column.data,
        "store": store.manifest.images_checksum,
        "oracle": here.oracle.checksum,
        "method": row.method,
        "settings": settings.given(),
        "oracle_sampler": here.column.oracle_sampler or here.settings.sampler,
        **{k: v for k, v in asdict(here.settings).items() if k != "batch"},
    }
    if row.method == "network-like":
        key["version"] = ARTIFACT  # its definition may change, unlike that of the paper's methods

    def compute() -> Result:
        reference = reference_of(context, here)
        denoiser = create(row.method, store, settings, context.seed)
        title = f"{here.column.title}: {row_title(context, here, row)}"
        total = here.settings.n * here.settings.steps
        context.say(f"{title}, {here.settings.n} images ...")
        with context.watch(title, total) as on_step:
            result = compare(denoiser, reference, here.settings, on_step=on_step, single_step=False)
        return {**result.figures(), "pictures": packed(result.images[:PICTURES])}

    return context.cells.get(key, compute)


def reference_of(context: Context, here: Here) -> Any:
    """The oracle's run for a column, from disk or computed now."""
    column, settings = here.column, here.settings
    oracle_settings = replace(settings, sampler=column.oracle_sampler or settings.sampler)
    with context.watch(f"{column.title}: oracle", settings.n * settings.steps) as on_step:
        folder = context.out / "oracle-runs"
        return reference_run(here.oracle, here.store, oracle_settings, folder, on_step)


def packed(images: torch.Tensor) -> dict[str, Any]:
    """Encode images for JSON: uint8 (n, H, W) or (n, H, W, 3) in base64."""
    pixels = to_pixels(images)
    return {
        "shape": list(pixels.shape),
        "pixels": base64.b64encode(pixels.tobytes()).decode("ascii"),
    }


def unpacked(text: dict[str, Any]) -> torch.Tensor:
    """Decode the result of :func:`packed` into images (n, C, H, W) in [-1, 1]."""
    pixels = np.frombuffer(base64.b64decode(text["pixels"]), np.uint8).reshape(text["shape"])
    images = torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1)
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
