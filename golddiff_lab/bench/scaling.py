"""Every size and method of a scaling run, each measured once, kept, and not measured again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from golddiff.denoiser import Estimator
from golddiff.estimators.registry import create
from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.system.parallel import use_threads
from golddiff_lab import truth
from golddiff_lab.arguments import STEPS
from golddiff_lab.bench.prefixes import stores_for
from golddiff_lab.bench.scaling_job import ScalingJob
from golddiff_lab.cells import Cells, Key, Result
from golddiff_lab.machine import Rates, measure
from golddiff_lab.queries import mixed
from golddiff_lab.race import level_rows, started
from golddiff_lab.running import created
from golddiff_lab.sides import SideSpec

Watch = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """A whole run.

    Attributes:
        stores: the smallest first.
        machine: its rates now.
        cells: by (n, method): ``levels`` as :func:`golddiff_lab.race.level_rows`, ``run``: seconds
            an image of a whole run, ``memory`` of the process.
        references: the full scan that a method's errors are to.
        folder: where all of it is kept.
    """

    stores: list[ImageStore]
    machine: Rates
    cells: dict[tuple[int, str], Result]
    references: dict[str, str]
    folder: Path


def run(job: ScalingJob, watch: Watch = lambda what: None) -> Outcome:
    """Measure what is not known yet of ``job``; ``watch`` is told what is done now.

    Raises:
        GoldDiffError: bad input; a method that fails.
    """
    job.check()
    use_threads(job.threads)
    stores = stores_for(job, watch)
    references = {
        (store.n, method): truth.reference_of(
            created(method, store, job.settings, job.seed), job.settings.mask_threshold
        )
        for store in stores
        for method in job.methods
    }
    watch("queries")
    passes = create(job.passing, stores[0], seed=job.seed)
    batches = mixed(stores[0], passes, job.sigmas, job.batch, job.seed)
    levels = list(zip(job.sigmas, batches, strict=True))
    cells = Cells(cache_folder() / "scaling" / "cells")
    found: dict[tuple[int, str], Result] = {}
    for store in stores:
        for method in job.methods:
            reference = references[store.n, method]
            spec = SideSpec(
                method, store.path, None, job.settings.of(method), job.seed,
                torch.get_num_threads(), job.memory_limit,
            )  # fmt: skip
            key = _key(job, store, stores[0], spec, truth.text_of(reference))
            if job.fresh:
                cells.path(key).unlink(missing_ok=True)

            def compute(spec: SideSpec = spec, reference: Estimator = reference) -> Result:
                return _measured(job, spec, levels, reference, watch)

            found[store.n, method] = cells.get(key, compute)
    texts = {method: truth.text_of(references[stores[-1].n, method]) for method in job.methods}
    return Outcome(stores, measure(), found, texts, cells.folder)


def _key(
    job: ScalingJob, store: ImageStore, smallest: ImageStore, spec: SideSpec, reference: str
) -> Key:
    """All that a cell depends on."""
    return {
        "kind": "scaling",
        "code": truth.code(("",)),
        "store": store.manifest.images_checksum,
        "factor": store.factor().digest if job.masked else None,
        "queries": [smallest.manifest.images_checksum, job.passing, job.batch],
        "timing": [job.repeats, job.seconds],
        "reference": reference,
        "truth": [job.truth_queries, job.truth_seconds],
        "method": spec.name,
        "settings": spec.settings.given(),
        **{name: getattr(spec, name) for name in ("seed", "threads", "memory_limit")},
    }


def _measured(
    job: ScalingJob, spec: SideSpec, levels: list[truth.Level], reference: Estimator, watch: Watch
) -> Result:
    """A cell, in a process of its own: its memory is its own."""
    where = f"{reference.store.n:,} images, {spec.name}"
    watch(f"{where}: full scans, unless kept")
    few = [(sigma, x[: job.truth_queries]) for sigma, x in levels]
    scans = truth.full_scans(
        reference, few, job.truth_seconds,
        lambda done, images: watch(f"{where}: full scans, {done:,} of {images:,} images"),
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    with started([spec]) as sides:
        (side,) = sides
        for (sigma, x), exact in zip(levels, scans, strict=True):
            watch(f"{where}: sigma {sigma:.3g}")
            rows += level_rows(sides, sigma, x, {spec.name: exact}, job.repeats, job.seconds)
        watch(f"{where}: a whole run")
        whole = side.ask("run", job.batch, STEPS, job.seed)
        run = {"seconds": whole.seconds / job.batch,
               "processor_seconds": whole.processor / job.batch}  # fmt: skip
        memory = side.ask("memory")
    return {
        "n": reference.store.n, "method": spec.name, "levels": rows, "run": run, "memory": memory,
    }  # fmt: skip
