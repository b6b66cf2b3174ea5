"""One row at one batch: the time of a step, its floor, memory, and the released code's."""

from __future__ import annotations

import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch

from golddiff.estimators.pca import mask_width
from golddiff.noise import ddim_sigmas
from golddiff.store.images import ImageStore
from golddiff.store.proxy import side_16_shape
from golddiff.system.memory import peak_resident
from golddiff_lab.arguments import STEPS
from golddiff_lab.gpu.differences import on_device
from golddiff_lab.gpu.rows import Row
from golddiff_lab.machine import Rates
from golddiff_lab.peers.release import release_step
from golddiff_lab.queries import noised
from golddiff_lab.timing import Timing, in_turns, timed

# Of the ten noise levels of DDIM: the highest, the lowest and two between.
LEVELS = slice(0, STEPS, 3)
REPEATS = 5
SECONDS = 5.0  # of timed steps a level
LOADED_AT_ONCE = 4096


def levels() -> list[float]:
    """The noise levels that a step is timed at."""
    return ddim_sigmas(STEPS)[LEVELS]


def measured(
    row: Row,
    store: ImageStore,
    batch: int,
    device: torch.device,
    rates: Rates,
    peer: Path | None,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """Seconds of a step of the whole batch, the mean over :func:`levels`; masks made before.

    Args:
        row: what runs.
        store: its images.
        batch: queries of a step.
        device: where.
        rates: of the device; the floor follows from them.
        peer: a checkout of the released code, run too where the row is its method; or None.
        repeats: timed steps a level.
    """
    _forget_peak(device)
    there = on_device(row.denoiser(store), device, streamed=row.streamed)
    ours = _timed(there, store, batch, device, repeats)
    seconds = statistics.mean(timing.seconds for timing in ours.values())
    record = {
        "images": store.n,
        "batch": batch,
        "resident": getattr(there.store, "resident", False),
        "seconds": seconds,
        "seconds_by_sigma": {f"{sigma:.4g}": timing.seconds for sigma, timing in ours.items()},
        "seconds_first": sum(timing.first for timing in ours.values()),
        "peak_bytes": _peak_bytes(device),
        "floor_seconds": None,
        "paper_seconds": row.paper_seconds,
    }
    if row.support != "adaptive":
        floors = [floor(row, store, sigma, batch, rates) for sigma in levels()]
        record["floor_seconds"] = statistics.mean(floors)
    if peer is not None and row.support == "golden" and not row.streamed:
        del there
        store.__dict__.pop("_on_device")  # its pixels are gone from the device before theirs come
        record |= _of_peer(row, store, batch, device, peer, repeats)
    return record


def floor(row: Row, store: ImageStore, sigma: float, batch: int, rates: Rates) -> float:
    """The least seconds of a step: its bytes at the rate of copying, or its operations."""
    held = round(mask_width(store, sigma, row.mask_threshold) * store.d)
    if row.support == "full":
        read, operations = float(held + store.n * store.d), 2.0 * held * store.n * batch
    else:
        screened, k = row.schedule.budgets(sigma, store.n)
        kept = row.schedule.screened(sigma, store.n)
        read, operations = golden_work(store.shape, screened, k, kept, batch, held)
    return max(read / rates.copy, operations / rates.matrix)


def golden_work(
    shape: tuple[int, ...], screened: int, k: int, kept: int, batch: int, held: int
) -> tuple[float, float]:
    """Bytes and operations of a step of the released schedule; what queries share counts once.

    Args:
        shape: of an image, 8-bit.
        screened: images that the schedule draws.
        k: golden subset.
        kept: images that the proxy lets through.
        batch: queries.
        held: entries of the masks: multiply-adds an image and a query.
    """
    d, proxy = math.prod(shape), math.prod(side_16_shape(shape))
    read, operations = float(held), 2.0 * held * k * batch  # masks a byte an entry, once a batch
    if screened > kept:
        read += screened * 4 * proxy
        operations += 3 * screened * proxy * batch
    read += batch * (kept if kept > k else 0) * d + batch * k * d
    return read, operations


def _of_peer(
    row: Row, store: ImageStore, batch: int, device: torch.device, peer: Path, repeats: int
) -> dict[str, Any]:
    _forget_peak(device)
    parts = (store.images(slice(i, i + LOADED_AT_ONCE)) for i in range(0, store.n, LOADED_AT_ONCE))
    sizes = (round(row.k[0] * store.n), round(row.k[1] * store.n))
    try:
        step = release_step(peer, store, parts, row.mask_threshold, sizes, str(device))
        theirs = _timed(step, store, batch, device, repeats)
    except torch.OutOfMemoryError:
        return {"peer": "out of memory"}
    return {
        "peer_seconds": statistics.mean(timing.seconds for timing in theirs.values()),
        "peer_peak_bytes": _peak_bytes(device),
    }


def _timed(
    step: Any, store: ImageStore, batch: int, device: torch.device, repeats: int
) -> dict[float, Timing]:
    """A step at each noise level, each after one that makes masks."""
    found = {}
    for sigma, x in zip(levels(), noised(store, levels(), batch, 0), strict=True):
        call = partial(step, x.to(device), sigma)
        (found[sigma],) = in_turns({"": partial(timed, call, device)}, repeats, SECONDS).values()
    return found


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak_bytes(device: torch.device) -> int:
    """The most memory in use since; elsewhere of the whole process since it began."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_resident()
