"""What a device can do and what a process takes: rates, memory, bytes read."""

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
EVERY = 0.02  # seconds between two looks at the memory
FIELDS = {"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "files", "VmHWM": "peak"}


@dataclass(frozen=True)
class Rates:
    """What a device was measured to do at best, all threads together.

    Attributes:
        threads: how many, of the processor.
        matrix: operations/s of a float32 matrix product (2 n^3 of them).
        copy: bytes/s of copying memory, those read and those written both counted.
    """

    threads: int
    matrix: float
    copy: float

    def best_of(self, other: Rates) -> Rates:
        """The higher of each: what disturbs a measurement only ever lowers it."""
        matrix, copy = max(self.matrix, other.matrix), max(self.copy, other.copy)
        return Rates(self.threads, matrix, copy)


def measure(device: torch.device = CPU) -> Rates:
    """A large square product of random numbers, and a copy many times larger than caches."""
    gpu = device.type != "cpu"
    side = ON_A_GPU if gpu else MATRIX_SIDE
    size = COPIED_ON_A_GPU if gpu else COPIED
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)

    def fastest(work: Callable[[], object]) -> float:
        work()  # compiles, or wakes what sleeps
        return min(timed(work, device).seconds for _ in range(RUNS))

    return Rates(
        torch.get_num_threads(),
        2 * side**3 / fastest(lambda: a @ b),
        2 * size / fastest(lambda: target.copy_(source)),
    )


def memory() -> dict[str, int]:
    """Bytes that this process has resident, anonymous, of mapped files, and had at most.

    Empty where the system does not tell.
    """
    return {FIELDS[name]: size for name, size in process_memory().items() if name in FIELDS}


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
