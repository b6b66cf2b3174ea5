"""``golddiff bench gpu``: a step of GoldDiff(PCA) on a device, its floor, and the released code."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.pca import PCA, mask_width
from golddiff.noise import ddim_sigmas
from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.store.opening import is_store
from golddiff.store.proxy import quarter_shape, side_16_shape
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError
from golddiff_lab.gpu.cases import Case
from golddiff_lab.machine import Rates, measure, peak_resident, times
from golddiff_lab.peers import recognise
from golddiff_lab.peers.release import release_step
from golddiff_lab.queries import STEPS, noised
from golddiff_lab.sides import Step

LOADED_AT_ONCE = 4096


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
        quick: tiny rates too.
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

    def check(self) -> None:
        """Everything that can be told before any work.

        Raises:
            ArgumentError: no such device; another variant; a checkout that is not the release; a
                store of another shape than its case.
        """
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ArgumentError(
                "device: no GPU is to be seen (torch.cuda.is_available() is False); "
                "--device cpu --quick shows that the benchmark works"
            )
        if self.variant not in ("released", "text"):
            raise ArgumentError(f"variant: got {self.variant!r}, expected 'released' or 'text'")
        for name, values in (("batch", self.batches), ("repeats", [self.repeats])):
            if min(values) < 1:
                raise ArgumentError(f"{name}: got {min(values)}, expected 1 or more")
        if self.peer is not None:
            if recognise(str(self.peer))[0] != "release":
                raise ArgumentError(f"peer: got {self.peer}, expected a checkout of the release")
            if self.variant != "released":
                raise ArgumentError("peer: the released code runs the variant 'released' only")
        for case in self.cases:
            if case.name in self.data:
                shape = ImageStore.open(self.data[case.name]).shape
                if shape != case.shape:
                    raise ArgumentError(
                        f"data: {self.data[case.name]} holds images of shape {shape}, but "
                        f"{case.name} is {case.shape}"
                    )

    def sigmas(self) -> list[float]:
        """The noise levels that a step is timed at."""
        return ddim_sigmas(STEPS)[:: self.levels]


def run(job: GpuJob, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every case and batch; rows are said as they come.

    Returns:
        The figures: settings, rates, rows.

    Raises:
        ArgumentError: as :meth:`GpuJob.check`.
    """
    job.check()
    rates = measure(job.device, small=job.quick)
    gpu = job.device.type == "cuda"
    device = torch.cuda.get_device_name(job.device) if gpu else str(job.device)
    say(
        f"rates: copy {rates.copy / 1e12:.3f} TB/s, matrix {rates.matrix / 1e12:.2f} TFLOP/s "
        f"({device})"
    )
    rows = []
    for case in job.cases:
        store, source = _images(case, job)
        label = None if case.classes is None else 0
        made = _ours(case, store, label, job, rates)
        gc.collect()  # ours is gone from the device before the released code comes
        if job.peer is not None:
            _add_peer(made, case, store, label, job)
        for row in made:
            rows.append({"case": case.name, "data": source, **row})
            say(_line(rows[-1]))
        del store
        gc.collect()
    return {
        "device": device, "torch": torch.__version__,
        "rates": {"copy": rates.copy, "matrix": rates.matrix},
        "variant": job.variant, "repeats": job.repeats, "levels": job.sigmas(), "rows": rows,
    }  # fmt: skip


