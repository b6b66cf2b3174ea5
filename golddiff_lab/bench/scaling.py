"""Measure every size and method of a scaling run; results are cached on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

import golddiff
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
from golddiff_lab.sides import SideSpec

Watch = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """The results of a scaling run.

    Attributes:
        stores: the stores, smallest first.
        machine: rates of this machine, measured after the run.
        cells: by (n, method): ``levels`` from :func:`golddiff_lab.race.level_rows`, ``run``, the
            seconds per image of a whole run, and ``memory`` of the process.
        references: by method, the full scan that its errors refer to.
        folder: the cache folder of the cells.
    """

    stores: list[ImageStore]
    machine: Rates
    cells: dict[tuple[int, str], Result]
    references: dict[str, str]
    folder: Path


def run(job: ScalingJob, watch: Watch = lambda what: None) -> Outcome:
    """Measure the cells of ``job`` that are not cached; ``watch`` receives progress messages."""
    job.check()
    use_threads(job.threads)
    stores = stores_for(job, watch)
    references: dict[tuple[int, str], Estimator] = {}
    distinct: dict[tuple[int, str], Estimator] = {}  # by size and settings
    for store, method in product(stores, job.methods):
        denoiser = create(method, store, job.settings.of(method), job.seed)
        reference = truth.reference_of(denoiser, job.settings.mask_threshold)
        same = distinct.setdefault((store.n, truth.text_of(reference)), reference)
        references[store.n, method] = same
    watch("queries")
    passing = create(job.passing, stores[0], seed=job.seed)
    batches = mixed(stores[0], passing, job.sigmas, job.batch, job.seed)
    levels = list(zip(job.sigmas, batches, strict=True))
    scans = cache(partial(_scans, job, levels, watch))  # methods may have the same reference
    cells = Cells(cache_folder() / "scaling" / "cells")
    results: dict[tuple[int, str], Result] = {}
    for store, method in product(stores, job.methods):
        reference = references[store.n, method]
        spec = SideSpec(
            method, store.path, None, job.settings.of(method), job.seed,
            torch.get_num_threads(), job.memory_limit,
        )  # fmt: skip
        key = _key(job, store, stores[0], spec, truth.text_of(reference))
        if job.fresh:
            cells.path(key).unlink(missing_ok=True)

        def compute(spec: SideSpec = spec, reference: Estimator = reference) -> Result:
            return _measured(job, spec, levels, scans(reference), reference.store.n, watch)

        results[store.n, method] = cells.get(key, compute)
    texts = {method: truth.text_of(references[stores[-1].n, method]) for method in job.methods}
    return Outcome(stores, measure(), results, texts, cells.folder)


@cache
def _code() -> str:
    """A digest of the package's modules."""
    root = Path(golddiff.__file__).parent
    files = sorted(root.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _key(
    job: ScalingJob, store: ImageStore, smallest: ImageStore, spec: SideSpec, reference: str
) -> Key:
    """The cache key of a cell: everything that it depends on."""
    return {
        "kind": "scaling",
        "code": _code(),
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


def _scans(
    job: ScalingJob, levels: list[truth.Level], watch: Watch, reference: Estimator
) -> list[torch.Tensor]:
    """The full scan of the first queries of each level."""
    title = f"{reference.store.n:,} images: full scans of {truth.text_of(reference)}"
    watch(title)
    queries = [(sigma, x[: job.truth_queries]) for sigma, x in levels]
    return truth.full_scans(
        reference, queries, job.truth_seconds,
        lambda done, count: watch(f"{title}, {done} of {count} levels"),
    )  # fmt: skip


def _measured(
    job: ScalingJob, spec: SideSpec, levels: list[truth.Level], scans: list[torch.Tensor],
    n: int, watch: Watch,
) -> Result:  # fmt: skip
    """Measure a cell in its own process, whose memory is measured too."""
    title = f"{n:,} images, {spec.name}"
    rows: list[dict[str, Any]] = []
    with started([spec]) as sides:
        (side,) = sides
        for (sigma, x), exact in zip(levels, scans, strict=True):
            watch(f"{title}: sigma {sigma:.3g}")
            rows += level_rows(sides, sigma, x, {spec.name: exact}, job.repeats, job.seconds)
        watch(f"{title}: a whole run")
        timed = side.ask("run", job.batch, STEPS, job.seed)
        run = {"seconds": timed.seconds / job.batch,
               "processor_seconds": timed.processor / job.batch}  # fmt: skip
        memory = side.ask("memory")
    return {
        "n": n, "method": spec.name, "levels": rows, "run": run, "memory": memory,
    }  # fmt: skip
