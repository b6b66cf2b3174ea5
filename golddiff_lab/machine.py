"""What a device can do and what a process takes: rates, memory, bytes read."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

CPU = torch.device("cpu")
MATRIX_SIDE, COPIED = 2048, 1 << 27
ON_A_GPU, COPIED_ON_A_GPU = 8192, 1 << 31
RUNS = 8
EVERY = 0.02  # seconds between two looks at the memory
FIELDS = {"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "files", "VmHWM": "peak"}


@dataclass(frozen=True)
class Rates:
    """What a device was measured to do at best, all threads together.

    Attributes:
        threads: how many, of the processor.
        matrix: operations/s of a matrix product (2 n^3 of them), float16 on a GPU, else float32.
        copy: bytes/s of copying memory, those read and those written both counted.
    """

    threads: int
    matrix: float
    copy: float

    def best_of(self, other: Rates) -> Rates:
        """The higher of each: what disturbs a measurement only ever lowers it."""
        matrix, copy = max(self.matrix, other.matrix), max(self.copy, other.copy)
        return Rates(self.threads, matrix, copy)


def measure(device: torch.device = CPU, *, small: bool = False) -> Rates:
    """A large square product of random numbers, and a copy many times larger than caches."""
    gpu = device.type != "cpu" and not small
    side = ON_A_GPU if gpu else 256 if small else MATRIX_SIDE
    size = COPIED_ON_A_GPU if gpu else 1 << 20 if small else COPIED
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    return Rates(
        torch.get_num_threads(),
        2 * side**3 / min(times(lambda: a @ b, RUNS, device)),
        2 * size / min(times(lambda: target.copy_(source), RUNS, device)),
    )


def times(work: Callable[[], object], repeats: int, device: torch.device = CPU) -> list[float]:
    """Seconds of each of some calls, after one that compiles and is not counted."""
    work()
    found = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - start)
    return found


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def memory() -> dict[str, int]:
    """Bytes that this process has resident, anonymous, of mapped files, and had at most.

    Empty where the system does not tell.
    """
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in FIELDS:
                found[FIELDS[name]] = 1024 * int(value.split()[0])
    return found


def peak_resident() -> int:
    """The most bytes that this process had resident so far, mapped files (a store's) included.

    ``ru_maxrss``, for systems that tell nothing better, also keeps the peak of the process that
    started this one.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    return memory().get("peak") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextlib.contextmanager
def watched_memory() -> Iterator[dict[str, int]]:
    """The most of each of :func:`memory` during the block, looked at fifty times a second."""
    peak, stop = memory(), threading.Event()

    def watch() -> None:
        ended = False
        while not ended:
            ended = stop.wait(EVERY)
            for name, size in memory().items():
                peak[name] = max(peak.get(name, 0), size)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def disk_bytes() -> int | None:
    """Bytes that this process has had read from disks so far; None where the system tells not."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    return None
