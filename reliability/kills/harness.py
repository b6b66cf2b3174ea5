"""Kills work at random moments by SIGKILL and takes it up again until it is done.

The work runs in a process forked from this one, so that its moments are of the work and not of
Python's start. Torch and Numba run on one thread, or the fork would lack theirs.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from reliability.kills.jobs import Job, fresh


@dataclass
class Killed:
    """What came of a job's kills.

    Attributes:
        kills: SIGKILLs that hit the work before it ended.
        late: sent when it had ended already.
        rounds: times that the work was brought to its end after one kill or several.
        seconds: that the uninterrupted work takes.
        failures: what went wrong, by round.
    """

    kills: int = 0
    late: int = 0
    rounds: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def killed(job: Job, kills: int, seed: int, place: Path) -> Killed:
    """Kill a job so often, over as many rounds as that takes.

    Args:
        job: what to kill.
        kills: how many SIGKILLs must hit.
        seed: of the moments.
        place: a folder.
    """
    told = Killed()
    rng = random.Random(f"{job.name} {seed}")
    started = place / "start"
    fresh(place / "whole", job)
    # Once to compile and import, and once to be timed.
    job.work(place / "whole")
    fresh(place / "whole", job)
    start = time.monotonic()
    _wait(_forked(job, place / "whole"))
    told.seconds = time.monotonic() - start
    wanted = job.result(place / "whole")
    while told.kills < kills and len(told.failures) < 5:
        fresh(started, job)
        try:
            _round(job, started, rng, told, kills)
            if job.result(started) != wanted:
                told.failures.append("another result than without a kill")
        except Exception:
            told.failures.append(traceback.format_exc(limit=-3))
        told.rounds += 1
        shutil.rmtree(started, ignore_errors=True)
    return told


def _round(job: Job, folder: Path, rng: random.Random, told: Killed, kills: int) -> None:
    """One kill to four, then to the end."""
    window = told.seconds
    for _ in range(rng.randint(1, 4)):
        if told.kills >= kills:
            break
        child = _forked(job, folder)
        time.sleep(rng.uniform(0, window))
        os.kill(child, signal.SIGKILL)
        if _wait(child) == -signal.SIGKILL:
            told.kills += 1
        else:
            told.late += 1
            window *= 0.9  # what is left of the work gets less, and other programs come and go
        job.check(folder)
    ended = _wait(_forked(job, folder))
    if ended != 0:
        raise RuntimeError(f"taken up again it ended with {ended}")


def _forked(job: Job, folder: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            job.work(folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def _wait(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
