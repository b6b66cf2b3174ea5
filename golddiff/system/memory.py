"""What memory there is, and a refusal of what would take more before any of it is taken."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

from golddiff.system.errors import ArgumentError
from golddiff.system.units import byte_size

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
LARGEST_SIDE = 1 << 15


def free_memory() -> float:
    """Bytes of memory that may still be taken; infinite where the system does not say."""
    free = math.inf
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        lines = _MEMINFO.read_text("ascii").splitlines()
        free = 1024.0 * int(next(x for x in lines if x.startswith("MemAvailable:")).split()[1])
    with contextlib.suppress(OSError, ValueError, KeyError):  # "max" is no number: no limit
        most = int((_GROUP / "memory.max").read_text("ascii"))
        stat = (_GROUP / "memory.stat").read_text("ascii").split()
        reclaimable = int(dict(zip(stat[::2], stat[1::2], strict=True))["inactive_file"])
        free = min(free, most - int((_GROUP / "memory.current").read_text("ascii")) + reclaimable)
    return free


def require_memory(needed: float, what: str, instead: str) -> None:
    """Raise where something would take more memory than there is."""
    free = free_memory()
    if needed > free:
        raise ArgumentError(
            f"memory: {what} would take about {byte_size(int(needed))}, and "
            f"{byte_size(int(max(free, 0)))} is free; {instead}"
        )


def largest_side(needed: Callable[[int], float]) -> int:
    """The largest side of square images whose work fits into free memory; 0: none.

    Args:
        needed: bytes for images of a side, growing with it.
    """
    free, low, high = free_memory(), 0, LARGEST_SIDE
    while low < high:
        side = (low + high + 1) // 2
        low, high = (side, high) if needed(side) <= free else (low, side - 1)
    return low
