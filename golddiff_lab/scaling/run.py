"""All cells of a scaling run: each measured once, kept, and not measured again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from golddiff import __version__
from golddiff.denoiser import Estimator
from golddiff.estimators.registry import make_denoiser
from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError, GoldDiffError
from golddiff.system.files import written_whole
from golddiff.system.parallel import use_threads
from golddiff_lab.race import truth
from golddiff_lab.race.machine import Machine, measure
from golddiff_lab.race.worker import environment
from golddiff_lab.scaling.cell import CellSpec, load_levels, measured, save_levels
from golddiff_lab.scaling.job import ScalingJob
from golddiff_lab.scaling.masks import share_masks
from golddiff_lab.scaling.queries import WITHOUT_MASKS, mixed, passing
from golddiff_lab.scaling.stores import share_factor, stores_for
from golddiff_lab.scaling.truth import full_scans

# The modules that times and outputs come from: other code, other cells.
CODE = (*truth.CODE, "supports", "index", "bench/scaling", "methods.py", "parallel.py", "proxy.py",
        "sampling.py", "schedules.py", "support.py")  # fmt: skip

Watch = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """A whole run.

    Attributes:
        stores: the smallest first.
        threads: used.
        machine: its rates now.
        cells: what :func:`golddiff_lab.scaling.cell.measured` told, by (n, method), with
            ``rmse`` and ``truth_queries`` in each level: the error to the full scan (None where
            that takes too long), and at how many queries.
        references: the full scan that a method's errors are to.
        folder: where all of it is kept.
    """

    stores: list[ImageStore]
    threads: int
    machine: Machine
    cells: dict[tuple[int, str], dict[str, Any]]
    references: dict[str, str]
    folder: Path


def run(job: ScalingJob, watch: Watch = lambda what: None) -> Outcome:
    """Measure every size and method that an earlier run has not.

    Args:
        job: what to measure.
        watch: told in one line what is done now.

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
    folder = cache_folder() / "scaling" / f"run-{_identity(job, stores)}"
    folder.mkdir(parents=True, exist_ok=True)
    queries = folder / "queries.safetensors"
    if not queries.is_file():
        watch("queries")
        with written_whole("cache", queries) as temporary:
            passes = make_denoiser(passing(job.methods), stores[0], seed=job.seed)
            for sigma in job.sigmas:
                share_masks(passes, sigma, folder)
            levels = mixed(stores[0], passes, job.sigmas, job.batch, job.seed)
            save_levels(temporary, job.sigmas, levels)
    cells: dict[tuple[int, str], dict[str, Any]] = {}
    for store in stores:
        for method in job.methods:
            spec = _spec(job, store, method, queries, folder)
            record = folder / f"{store.n}-{method}.json"
            cells[store.n, method] = _cell(spec, record, job.fresh, watch)
    references = _errors(job, stores, queries, folder, cells, watch)
    return Outcome(stores, torch.get_num_threads(), measure(), cells, references, folder)


def _identity(job: ScalingJob, stores: list[ImageStore]) -> str:
    """A name that changes with all that cells depend on."""
    # Of one source the sizes between are parts of the largest: more of them change no other cell.
    told = stores if len(job.data) > 1 else [stores[0], stores[-1]]
    about = {
        "version": __version__,
        "code": truth.code(CODE),
        "stores": [{k: v.sha256 for k, v in s.manifest.files.items()} for s in told],
        "queries": passing(job.methods),
        "settings": asdict(job.settings),
        "batch": job.batch,
        "repeats": job.repeats,
        "seconds": job.seconds,
        "memory_limit": job.memory_limit,
        "seed": job.seed,
        "threads": torch.get_num_threads(),
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _spec(job: ScalingJob, store: ImageStore, method: str, queries: Path, folder: Path) -> CellSpec:
    return CellSpec(
        store.path, method, job.own_settings(method), job.seed, queries,
        folder / f"{store.n}-{method}.safetensors", job.batch, job.repeats, job.seconds,
        torch.get_num_threads(), job.memory_limit,
    )  # fmt: skip


def _cell(spec: CellSpec, record: Path, fresh: bool, watch: Watch) -> dict[str, Any]:
    """A cell as it was kept, or measured now."""
    if not fresh and spec.out.is_file():
        with suppress(OSError, ValueError):
            kept: dict[str, Any] = json.loads(record.read_text("utf-8"))
            return kept
    name = f"{spec.store.name}, {spec.method}"
    figures = in_a_process(spec, lambda what: watch(f"{name}: {what}"))
    with written_whole("cache", record) as temporary:
        temporary.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    return figures


def in_a_process(spec: CellSpec, watch: Watch) -> dict[str, Any]:
    """A cell measured in a process of its own: its memory is its own.

    Raises:
        ArgumentError: the method fails, or its process ends (out of memory).
    """
    context = multiprocessing.get_context("spawn")
    pipe, there = context.Pipe()
    process = context.Process(target=_serve, args=(spec, there), daemon=True)
    with environment(OMP_NUM_THREADS=str(spec.threads)):
        process.start()
    there.close()
    try:
        while True:
            kind, what = pipe.recv()
            if kind == "doing":
                watch(what)
            elif kind == "done":
                figures: dict[str, Any] = what
                return figures
            else:
                raise ArgumentError(f"{spec.method}: {what}")
    except EOFError:
        process.join(timeout=5)
        raise ArgumentError(
            f"{spec.method}: its process ended (exit code {process.exitcode}); out of memory?"
        ) from None
    finally:
        pipe.close()
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(spec: CellSpec, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    try:
        pipe.send(("done", measured(spec, lambda what: pipe.send(("doing", what)))))
    except BrokenPipeError:
        os._exit(1)  # nobody asks any more
    except GoldDiffError as error:
        pipe.send(("failed", str(error)))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        pipe.send(("failed", text))


def _errors(
    job: ScalingJob,
    stores: list[ImageStore],
    queries: Path,
    folder: Path,
    cells: dict[tuple[int, str], dict[str, Any]],
    watch: Watch,
) -> dict[str, str]:
    """Give each level of each cell its error; what full scan it is to, for each method."""
    said: dict[str, str] = {}
    levels = [(sigma, x[: job.truth_queries]) for sigma, x in load_levels(queries)]
    for store in stores:
        scans: dict[str, list[torch.Tensor]] = {}
        for method in job.methods:
            reference = _reference(job, store, method)
            name = said[method] = truth.text_of(reference)
            if job.truth_queries and name not in scans:
                watch(f"{store.n:,} images: full scan of {name}, unless kept")
                for sigma, _ in levels:
                    share_masks(reference, sigma, folder)
                saying = partial(_scanning, watch, name)
                scans[name] = full_scans(reference, levels, job.truth_seconds, saying)
            outs = load_file(folder / f"{store.n}-{method}.safetensors")
            for i, level in enumerate(cells[store.n, method]["levels"]):
                out = outs[str(i)]
                exact = scans[name][i][: len(out)] if name in scans else out[:0]
                level["truth_queries"] = len(exact)
                level["rmse"] = truth.rmse(out[: len(exact)], exact) if len(exact) else None
    return said


def _scanning(watch: Watch, name: str, done: int, images: int) -> None:
    watch(f"full scan of {name}: {done:,} of {images:,} images")


def _reference(job: ScalingJob, store: ImageStore, method: str) -> Estimator:
    denoiser = make_denoiser(method, store, job.own_settings(method), job.seed)
    return truth.reference_of(denoiser, store, job.settings.mask_threshold)
