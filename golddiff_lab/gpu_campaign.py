"""One call that measures everything on a GPU: ``python -m golddiff_lab.gpu_campaign --out DIR``.

First every path of the device is compared with the processor's, then eight rows are timed at three
batches. ``gpu.json`` and ``gpu.md`` in DIR are written anew after each, and a run that was
interrupted, or ran out of minutes, goes on where it was. Nothing is installed or downloaded.

    python -m golddiff_lab.gpu_campaign --out gpu/ --minutes 9
    python -m golddiff_lab.gpu_campaign --out gpu/ --dry-run
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from golddiff.cli.terminal import say
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable, written_whole
from golddiff.system.parallel import use_threads
from golddiff_lab.cells import Cells, Key, Result
from golddiff_lab.gpu import differences, measure, page
from golddiff_lab.gpu.rows import BATCHES, ROWS, Row, TrainingSets
from golddiff_lab.machine import Rates
from golddiff_lab.machine import measure as measured_rates
from golddiff_lab.peers import recognise
from golddiff_lab.programs import program
from golddiff_lab.truth import code

PACKS = Path(__file__).resolve().parents[2] / "shared" / "data"
LEFT_OVER = 5.0  # seconds for what is written at the end


@dataclass(frozen=True)
class Campaign:
    """What to measure.

    Attributes:
        out: folder of the results, the stores, and what was measured so far.
        minutes: that it may take; what is not begun by then is left for the next run.
        packs: folder of the packs mnist, cifar10 and imagenet64-100; None: a dry run.
        device: of torch.
        peer: a checkout of the released code, or None.
    """

    out: Path
    minutes: float
    packs: Path | None
    device: torch.device
    peer: Path | None = None

    def check(self) -> None:
        """Everything that can be told before any work.

        Raises:
            ArgumentError: names the argument.
        """
        if not 0 < self.minutes < float("inf"):
            raise ArgumentError(f"minutes: got {self.minutes}, expected a number above 0")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ArgumentError(
                "device: no GPU is to be seen (torch.cuda.is_available() is False); --dry-run "
                "shows that the campaign works"
            )
        for name in ("mnist", "cifar10", "imagenet64-100") if self.packs else ():
            if not (self.packs / name).is_dir():  # type: ignore[operator]
                raise ArgumentError(f"data: {self.packs} has no pack {name}")
        if self.peer is not None and recognise(str(self.peer))[0] != "release":
            raise ArgumentError(f"peer: got {self.peer}, expected a checkout of the release")
        check_writable("out", self.out / "gpu.json")

    def run(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Measure what is not known yet; returns what ``gpu.json`` holds.

        Raises:
            GoldDiffError: bad input; a pack that cannot be read; a full disk.
        """
        self.check()
        if self.packs is None:
            use_threads(1)  # over a few images threads only wait for each other
        end = time.monotonic() + 60 * self.minutes - LEFT_OVER
        cells = Cells(self.out / "cells")
        sets = TrainingSets(self.out / ("stores" if self.packs else "stores-dry"), self.packs)
        rates = measured_rates(self.device, small=self.packs is None)
        record = self._about(rates)

        def keep(kind: str, name: str, result: Result | None) -> None:
            if result is None:
                say(f"{name}: no time left")
                return
            record[kind].append({"path" if kind == "differences" else "row": name, **result})
            self._write(record)
            say(f"{name}: {page.summary(result)}")

        for name, compare in differences.paths(self.device, self._small(sets)).items():
            result = self._kept(cells, {"kind": "difference", "path": name}, compare, 20, end)
            keep("differences", name, result)
        for row in ROWS:
            last = 0.0
            for batch in BATCHES:
                needed = last * 16 + sets.seconds_needed(row)
                result = self._kept(
                    cells, {"kind": "row", "row": repr(row), "batch": batch},
                    partial(self._measured, sets, row, batch, rates), needed, end,
                )  # fmt: skip
                keep("rows", row.title, result)
                last = 0.0 if result is None else result["took"]
        self._write(record)
        return record

    def _measured(self, sets: TrainingSets, row: Row, batch: int, rates: Rates) -> Result:
        start = time.monotonic()
        store = sets.store(row)
        result = measure.measured(
            row, store, batch, self.device, rates, self.peer,
            measure.REPEATS if self.packs is not None else 1,
        )  # fmt: skip
        return {**result, "took": time.monotonic() - start}

    def _kept(
        self, cells: Cells, key: Key, compute: Callable[[], Result], needed: float, end: float
    ) -> Result | None:
        """What was measured before, or is now; None where the time left is less than needed."""
        full = {
            **key, "code": code(("",)), "device": self._named, "torch": torch.__version__,
            "dry": self.packs is None, "peer": None if self.peer is None else str(self.peer),
        }  # fmt: skip
        if not cells.path(full).is_file() and time.monotonic() + needed > end:
            return None
        return cells.get(full, compute)

    def _small(self, sets: TrainingSets) -> Callable[[int], ImageStore]:
        """New stores of the first images of CIFAR-10."""
        (row,) = [row for row in ROWS if row.title == "CIFAR-10"]
        return lambda images: sets.store(replace(row, n=images))

    def _about(self, rates: Rates) -> dict[str, Any]:
        return {
            "device": self._named, "torch": torch.__version__, "dry_run": self.packs is None,
            "rates": {"matrix": rates.matrix, "copy": rates.copy}, "levels": measure.levels(),
            "differences": [], "rows": [],
        }  # fmt: skip

    @property
    def _named(self) -> str:
        gpu = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if gpu else str(self.device)

    def _write(self, record: dict[str, Any]) -> None:
        texts = {"gpu.json": json.dumps(record, indent=1, allow_nan=False),
                 "gpu.md": "\n".join(page.lines(record))}  # fmt: skip
        for name, text in texts.items():
            with written_whole("out", self.out / name) as temporary:
                temporary.write_text(text + "\n", "utf-8")


def main(
    out: Annotated[Path, typer.Option(help="Folder of results and stores.")],
    minutes: Annotated[float, typer.Option(help="Begin nothing after so many.")] = 9.0,
    data: Annotated[
        Path, typer.Option(help="Folder of the packs.", envvar="GOLDDIFF_DATA")
    ] = PACKS,
    device: Annotated[str, typer.Option(help="Of torch: cuda, cuda:1, mps, xpu ...")] = "cuda",
    peer: Annotated[Path | None, typer.Option(help="A checkout of the released GoldDiff.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="All on the processor, over a few small images.")
    ] = False,
    tables: Annotated[
        Path | None, typer.Option("--page", help="Put the tables into this page too: docs/gpu.md.")
    ] = None,
) -> None:
    """Compare a device with the processor, and time it."""
    try:
        chosen = torch.device("cpu" if dry_run else device)
    except RuntimeError:
        raise ArgumentError(f"device: got {device!r}, expected cuda, mps ...") from None
    packs = None if dry_run else data.expanduser()
    campaign = Campaign(out.expanduser(), minutes, packs, chosen, peer)
    if tables is not None:
        page.between(tables, [])  # told before any work
    record = campaign.run(say)
    if tables is not None:
        page.update(tables, record)


if __name__ == "__main__":
    sys.exit(program("gpu_campaign", main))