def _images(case: Case, job: GpuJob) -> tuple[ImageStore, str]:
    """The case's store; else crops of photographs, as many and as large, in the cache folder."""
    if case.name in job.data:
        store = ImageStore.open(job.data[case.name])
        return store, f"real pixels, N = {store.n:,}"
    channels, side, _ = case.shape
    path = cache_folder() / "gpu" / f"patches-{case.n}-{channels}x{side}-{case.classes or 'all'}"
    if is_store(path):
        store = ImageStore.open(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        labels = None if case.classes is None else np.arange(case.n) % case.classes
        store = ImageStore.build(
            "patches", path, labels, size=side, channels=channels, limit=case.n
        )
    return store, f"patches, N = {case.n:,}"


def _ours(
    case: Case, store: ImageStore, label: int | None, job: GpuJob, rates: Rates
) -> list[dict[str, Any]]:
    n = store.count_of(label)
    _start_counting_memory(job.device)
    schedule = PaperSchedule(variant=job.variant)
    if case.k is not None:
        k_min, k_max = (min(k, n) for k in case.k)
        schedule = PaperSchedule(k_min, k_max, variant=job.variant)
    denoiser = GoldDiff(PCA(store, case.mask_threshold), schedule).to(job.device)
    rows = []
    for batch in job.batches:
        took = _timed(lambda x, sigma: denoiser(x, sigma, label), store, batch, job)
        mean = statistics.mean(took.values())
        work = [_work(case, schedule, store, n, sigma, batch) for sigma in job.sigmas()]
        floor = statistics.mean(max(b / rates.copy, o / rates.matrix) for b, o in work)
        rows.append({
            "batch": batch, "resident": getattr(denoiser.store, "resident", None),
            "seconds": mean, "seconds_by_sigma": {f"{s:.4g}": t for s, t in took.items()},
            "peak_bytes": _peak_bytes(job.device),
            "floor_seconds": floor, "times_floor": mean / floor,
            "bytes": statistics.mean(b for b, _ in work),
            "operations": statistics.mean(o for _, o in work),
            **{k: v for k, v in asdict(case).items() if k.startswith(("paper", "aim"))},
        })  # fmt: skip
    return rows


def _add_peer(
    rows: list[dict[str, Any]], case: Case, store: ImageStore, label: int | None, job: GpuJob
) -> None:
    """The released code's figures beside ours, or why there are none."""
    assert job.peer is not None
    chosen = store.rows_of(label)
    n = len(chosen)
    parts = (store.images(chosen[i : i + LOADED_AT_ONCE]) for i in range(0, n, LOADED_AT_ONCE))
    sizes = case.k or (max(1, n // 20), max(1, n // 10))
    _start_counting_memory(job.device)
    peer = job.peer.expanduser().resolve()
    step = release_step(peer, store, parts, case.mask_threshold, sizes, str(job.device))
    for row in rows:
        try:
            mean = statistics.mean(_timed(step, store, row["batch"], job).values())
        except torch.OutOfMemoryError:
            row["peer_failed"] = "out of memory"
            continue
        row["peer_seconds"], row["peer_peak_bytes"] = mean, _peak_bytes(job.device)
        row["times_faster"] = mean / row["seconds"]


def _timed(step: Step, store: ImageStore, batch: int, job: GpuJob) -> dict[float, float]:
    """The median time of a step at each noise level."""
    took = {}
    for sigma, x in zip(job.sigmas(), noised(store, job.sigmas(), batch, 0), strict=True):
        call = partial(step, x.to(job.device), sigma)
        took[sigma] = statistics.median(times(call, job.repeats, job.device))
    return took


def _work(
    case: Case, schedule: PaperSchedule, store: ImageStore, n: int, sigma: float, batch: int
) -> tuple[float, float]:
    """The least that a step reads (bytes) and computes (operations), from shapes and masks."""
    m, k = schedule.budgets(sigma, n)
    held = round(mask_width(store, sigma, case.mask_threshold) * store.d)
    return least_work(case.shape, n, m, k, schedule.screened(sigma, n), schedule.variant, batch,
                      held)  # fmt: skip


def least_work(
    shape: tuple[int, ...], n: int, m: int, k: int, kept: int, variant: str, batch: int, held: int
) -> tuple[float, float]:
    """Bytes and operations of a step, every array counted once where queries share it.

    Args:
        shape: of an image, 8-bit.
        n: images (of the class).
        m: candidates that the schedule screens, or draws.
        k: golden subset.
        kept: images that the proxy lets through.
        variant: of the schedule, "text" or "released".
        batch: queries.
        held: entries of the masks: multiply-adds an image and a query.
    """
    d = math.prod(shape)
    text = variant == "text"
    proxy, screened = math.prod((quarter_shape if text else side_16_shape)(shape)), n if text else m
    read, operations = float(held), 2.0 * held * k * batch  # masks a byte an entry, once a batch
    if screened > kept:
        read += screened * 4 * proxy
        operations += 3 * screened * proxy * batch
    read += batch * (kept if kept > k else 0) * d + batch * k * d
    return read, operations


def _start_counting_memory(device: torch.device) -> None:
    """Forget the peak so far, and what the allocator keeps for later."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak_bytes(device: torch.device) -> int:
    """The most memory in use since; elsewhere of the whole process since it began."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_resident()


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
