"""Runs a part of a reader's inputs in a forked process, so that a crash or hang ends only that.

Forking saves the imports, which take longer than many inputs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
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

# What chooses the inputs: coverage (by atheris), or chance.
STRATEGIES = ("coverage", "random")
TIMEOUT = 1800  # seconds of a process; a hang is a finding
SAVE_INTERVAL = 2.0  # seconds
ADDRESS_SPACE = 12 << 30  # bytes


def run_part(name: str, inputs: int, seed: int, out: Path, strategy: str) -> Tally:
    """Run a reader on inputs in a process; if that dies, its last input is a finding.

    Args:
        name: name of the reader.
        inputs: number of inputs.
        seed: seed of the inputs.
        out: path of files for the process; the suffix is replaced.
        strategy: one of :data:`STRATEGIES`.
    """
    report, log = out.with_suffix(".json"), out.with_suffix(".log")
    for path in (report, log):
        path.unlink(missing_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="golddiff-fuzz-", dir=fast_folder()))
    child = os.fork()
    if child == 0:
        _child(name, inputs, seed, report, strategy, scratch, log)
    status = _wait(child)
    shutil.rmtree(scratch, ignore_errors=True)
    tally = Tally.of(json.loads(report.read_text("utf-8"))) if report.is_file() else Tally()
    if status != 0:
        last = report.with_suffix(".input")
        messages = log.read_text("utf-8", "replace")[-600:] if log.is_file() else ""
        tally.outcomes["died"] += 1
        tally.findings[f"died-{strategy}-{seed}"] = {
            "kind": "died",
            "detail": f"the process ended with {status}: {messages}",
            "input": (last.read_bytes() if last.is_file() else b"")[:65536].hex(),
        }
    return tally


def _child(
    name: str, inputs: int, seed: int, out: Path, strategy: str, scratch: Path, log: Path
) -> None:
    """Run the inputs, then exit the process."""
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 1)
        torch.set_num_threads(1)
        # Allocating more fails in this process instead of exhausting the machine.
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        examiner = Examiner(target_named(name), scratch / "input")
        report = Report(out)
        if strategy == "coverage":
            from reliability.fuzz.guided import run_guided

            run_guided(examiner, inputs, seed, report, scratch)
        else:
            rng = random.Random(seed)
            for _ in range(inputs):
                data = examiner.target.damage(rng, rng.choice(examiner.seeds), examiner.seeds)
                report.examine(examiner, data)
        report.write()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _wait(child: int) -> int:
    """Wait for a process, kill it after the timeout, and return its exit status."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fast_folder() -> str | None:
    """The folder of files in memory, or None if it cannot be written."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Report:
    """Saves the tally regularly, and each input before it is read so that it survives a crash."""

    def __init__(self, out: Path) -> None:
        self.out, self.tally = out, Tally()
        self._last = 0.0
        self._current = out.with_suffix(".input").open("wb", buffering=0)

    def examine(self, examiner: Examiner, data: bytes) -> Outcome:
        """Examine an input and count its outcome."""
        self._current.seek(0)
        self._current.truncate()
        self._current.write(data)
        if time.monotonic() - self._last > SAVE_INTERVAL:
            self.write()
        return self.tally.examine(examiner, data)

    def write(self) -> None:
        """Save the tally."""
        temporary = self.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.tally.as_dict()), "utf-8")
        temporary.replace(self.out)
        self._last = time.monotonic()
