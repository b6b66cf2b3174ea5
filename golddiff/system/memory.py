"""Free memory, and checks that raise before an allocation that would not fit."""

from __future__ import annotations

import contextlib
import math
import sys
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from golddiff.system.errors import ArgumentError
from golddiff.system.units import byte_size

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
LARGEST_SIDE = 1 << 15


def free_memory() -> float:
    """Bytes of available memory; infinite if the system does not report it."""
    free = float(_sizes(_MEMINFO).get("MemAvailable", math.inf))
    with contextlib.suppress(OSError, ValueError, KeyError):  # "max" means no limit
        most = int((_GROUP / "memory.max").read_text("ascii"))
        stat = (_GROUP / "memory.stat").read_text("ascii").split()
        reclaimable = int(dict(zip(stat[::2], stat[1::2], strict=True))["inactive_file"])
        free = min(free, most - int((_GROUP / "memory.current").read_text("ascii")) + reclaimable)
    return free


def process_memory(process: int | str = "self") -> dict[str, int]:
    """Bytes by field (VmRSS, VmHWM ...) of a process on Linux; empty on other systems."""
    return _sizes(Path(f"/proc/{process}/status"))


def peak_resident() -> int:
    """Peak resident bytes of this process so far, mapped store files included.

    Outside Linux the value may include the parent process's peak; 0 if the system does not
    report it.
    """
    peak = process_memory().get("VmHWM")
    if peak is not None:
        return peak
    try:
        import resource
    except ImportError:
        return 0
    # ru_maxrss is in bytes on macOS and in kilobytes elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _sizes(path: Path) -> dict[str, int]:
    """Bytes by name from a Linux status file with lines of the form 'Name: 12 kB'."""
    with contextlib.suppress(OSError):
        words = [line.split() for line in path.read_text("utf-8", "replace").splitlines()]
        return {w[0][:-1]: 1024 * int(w[1]) for w in words if len(w) == 3 and w[2] == "kB"}
    return {}


def require_memory(needed: float, what: str, instead: str) -> None:
    """Raise if ``what`` needs more bytes than are free; ``instead`` is the advice."""
    free = free_memory()
    if needed > free:
        raise ArgumentError(
            f"memory: {what} would take about {byte_size(int(needed))}, and "
            f"{byte_size(int(max(free, 0)))} is free; {instead}"
        )


def largest_side(needed: Callable[[int], float]) -> int:
    """The largest side of square images for which ``needed(side)`` bytes are free; 0 if none."""
    return bisect_right(range(1, LARGEST_SIDE + 1), free_memory(), key=needed)
