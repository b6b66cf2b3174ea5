"""Kills jobs by SIGKILL at random moments and resumes them until they are done.

Jobs run in forked processes, so that kills hit the work and not the start of Python. Torch and
Numba run on one thread because a forked process has no other.
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

from reliability.kills.jobs import Job, prepare_folder


@dataclass
class KillResult:
    """Counts and failures of a job.

    Attributes:
        kills: SIGKILLs that hit the running job.
        late: SIGKILLs sent after the job had ended.
        rounds: completed runs, each after one to four kills.
        seconds: time of an uninterrupted run.
        failures: messages of failed rounds.
    """

    kills: int = 0
    late: int = 0
    rounds: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def kill_repeatedly(job: Job, kills: int, seed: int, folder: Path) -> KillResult:
    """Run a job in rounds until ``kills`` SIGKILLs have hit it.

    Args:
        job: the job.
        kills: number of SIGKILLs that must hit.
        seed: seed of the moments.
        folder: folder for the files of the job.
    """
    result = KillResult()
    rng = random.Random(f"{job.name} {seed}")
    killed = folder / "start"
    prepare_folder(folder / "whole", job)
    # The first run compiles and imports; the second is timed.
    job.work(folder / "whole")
    prepare_folder(folder / "whole", job)
    start = time.monotonic()
    _wait(_forked(job, folder / "whole"))
    result.seconds = time.monotonic() - start
    expected = job.result(folder / "whole")
    while result.kills < kills and len(result.failures) < 5:
        prepare_folder(killed, job)
        try:
            _round(job, killed, rng, result, kills)
            if job.result(killed) != expected:
                result.failures.append("the result differs from that of an uninterrupted run")
        except Exception:
            result.failures.append(traceback.format_exc(limit=-3))
        result.rounds += 1
        shutil.rmtree(killed, ignore_errors=True)
    return result


def _round(job: Job, folder: Path, rng: random.Random, result: KillResult, kills: int) -> None:
    """One to four kills, then a run to the end."""
    window = result.seconds
    for _ in range(rng.randint(1, 4)):
        if result.kills >= kills:
            break
        child = _forked(job, folder)
        time.sleep(rng.uniform(0, window))
        os.kill(child, signal.SIGKILL)
        if _wait(child) == -signal.SIGKILL:
            result.kills += 1
        else:
            result.late += 1
            window *= 0.9  # less work remains, and the load of the machine varies
        job.check(folder)
    status = _wait(_forked(job, folder))
    if status != 0:
        raise RuntimeError(f"the resumed job ended with {status}")


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
