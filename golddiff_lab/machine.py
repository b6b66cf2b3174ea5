"""Measure the speed of a device and the memory of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from golddiff.system.memory import process_memory
from golddiff_lab.timing import CPU, timed

MATRIX_SIDE, COPIED = 2048, 1 << 27
ON_A_GPU, COPIED_ON_A_GPU = 8192, 1 << 31
RUNS = 8
EVERY = 0.02  # seconds between readings of the memory
FIELDS = {"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "files", "VmHWM": "peak"}


@dataclass(frozen=True)
class Rates:
    """Best measured rates of a device, with all threads together.

    Attributes:
        threads: number of CPU threads.
        matrix: operations/s of a float32 matrix product (2 n^3 operations).
        copy: bytes/s of a memory copy, counting both bytes read and bytes written.
    """

    threads: int
    matrix: float
    copy: float

    def best_of(self, other: Rates) -> Rates:
        """The higher of each rate, because disturbances can only lower a measurement."""
        matrix, copy = max(self.matrix, other.matrix), max(self.copy, other.copy)
        return Rates(self.threads, matrix, copy)


def measure(device: torch.device = CPU) -> Rates:
    """Time a product of large random matrices, and a copy much larger than the caches."""
    gpu = device.type != "cpu"
    side = ON_A_GPU if gpu else MATRIX_SIDE
    size = COPIED_ON_A_GPU if gpu else COPIED
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)

    def fastest(work: Callable[[], object]) -> float:
        work()  # warm up: compiles, and wakes an idle device
        return min(timed(work, device).seconds for _ in range(RUNS))

    return Rates(
        torch.get_num_threads(),
        2 * side**3 / fastest(lambda: a @ b),
        2 * size / fastest(lambda: target.copy_(source)),
    )


def memory() -> dict[str, int]:
    """Memory of this process in bytes: resident, anonymous, mapped files, and peak resident.

    Empty if the system does not report it.
    """
    return {FIELDS[name]: size for name, size in process_memory().items() if name in FIELDS}


@contextlib.contextmanager
def watched_memory() -> Iterator[dict[str, int]]:
    """The maximum of each figure of :func:`memory` during the block, read 50 times a second."""
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
