"""``golddiff bench gpu``: a step of GoldDiff(PCA) on a device, its floor, and the released code."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.pca import PCA
from golddiff.kernels.mask_tiles import mean_width
from golddiff.noise import ddim_sigmas
from golddiff.store.device import device_store
from golddiff.store.images import ImageStore
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError
from golddiff_lab.gpu.cases import Case
from golddiff_lab.gpu.floor import Work, step_work
from golddiff_lab.gpu.measure import (
    Ceilings,
    ceilings,
    peak_bytes,
    seconds,
    start_counting_memory,
)
from golddiff_lab.gpu.memory_store import patches_for
from golddiff_lab.gpu.peer import Step, check_peer, peer_step


@dataclass(frozen=True)
class GpuJob:
    """What to measure.

    Attributes:
        cases: rows.
        batches: queries a step.
        device: where.
        data: real stores, by the name of their case; patches for the others.
        variant: of the schedule.
        repeats: timed calls a level, after one that is not counted.
        levels: of the ten DDIM noise levels, every how-many-th.
        peer: a checkout of the released code, or None.
        quick: tiny ceilings too.
    """

    cases: list[Case]
    batches: list[int]
    device: torch.device
    data: dict[str, Path]
    variant: str = "released"
    repeats: int = 5
    levels: int = 1
    peer: Path | None = None
    quick: bool = False


def check_device(device: torch.device) -> None:
    """Raise where there is no such device.

    Raises:
        ArgumentError: a GPU is asked for and torch sees none.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(
            "device: no GPU is to be seen (torch.cuda.is_available() is False); "
            "--device cpu --quick shows that the benchmark works"
        )


