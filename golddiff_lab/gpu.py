"""``python -m golddiff_lab.gpu STORE``: time a step on a GPU and compare with a lower bound.

A step is one call on a batch with masks already computed; times are means over four noise levels.
The *floor* is the larger of two times: bytes read at the device's copy rate, and operations at its
rate of float32 matrix products. ``tests/store/test_on_device.py`` checks the results.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from golddiff.cli.command import parse_numbers
from golddiff.cli.options import JsonPath
from golddiff.cli.terminal import describe, say, write_json
from golddiff.denoiser import Denoiser
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.pca import PCA, mask_width
from golddiff.estimators.registry import create
from golddiff.noise import ddim_sigmas
from golddiff.store.images import ImageStore
from golddiff.store.proxy import side_16_shape
from golddiff.supports.paper import PaperSchedule
from golddiff.system.arguments import check_device
from golddiff.system.errors import ArgumentError
from golddiff.system.markdown import markdown_table, number
from golddiff_lab.arguments import STEPS, split_names
from golddiff_lab.machine import Rates, measure
from golddiff_lab.peers import recognise
from golddiff_lab.peers.release import release_step
from golddiff_lab.programs import program
from golddiff_lab.queries import noised
from golddiff_lab.timing import in_turns, timed

LEVELS = ddim_sigmas(STEPS)[::3]
SECONDS = 5.0  # time limit for timed steps per level
LOADED_AT_ONCE = 4096  # images per batch given to the release
RELEASE = "the release"
HEADER = ["", "batch", "ms a step", "ms an image", "times its floor", "peak GB",
          "from the processor's"]  # fmt: skip


def measured(
    name: str, denoiser: Denoiser, batches: Sequence[int], device: torch.device, repeats: int,
    rates: Rates,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row per batch size: seconds of a step on a device, its floor, and error to the CPU's.

    Queries are training images with noise. A time is the median of ``repeats`` steps per level.
    """
    step = denoiser.to(device)
    difference = max(
        float((step(x.to(device), sigma).cpu() - denoiser(x, sigma)).abs().max())
        for x, sigma in zip(noised(denoiser.store, LEVELS, 1, 0), LEVELS, strict=True)
    )
    rows = []
    for batch in batches:
        work = [least(denoiser, sigma, batch) for sigma in LEVELS]
        floors = [max(cost[0] / rates.copy, cost[1] / rates.matrix) for cost in work if cost]
        floor = statistics.mean(floors) if floors else None
        row = timed_on(step, name, denoiser.store, batch, device, repeats)
        rows.append({**row, "floor": floor, "apart": difference})
    return rows


def timed_on(
    step: Any, name: str, store: ImageStore, batch: int, device: torch.device, repeats: int
) -> dict[str, Any]:
    """One row of the table: a step's median time, averaged over levels, and the peak memory."""
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for sigma, x in zip(LEVELS, noised(store, LEVELS, batch, 0), strict=True):
        call = partial(timed, partial(step, x.to(device), sigma), device)
        seconds.append(in_turns({name: call}, repeats, SECONDS)[name].seconds)
    peak = torch.cuda.max_memory_allocated(device) if gpu else None
    return {"side": name, "batch": batch, "seconds": statistics.mean(seconds), "peak_bytes": peak,
            "floor": None, "apart": None}  # fmt: skip


