"""One cell of the likeness tables: a method on a data set against its oracle."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from golddiff.denoiser import Denoiser
from golddiff.estimators.network_like import KEPT
from golddiff.estimators.registry import MethodSettings, create
from golddiff.evaluation.compare import compare
from golddiff.evaluation.references import Oracle, reference_run
from golddiff.evaluation.runs import RunSettings
from golddiff.store.images import ImageStore
from golddiff.system.pictures import to_pixels
from golddiff_lab.cells import Key, Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DATA_SETS, DataSet

PICTURES = 8  # images kept in a cell, for the grid

NO_DATA = "no data here"
NO_ORACLE = "no oracle here"
NOT_RUN = "not run"
NO_LABELS = "no labels here"


@dataclass(frozen=True)
class Row:
    """A method as a table names it.

    Attributes:
        title: the paper's name of the row, where the paper has it.
        method: of :data:`golddiff.estimators.registry.METHODS`; or a name of its own, with
            ``make``.
        settings: for a data set.
        make: makes it of a store and a seed; None: the registry does.
    """

    title: str
    method: str
    settings: Callable[[DataSet], MethodSettings] = lambda data: MethodSettings()
    make: Callable[[ImageStore, int], Denoiser] | None = None


@dataclass(frozen=True)
class Column:
    """A data set, an oracle and a way of sampling.

    Attributes:
        title: heading.
        data: name of the data set.
        group: the paper's column, or None where the paper has none.
        oracle: the oracle's name; default the data set's.
        steps, sampler, oracle_sampler: of both sides.
        conditional: each image of a class, in turn.
        missing: said where the oracle is not here.
        stand_in: in place of a data set of the paper's: no gap where it is not here.
    """

    title: str
    data: str
    group: str | None
    oracle: str | None = None
    steps: int = 10
    sampler: str = "ddim"
    oracle_sampler: str | None = None
    conditional: bool = False
    missing: str = NO_ORACLE
    stand_in: bool = False


@dataclass(frozen=True)
class Here:
    """A column of which both data and oracle are here."""

    column: Column
    store: ImageStore
    oracle: Oracle
    settings: RunSettings


def column_here(context: Context, column: Column) -> Here | str:
    """The column's store and oracle, or what is missing, in words for a table."""
    store = context.store(column.data)
    if store is None:
        return NO_DATA
    oracle = context.oracle(column.oracle or column.data)
    if oracle is None:
        return column.missing
    if context.most_steps is not None and column.steps > context.most_steps:
        return NOT_RUN
    labels = None
    if column.conditional:
        if store.labels is None:
            return NO_LABELS
        classes = store.classes
        labels = tuple(classes[i % len(classes)] for i in range(context.n))
    steps = context.steps(column.steps)
    return Here(
        column, store, oracle,
        RunSettings(context.n, steps, column.sampler, context.seed, labels, context.batch),
    )  # fmt: skip


def row_store(context: Context, here: Here, row: Row) -> ImageStore:
    """The store that a row runs over: Kamb's methods may be held to a part of it."""
    if not row.method.endswith("kamb"):
        return here.store
    return context.part(here.column.data, here.store, context.kamb_images)


def row_title(context: Context, here: Here, row: Row) -> str:
    """The row's title; a part of the images is never passed off as all of them."""
    store = row_store(context, here, row)
    return row.title if store.n == here.store.n else f"{row.title} ({store.n:,} images)"


def likeness(context: Context, here: Here, row: Row) -> Result:
    """The stored or newly computed evaluation of one method: ``Evaluation.figures`` and pictures.

    Raises:
        GoldDiffError: the oracle cannot be loaded or is for other images.
    """
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
    if row.method.startswith("network-like"):
        key["version"] = KEPT  # what it is changes; the paper's methods stay as they are

    def compute() -> Result:
        reference = reference_of(context, here)
        denoiser = (
            create(row.method, store, settings, context.seed)
            if row.make is None
            else row.make(store, context.seed)
        )
        title = f"{here.column.title}: {row_title(context, here, row)}"
        total = here.settings.n * here.settings.steps
        context.say(f"{title}, {here.settings.n} images ...")
        with context.watch(title, total) as on_step:
            made = compare(denoiser, reference, here.settings, on_step=on_step, single_step=False)
        return {**made.figures(), "pictures": packed(made.images[:PICTURES])}

    return context.cells.get(key, compute)


def reference_of(context: Context, here: Here) -> Any:
    """The oracle's run for a column, from disk or made now."""
    column, settings = here.column, here.settings
    theirs = RunSettings(
        settings.n, settings.steps, column.oracle_sampler or settings.sampler, settings.seed,
        settings.labels, settings.batch,
    )  # fmt: skip
    with context.watch(f"{column.title}: oracle", settings.n * settings.steps) as on_step:
        return reference_run(here.oracle, here.store, theirs, context.out / "oracle-runs", on_step)


def packed(images: torch.Tensor) -> dict[str, Any]:
    """Images as text: uint8 (n, H, W) or (n, H, W, 3) in base64."""
    pixels = to_pixels(images)
    return {
        "shape": list(pixels.shape),
        "pixels": base64.b64encode(pixels.tobytes()).decode("ascii"),
    }


def unpacked(text: dict[str, Any]) -> torch.Tensor:
    """The images of :func:`packed` as (n, C, H, W) in [-1, 1]."""
    pixels = np.frombuffer(base64.b64decode(text["pixels"]), np.uint8).reshape(text["shape"])
    images = torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1)
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
