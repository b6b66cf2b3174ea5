"""Some of one reader's inputs in a process of their own: a crash or a hang ends that one alone.

It is forked from a process that has everything imported, which takes longer than many inputs.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from reliability.fuzz.campaign import Tally, target_named
from reliability.fuzz.target import Examiner, Outcome

# What chooses the inputs: coverage (atheris), or hypothesis.
WAYS = ("coverage", "hypothesis")
SECONDS = 1800  # that a process may take; a hang is a finding
SAVED_EVERY = 2.0  # seconds
ADDRESS_SPACE = 12 << 30


def part(name: str, inputs: int, seed: int, out: Path, way: str) -> Tally:
    """So many inputs for a reader; a process that dies is a finding, its last input kept.

    Args:
        name: of the reader.
        inputs: how many.
        seed: of what is drawn.
        out: a path for files of its own, which need not be there.
        way: of :data:`WAYS`.
    """
    written, said = out.with_suffix(".json"), out.with_suffix(".log")
    for path in (written, said):
        path.unlink(missing_ok=True)
    place = Path(tempfile.mkdtemp(prefix="golddiff-fuzz-", dir=fast_folder()))
    child = os.fork()
    if child == 0:
        _child(name, inputs, seed, written, way, place, said)
    ended = _ended(child)
    shutil.rmtree(place, ignore_errors=True)
    tally = Tally.of(json.loads(written.read_text("utf-8"))) if written.is_file() else Tally()
    if ended != 0:
        last = written.with_suffix(".input")
        complaints = said.read_text("utf-8", "replace")[-600:] if said.is_file() else ""
        tally.outcomes["died"] += 1
        tally.findings[f"died-{way}-{seed}"] = {
            "kind": "died",
            "detail": f"the process ended with {ended}: {complaints}",
            "input": (last.read_bytes() if last.is_file() else b"")[:65536].hex(),
        }
    return tally


def _child(name: str, inputs: int, seed: int, out: Path, way: str, place: Path, said: Path) -> None:
    """Does not return."""
    try:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 2)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        torch.set_num_threads(1)
        # More address space than this fails here instead of taking the machine.
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        examiner = Examiner(target_named(name), place / "input")
        report = Report(out)
        if way == "coverage":
            from reliability.fuzz.guided import guided

            guided(examiner, inputs, seed, report, place)
        else:
            from reliability.fuzz.drawn import drawn

            drawn(examiner, inputs, seed, report)
        report.write()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _ended(child: int) -> int:
    """The exit status of a process, which is killed where it hangs."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fast_folder() -> str | None:
    """Files in memory where there are such; else the usual place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Report:
    """Writes the tally now and then, and each input before it is read: a crash leaves it there."""

    def __init__(self, out: Path) -> None:
        self.out, self.tally = out, Tally()
        self._last = 0.0
        self._current = out.with_suffix(".input").open("wb", buffering=0)

    def examine(self, examiner: Examiner, data: bytes) -> Outcome:
        """Have an input read, and count what came of it."""
        self._current.seek(0)
        self._current.truncate()
        self._current.write(data)
        if time.monotonic() - self._last > SAVED_EVERY:
            self.write()
        return self.tally.examine(examiner, data)

    def write(self) -> None:
        """The tally so far."""
        temporary = self.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.tally.as_dict()), "utf-8")
        temporary.replace(self.out)
        self._last = time.monotonic()