def least(denoiser: Denoiser, sigma: float, batch: int) -> tuple[float, float] | None:
    """Bytes read and operations of a step; None if the method is not supported.

    Data shared by queries count once. PCA needs one multiply-add per mask entry (one byte), image
    and query; the released schedule first screens pooled images.
    """
    base = denoiser.base if isinstance(denoiser, GoldDiff) else denoiser
    if not isinstance(base, PCA):
        return None
    store, n, d = base.store, base.store.n, base.store.d
    entries = round(mask_width(store, sigma, base.mask_threshold) * d)
    if base is denoiser:
        return float(entries + n * d), 2.0 * entries * n * batch
    schedule = denoiser.schedule  # type: ignore[attr-defined]
    if not isinstance(schedule, PaperSchedule):
        return None
    screened, k = schedule.budgets(sigma, n)
    shortlist, pooled = schedule.screened(sigma, n), math.prod(side_16_shape(store.shape))
    read, operations = entries + batch * k * d, 2.0 * entries * k * batch
    if shortlist > k:
        read += batch * shortlist * d
    if screened > shortlist:
        read, operations = read + 4 * screened * pooled, operations + 3 * screened * pooled * batch
    return float(read), operations


def of_release(peer: Path, ours: GoldDiff, device: torch.device) -> Any:
    """A step of the authors' release with the same mask threshold and subset sizes as ``ours``."""
    store, budgets, base = ours.store, ours.schedule.budgets, ours.base
    assert isinstance(base, PCA)
    parts = (store.images(slice(i, i + LOADED_AT_ONCE)) for i in range(0, store.n, LOADED_AT_ONCE))
    sizes = budgets(1e-9, store.n)[1], budgets(1e9, store.n)[1]
    return release_step(peer, store, parts, base.mask_threshold, sizes, str(device))


def main(
    store: Annotated[Path, typer.Argument(help="A store.")],
    method: Annotated[str, typer.Option(help="Methods, comma-separated.")] = "golddiff-pca,pca",
    batch: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,16,128",
    device: Annotated[str, typer.Option(help="Torch device: cuda, cuda:1, mps, xpu ...")] = "cuda",
    repeats: Annotated[int, typer.Option(help="Timed steps per level.", min=1)] = 5,
    peer: Annotated[Path | None, typer.Option(help="A checkout of the authors' release.")] = None,
    json: JsonPath = None,
) -> None:
    """Print a table of the times of a step on the device."""
    torch_device, names = check_device(device), split_names([method])
    batches = parse_numbers("batch", batch, int)
    if min(batches) < 1:
        raise ArgumentError(f"batch: got {batch}, expected 1 or more")
    if peer is not None and recognise(str(peer))[0] != "release":
        raise ArgumentError(f"peer: got {peer}, expected a checkout of the release")
    opened = ImageStore.open(store)
    denoisers = {name: create(name, opened) for name in names}
    rates = measure(torch_device)
    say(f"{describe(opened)}; {device_title(torch_device)}, torch {torch.__version__}: "
        f"{rates.matrix / 1e12:.2f} TFLOP/s, copies {rates.copy / 1e12:.3f} TB/s")  # fmt: skip
    rows = [
        row
        for name, denoiser in denoisers.items()
        for row in measured(name, denoiser, batches, torch_device, repeats, rates)
    ]
    if peer is not None:
        ours = create("golddiff-pca", opened)
        assert isinstance(ours, GoldDiff)
        step = of_release(peer, ours, torch_device)
        rows += [timed_on(step, RELEASE, opened, size, torch_device, repeats) for size in batches]
    say(*markdown_table(HEADER, [_cells(row) for row in rows], left=1))
    rate_figures = {"matrix": rates.matrix, "copy": rates.copy}
    write_json(json, {"device": device_title(torch_device), "rates": rate_figures,
                      "levels": LEVELS, "rows": rows})  # fmt: skip


def device_title(device: torch.device) -> str:
    """The name of the GPU, or of the device if it is not CUDA."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _cells(row: dict[str, Any]) -> list[str]:
    seconds, peak, floor = row["seconds"], row["peak_bytes"], row["floor"]
    return [
        row["side"], str(row["batch"]), f"{1e3 * seconds:.3g}",
        f"{1e3 * seconds / row['batch']:.3g}", number(floor and seconds / floor, ".1f"),
        number(peak and peak / 1e9, ".2f"), number(row["apart"], ".1e"),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(program("gpu", main))