def run(job: GpuJob, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every case and batch; rows are said as they come.

    Returns:
        The figures: settings, ceilings, rows.

    Raises:
        ArgumentError: no such device, a store of another shape than its case.
    """
    check_device(job.device)
    if job.peer is not None:
        check_peer(job.peer)
        if job.variant != "released":
            raise ArgumentError("peer: the released code runs the variant 'released' only")
    limits = ceilings(job.device, job.quick)
    say(
        f"ceilings: copy {limits.copy / 1e12:.3f} TB/s, "
        f"matrix {limits.matrix / 1e12:.2f} TFLOP/s ({_device_name(job.device)})"
    )
    rows = []
    for case in job.cases:
        store, source = _images(case, job)
        for row in _rows(case, store, source, job, limits):
            rows.append(row)
            say(_line(row))
        del store
        gc.collect()
    return {
        "device": _device_name(job.device), "torch": torch.__version__,
        "ceilings": asdict(limits), "variant": job.variant, "repeats": job.repeats,
        "levels": _levels(job), "rows": rows,
    }  # fmt: skip


def _images(case: Case, job: GpuJob) -> tuple[ImageStore, str]:
    if case.name not in job.data:
        return patches_for(case, job.device), f"patches, N = {case.n:,}"
    store = ImageStore.open(job.data[case.name])
    if store.shape != case.shape:
        raise ArgumentError(
            f"data: {job.data[case.name]} holds images of shape {store.shape}, but {case.name} is "
            f"{case.shape}"
        )
    return store, f"real pixels, N = {store.n:,}"


def _rows(
    case: Case, store: ImageStore, source: str, job: GpuJob, limits: Ceilings
) -> Iterator[dict[str, Any]]:
    label = None if case.classes is None else 0
    rows = _ours(case, store, label, job, limits)
    gc.collect()  # ours is gone from the device before the released code comes
    if job.peer is not None:
        start_counting_memory(job.device)
        step = peer_step(job.peer, store, case, label, job.device)
        for row in rows:
            _add_peer(row, step, store, job)
    for row in rows:
        yield {"case": case.name, "data": source, **row}


def _ours(
    case: Case, store: ImageStore, label: int | None, job: GpuJob, limits: Ceilings
) -> list[dict[str, Any]]:
    n = len(store.rows_of(label))
    start_counting_memory(job.device)
    there = device_store(store, job.device)
    schedule = _schedule(case, n, job.variant)
    pca = PCA(store, case.mask_threshold)
    denoiser = GoldDiff(pca, schedule).to(job.device)
    held = {s: round(mean_width(pca.tree(s)) * store.d) for s in _levels(job)}

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return denoiser(x, sigma, label)

    rows = []
    for batch in job.batches:
        work = [_work(case, schedule, n, s, batch, held[s]) for s in _levels(job)]
        times = _timed(step, store, batch, job)
        floor = sum(w.floor(limits) for w in work) / len(work)
        mean = sum(times.values()) / len(times)
        rows.append({
            "batch": batch, "resident": there.resident,
            "seconds": mean, "seconds_by_sigma": {f"{s:.4g}": t for s, t in times.items()},
            "peak_bytes": peak_bytes(job.device),
            "floor_seconds": floor, "times_floor": mean / floor,
            "bytes": sum(w.bytes for w in work) / len(work),
            "operations": sum(w.operations for w in work) / len(work),
            "paper_seconds": case.paper_seconds, "paper_gigabytes": case.paper_gigabytes,
            "aim_seconds": case.aim_seconds,
        })  # fmt: skip
    return rows


def _add_peer(row: dict[str, Any], step: Step, store: ImageStore, job: GpuJob) -> None:
    """The released code's figures beside ours, or why there are none."""
    try:
        times = _timed(step, store, row["batch"], job)
    except torch.OutOfMemoryError:
        row["peer_failed"] = "out of memory"
        return
    mean = sum(times.values()) / len(times)
    row |= {
        "peer_seconds": mean, "peer_peak_bytes": peak_bytes(job.device),
        "times_faster": mean / row["seconds"],
    }  # fmt: skip


def _timed(step: Step, store: ImageStore, batch: int, job: GpuJob) -> dict[float, float]:
    generator = torch.Generator().manual_seed(0)
    clean = store.images(torch.randint(store.n, (batch,), generator=generator))
    noise = torch.randn(clean.shape, generator=generator)
    times = {}
    for sigma in _levels(job):
        x = (clean + sigma * noise).to(job.device)
        times[sigma] = seconds(lambda x=x, s=sigma: step(x, s), job.device, job.repeats)  # type: ignore[misc]
    return times


def _schedule(case: Case, n: int, variant: str) -> PaperSchedule:
    if case.k is None:
        return PaperSchedule(variant=variant)
    k_min, k_max = (min(k, n) for k in case.k)
    return PaperSchedule(k_min, k_max, variant=variant)


def _work(case: Case, schedule: PaperSchedule, n: int, sigma: float, batch: int, held: int) -> Work:
    m, k = schedule.budgets(sigma, n)
    k_max = schedule.k_max if isinstance(schedule.k_max, int) else int(schedule.k_max * n)
    return step_work(case.shape, n, m, k, k_max, schedule.variant, batch, held)


def _levels(job: GpuJob) -> list[float]:
    return ddim_sigmas(10)[:: job.levels]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _line(row: dict[str, Any]) -> str:
    text = (
        f"{row['case']:15s} batch {row['batch']:3d}  {1e3 * row['seconds']:9.3f} ms a step, "
        f"{row['times_floor']:6.1f} x its floor, peak {row['peak_bytes'] / 1e9:6.2f} GB"
        f"  (paper {1e3 * row['paper_seconds']:.0f} ms; {row['data']})"
    )
    if "times_faster" in row:
        text += (
            f"  released code {1e3 * row['peer_seconds']:.1f} ms, "
            f"{row['peer_peak_bytes'] / 1e9:.2f} GB: {row['times_faster']:.1f} times ours"
        )
    return text + (f"  released code: {row['peer_failed']}" if "peer_failed" in row else "")
