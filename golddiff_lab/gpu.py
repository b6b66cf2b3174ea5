"""``python -m golddiff_lab.gpu STORE``: a step on a GPU, beside the least that it needs.

A step is one call on a batch, with masks made before, the mean over four noise levels. Its *floor*
is the larger of two times: its bytes at the device's rate of copying, and its operations at its
rate of float32 products. ``tests/store/test_on_device.py`` compares every path with the
processor's.
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

from golddiff.cli.options import JsonPath
from golddiff.cli.parse import parse_whole_numbers
from golddiff.cli.terminal import describe, say, write_json
from golddiff.denoiser import Denoiser
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.pca import PCA, mask_width
from golddiff.estimators.registry import create
from golddiff.noise import ddim_sigmas
from golddiff.oracles.oracle import checked_device
from golddiff.store.images import ImageStore
from golddiff.store.proxy import side_16_shape
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError
from golddiff_lab.arguments import STEPS, split_names
from golddiff_lab.machine import Rates, measure
from golddiff_lab.peers import recognise
from golddiff_lab.peers.release import release_step
from golddiff_lab.programs import program
from golddiff_lab.queries import noised
from golddiff_lab.tables import markdown_table, number
from golddiff_lab.timing import in_turns, timed

LEVELS = ddim_sigmas(STEPS)[::3]
SECONDS = 5.0  # of timed steps a level
LOADED_AT_ONCE = 4096  # images that the release is given
RELEASE = "the release"
HEADER = ["", "batch", "ms a step", "ms an image", "times its floor", "peak GB",
          "from the processor's"]  # fmt: skip


def measured(
    name: str, denoiser: Denoiser, batches: Sequence[int], device: torch.device, repeats: int,
    rates: Rates,
) -> list[dict[str, Any]]:  # fmt: skip
    """Of each batch the seconds of a step on a device, its floor, and how far the method is off.

    Args:
        name: of the method.
        denoiser: the method; its store's images go to the device.
        batches: how many training images with noise a step has, one row each.
        device: of torch.
        repeats: timed steps a level, whose median counts.
        rates: of the device.
    """
    step = denoiser.to(device)
    apart = max(
        float((step(x.to(device), sigma).cpu() - denoiser(x, sigma)).abs().max())
        for x, sigma in zip(noised(denoiser.store, LEVELS, 1, 0), LEVELS, strict=True)
    )
    rows = []
    for batch in batches:
        work = [least(denoiser, sigma, batch) for sigma in LEVELS]
        floors = [max(one[0] / rates.copy, one[1] / rates.matrix) for one in work if one]
        row = timed_on(step, name, denoiser.store, batch, device, repeats)
        rows.append({**row, "floor": statistics.mean(floors) if floors else None, "apart": apart})
    return rows


def timed_on(
    step: Any, name: str, store: ImageStore, batch: int, device: torch.device, repeats: int
) -> dict[str, Any]:
    """A row of the table: the mean over levels of a step's median time, and the memory."""
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
    """Bytes and operations of a step; what queries share counts once. None where not counted.

    PCA multiplies and adds once for each entry of its masks, a byte each, for each image and query;
    the released schedule screens pooled images before.
    """
    base = denoiser.base if isinstance(denoiser, GoldDiff) else denoiser
    if not isinstance(base, PCA):
        return None
    store, n, d = base.store, base.store.n, base.store.d
    held = round(mask_width(store, sigma, base.mask_threshold) * d)
    if base is denoiser:
        return float(held + n * d), 2.0 * held * n * batch
    schedule = denoiser.schedule  # type: ignore[attr-defined]
    if not isinstance(schedule, PaperSchedule):
        return None
    screened, k = schedule.budgets(sigma, n)
    kept, pooled = schedule.screened(sigma, n), math.prod(side_16_shape(store.shape))
    read, operations = held + batch * k * d, 2.0 * held * k * batch
    if kept > k:
        read += batch * kept * d
    if screened > kept:
        read, operations = read + 4 * screened * pooled, operations + 3 * screened * pooled * batch
    return float(read), operations


def of_release(peer: Path, ours: GoldDiff, device: torch.device) -> Any:
    """A step of the authors' release with our mask threshold and subset sizes."""
    store, budgets, base = ours.store, ours.schedule.budgets, ours.base
    assert isinstance(base, PCA)
    parts = (store.images(slice(i, i + LOADED_AT_ONCE)) for i in range(0, store.n, LOADED_AT_ONCE))
    sizes = budgets(1e-9, store.n)[1], budgets(1e9, store.n)[1]
    return release_step(peer, store, parts, base.mask_threshold, sizes, str(device))


def main(
    store: Annotated[Path, typer.Argument(help="A store.")],
    method: Annotated[str, typer.Option(help="Methods, with commas between.")] = "golddiff-pca,pca",
    batch: Annotated[str, typer.Option(help="Batches, with commas between.")] = "1,16,128",
    device: Annotated[str, typer.Option(help="Of torch: cuda, cuda:1, mps, xpu ...")] = "cuda",
    repeats: Annotated[int, typer.Option(help="Timed steps a level.", min=1)] = 5,
    peer: Annotated[Path | None, typer.Option(help="A checkout of the authors' release.")] = None,
    json: JsonPath = None,
) -> None:
    """Print the table."""
    there, names = torch.device(checked_device(device)), split_names([method])
    batches = parse_whole_numbers("batch", batch)
    if min(batches) < 1:
        raise ArgumentError(f"batch: got {batch}, expected 1 or more")
    if peer is not None and recognise(str(peer))[0] != "release":
        raise ArgumentError(f"peer: got {peer}, expected a checkout of the release")
    opened = ImageStore.open(store)
    denoisers = {name: create(name, opened) for name in names}
    rates = measure(there)
    say(f"{describe(opened)}; {device_title(there)}, torch {torch.__version__}: "
        f"{rates.matrix / 1e12:.2f} TFLOP/s, copies {rates.copy / 1e12:.3f} TB/s")  # fmt: skip
    rows = [
        row
        for name, denoiser in denoisers.items()
        for row in measured(name, denoiser, batches, there, repeats, rates)
    ]
    if peer is not None:
        ours = create("golddiff-pca", opened)
        assert isinstance(ours, GoldDiff)
        step = of_release(peer, ours, there)
        rows += [timed_on(step, RELEASE, opened, size, there, repeats) for size in batches]
    say(*markdown_table(HEADER, [_cells(row) for row in rows], left=1))
    rated = {"matrix": rates.matrix, "copy": rates.copy}
    write_json(json, {"device": device_title(there), "rates": rated, "levels": LEVELS,
                      "rows": rows})  # fmt: skip


def device_title(device: torch.device) -> str:
    """The GPU's name, or the device's."""
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
