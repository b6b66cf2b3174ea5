"""One size and one method, measured in a process of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.registry import MethodSettings, make_denoiser
from golddiff.noise import ddim_scheduler
from golddiff.sampling import sample
from golddiff.store.images import ImageStore
from golddiff.support import Support
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import use_threads
from golddiff_lab.race.job import STEPS
from golddiff_lab.race.memory import peak_resident
from golddiff_lab.race.side import describe_step
from golddiff_lab.race.work import row_bytes
from golddiff_lab.scaling.masks import share_masks
from golddiff_lab.scaling.memory import disk_bytes, now, watched

RUN_SHARE = 10  # levels' worth of seconds that the whole run may take
TRIED_AGAIN = (
    3  # a first call may take so much longer than a level may, for what it makes and keeps
)
FEW = 64  # images that kernels are compiled and masks made with


@dataclass(frozen=True)
class CellSpec:
    """What a process needs to measure a cell: plain values only.

    Attributes:
        store: folder.
        method, settings, seed: of the denoiser.
        queries: file of the noisy images, :func:`save_levels`.
        out: file to write what the levels gave to.
        batch, repeats, seconds, threads, memory_limit: as of the job.
    """

    store: Path
    method: str
    settings: MethodSettings
    seed: int
    queries: Path
    out: Path
    batch: int
    repeats: int
    seconds: float
    threads: int
    memory_limit: float


Watch = Callable[[str], None]


def measured(spec: CellSpec, watch: Watch = lambda what: None) -> dict[str, Any]:
    """Time, memory and reads of a method over a store, at each level and over a whole run.

    Args:
        spec: what to measure.
        watch: told what is done now.

    Returns:
        Plain values: ``levels``, ``run``, ``memory``, ``seconds_open``.
    """
    use_threads(spec.threads)
    start = time.perf_counter()
    store = ImageStore.open(spec.store, spec.memory_limit)
    denoiser = make_denoiser(spec.method, store, spec.settings, spec.seed)
    opened = time.perf_counter() - start
    before = now()
    levels, outs = [], {}
    with watched() as peak:
        for i, (sigma, x) in enumerate(load_levels(spec.queries)):
            watch(f"sigma {sigma:.3g}")
            level, outs[str(i)] = _level(denoiser, x[: spec.batch], sigma, spec)
            levels.append(level)
        watch("whole run")
        run = _run(denoiser, sum(level["seconds"] for level in levels), spec)
    save_file(outs, spec.out)
    return {
        "n": store.n,
        "method": spec.method,
        "levels": levels,
        "run": run,
        "seconds_open": opened,
        "memory": {"before": before, "peak": dict(peak), "high_water": peak_resident()},
    }


def _level(
    denoiser: Denoiser, x: torch.Tensor, sigma: float, spec: CellSpec
) -> tuple[dict[str, Any], torch.Tensor]:
    """One level's figures, and what its queries gave."""
    making, _, _ = _timed(lambda: _prepared(denoiser, x[:1], sigma, spec.out.parent))
    read = disk_bytes()
    first, cpu, out = _timed(lambda: denoiser(x[:1], sigma))
    times, processor, count, warm = [first], [cpu], 1, first <= TRIED_AGAIN * spec.seconds
    if warm:
        one, _, _ = _timed(lambda: denoiser(x[:1], sigma))
        count = max(1, min(len(x), int(spec.seconds / max(one, 1e-9))))
        repeats = max(1, min(spec.repeats, int(spec.seconds / max(one * count, 1e-9))))
        times, processor = [], []
        for _ in range(repeats):
            seconds, cpu, out = _timed(lambda: denoiser(x[:count], sigma))
            times.append(seconds)
            processor.append(cpu)
    after = disk_bytes()
    calls = count * len(times) + 2 if warm else 1
    weighed = _weighed(denoiser, x[:count], sigma)
    figures = {
        "sigma": sigma,
        "seconds": statistics.median(times) / count,
        "processor_seconds": statistics.median(processor) / count,
        "seconds_measured": [t / count for t in times],
        "seconds_making": making,  # or reading masks, and plans: once for each level
        "seconds_first": first,
        "warm": warm,  # else there was time for one call only
        "queries": count,
        "disk_bytes": None if read is None or after is None else (after - read) / calls,
        **weighed,
        "description": describe_step(denoiser, sigma),
    }
    return figures, out


def _prepared(denoiser: Denoiser, x: torch.Tensor, sigma: float, folder: Path) -> torch.Tensor:
    """Have made what is made once for a level: compiled kernels, masks, the schedule's plan."""
    share_masks(denoiser, sigma, folder)
    estimator = getattr(denoiser, "base", denoiser)
    if isinstance(estimator, Estimator):
        few = Support(denoiser.store.rows_of(None)[:FEW])
        estimator.posterior(x.reshape(1, -1).numpy(), sigma, few)
    plan = getattr(getattr(denoiser, "schedule", None), "plan", None)
    if callable(plan):
        plan(sigma)
    return x


def _weighed(denoiser: Denoiser, x: torch.Tensor, sigma: float) -> dict[str, float | None]:
    """Images that a query's support holds on average, and the bytes of their pixels.

    Of a tiled support the distinct images.
    """
    try:
        supports = denoiser.weighing(x.reshape(len(x), -1).numpy(), sigma, None)
    except ArgumentError:
        return {"images": None, "pixel_bytes": None}  # it weighs none, or tells not
    images = float(np.mean([len(support.rows) for _, support in supports]))
    return {"images": images, "pixel_bytes": images * row_bytes(denoiser.store)}


def _run(denoiser: Denoiser, predicted: float, spec: CellSpec) -> dict[str, Any]:
    """The whole 10-step run, with as many images as there is time for; else none."""
    images = min(spec.batch, int(RUN_SHARE * spec.seconds / max(predicted, 1e-9)))
    if images < 1:
        return {"images": 0, "seconds": None, "processor_seconds": None, "predicted": predicted}
    ddim_scheduler(STEPS, clip=True)  # its library takes a second to import
    seconds, processor, _ = _timed(
        lambda: (
            sample(
                denoiser, images, STEPS, seed=spec.seed, batch_size=images, trajectory=False
            ).images
        )
    )
    return {
        "images": images,
        "seconds": seconds / images,
        "processor_seconds": processor / images,
        "predicted": predicted,
    }


def _timed(work: Callable[[], torch.Tensor]) -> tuple[float, float, torch.Tensor]:
    """Seconds, processor seconds of all threads, and what came out."""
    start, processor = time.perf_counter(), time.process_time()
    out = work()
    return time.perf_counter() - start, time.process_time() - processor, out


def save_levels(path: Path, sigmas: list[float], levels: list[torch.Tensor]) -> None:
    """Write the noisy images of each level to a file."""
    tensors = {f"x{i}": x.contiguous() for i, x in enumerate(levels)}
    save_file({**tensors, "sigmas": torch.tensor(sigmas, dtype=torch.float64)}, path)


def load_levels(path: Path) -> list[tuple[float, torch.Tensor]]:
    """The levels of :func:`save_levels`."""
    tensors = load_file(path)
    return [(float(s), tensors[f"x{i}"]) for i, s in enumerate(tensors["sigmas"].tolist())]
