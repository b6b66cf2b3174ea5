"""All cells of a scaling run: each measured once, kept, and not measured again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from golddiff import __version__
from golddiff.estimators.registry import create
from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.system.parallel import use_threads
from golddiff_lab import truth
from golddiff_lab.cells import Cells, Key
from golddiff_lab.machine import Rates, measure
from golddiff_lab.process import Process
from golddiff_lab.queries import mixed
from golddiff_lab.running import own_settings
from golddiff_lab.scaling.cell import Cell, CellSpec
from golddiff_lab.scaling.job import WITHOUT_MASKS, ScalingJob
from golddiff_lab.scaling.stores import share_factor, stores_for

Watch = Callable[[str], None]
Figures = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A whole run.

    Attributes:
        stores: the smallest first.
        machine: its rates now.
        cells: what was measured, by (n, method).
        references: the full scan that a method's errors are to.
        folder: where all of it is kept.
    """

    stores: list[ImageStore]
    machine: Rates
    cells: dict[tuple[int, str], Figures]
    references: dict[str, str]
    folder: Path


def run(job: ScalingJob, watch: Watch = lambda what: None) -> Outcome:
    """Measure what is not known yet of ``job``.

    Args:
        job: what to measure.
        watch: told what is done now.

    Raises:
        GoldDiffError: bad input; a method that fails.
    """
    job.check()
    if job.threads is not None:
        use_threads(job.threads)
    stores = stores_for(job, watch)
    if not WITHOUT_MASKS.issuperset(job.methods):
        watch(f"mean and covariance of {stores[-1].path}, unless kept")
        stores = share_factor(stores, job)
    watch("queries")
    passes = create(job.passing, stores[0], seed=job.seed)
    batches = mixed(stores[0], passes, job.sigmas, job.batch, job.seed)
    levels = list(zip(job.sigmas, batches, strict=True))
    cells = Cells(cache_folder() / "scaling" / "cells")
    found: dict[tuple[int, str], Figures] = {}
    said: dict[str, str] = {}
    for store in stores:
        scans: dict[str, list[torch.Tensor]] = {}
        for method in job.methods:
            settings = own_settings(method, job.settings)
            denoiser = create(method, store, settings, job.seed)
            reference = truth.reference_of(denoiser, store, job.settings.mask_threshold)
            name = said[method] = truth.text_of(reference)
            spec = CellSpec(
                store.path, method, settings, job.seed, job.batch, job.repeats, job.seconds,
                job.memory_limit,
            )  # fmt: skip

            def compute(
                spec: CellSpec = spec, reference: Any = reference, scans: Any = scans
            ) -> Figures:
                name = truth.text_of(reference)
                if name not in scans:
                    scans[name] = _scans(job, reference, levels, watch)
                return _measured(spec, levels, scans[name], watch)

            if job.fresh:
                cells.path(_key(job, store, stores[0], spec, name)).unlink(missing_ok=True)
            found[store.n, method] = cells.get(_key(job, store, stores[0], spec, name), compute)
    return Outcome(stores, measure(), found, said, cells.folder)


def _key(
    job: ScalingJob, store: ImageStore, smallest: ImageStore, spec: CellSpec, reference: str
) -> Key:
    """All that a cell depends on."""
    masked = not WITHOUT_MASKS.issuperset(job.methods)
    return {
        "kind": "scaling",
        "version": __version__,
        "code": truth.code(("",)),
        "store": store.manifest.images_checksum,
        "factor": store.factor().digest if masked else None,
        "queries": [smallest.manifest.images_checksum, job.passing],
        "reference": reference,
        "truth": [job.truth_queries, job.truth_seconds],
        "threads": torch.get_num_threads(),
        **{k: v for k, v in asdict(spec).items() if k not in ("store", "settings")},
        "settings": spec.settings.given(),
    }


def _scans(
    job: ScalingJob, reference: Any, levels: list[truth.Level], watch: Watch
) -> list[torch.Tensor]:
    name, n = truth.text_of(reference), reference.store.n
    if job.truth_queries == 0:
        return [x[:0] for _, x in levels]
    watch(f"{n:,} images: full scan of {name}, unless kept")
    few = [(sigma, x[: job.truth_queries]) for sigma, x in levels]
    return truth.full_scans(
        reference, few, job.truth_seconds,
        lambda done, images: watch(f"full scan of {name}: {done:,} of {images:,} images"),
    )  # fmt: skip


def _measured(
    spec: CellSpec, levels: list[truth.Level], scans: list[torch.Tensor], watch: Watch
) -> Figures:
    """A cell, in a process of its own: its memory is its own."""
    with Process(spec.method, Cell, spec, torch.get_num_threads()) as cell:
        made = []
        for (sigma, x), exact in zip(levels, scans, strict=True):
            watch(f"{spec.store.name}, {spec.method}: sigma {sigma:.3g}")
            made.append(cell.ask("level", sigma, x.numpy(), exact.numpy()))
        watch(f"{spec.store.name}, {spec.method}: whole run")
        whole = cell.ask("run", sum(level["seconds"] for level in made))
        return {**cell.ask("about"), "levels": made, "run": whole}
