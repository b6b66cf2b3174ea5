"""One reader's inputs in a process of its own: a crash or a hang ends this process alone."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

from reliability.fuzz.campaign import Tally, campaign, target_named
from reliability.fuzz.target import Examiner

SAVED_EVERY = 2.0  # seconds
ADDRESS_SPACE = 12 << 30


def main() -> None:
    """Arguments: the reader, how many, the seed, where to write, and whether by coverage."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("inputs", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--guided", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    # What takes more address space than this fails in this process instead of taking the machine.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    place = Path(tempfile.mkdtemp(prefix="golddiff-fuzz-", dir=fast_folder()))
    if asked.guided:
        from reliability.fuzz.guided import guided

        guided(asked.name, asked.inputs, asked.seed, asked.out, place)
        return
    try:
        examiner = Examiner(target_named(asked.name), place / "input")
        report = Report(asked.out)
        campaign(examiner, asked.inputs, asked.seed, report.tally, report.before)
        report.write()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def fast_folder() -> str | None:
    """Files in memory where there are such; else the usual place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Report:
    """Writes the tally now and then, and each input before it is read: a crash leaves it there."""

    def __init__(self, out: Path) -> None:
        self.out, self.tally = out, Tally()
        self._last = 0.0
        self._current = (out.parent / f"{out.stem}.input").open("wb", buffering=0)

    def before(self, data: bytes, tally: Tally) -> None:
        """Called with an input that is about to be read."""
        self._current.seek(0)
        self._current.truncate()
        self._current.write(data)
        if time.monotonic() - self._last > SAVED_EVERY:
            self.write()

    def write(self) -> None:
        """The tally so far."""
        temporary = self.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.tally.as_dict()), "utf-8")
        temporary.replace(self.out)
        self._last = time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
