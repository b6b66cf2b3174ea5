"""The most memory that a run held at one time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"  # proc(5): "reset the peak resident set size"


@dataclass
class PeakMemory:
    """Filled in when the block of :func:`peak_memory` ends.

    Attributes:
        bytes: the peak.
        kind: what it is the peak of. "allocator": the GPU tensors of torch's allocator. "resident":
            the process's resident memory during the block, all of it: interpreter, libraries and
            the mapped pages of the store included. "process": the same since the process started,
            where the system cannot reset the counter (not Linux). "unknown": no system call here
            gives it; bytes is 0.
        before: what was held already when the block began, 0 where that is not known.
    """

    bytes: int = 0
    kind: str = "unknown"
    before: int = 0

    def figures(self) -> dict[str, int | str]:
        """The same for JSON."""
        return {"bytes": self.bytes, "kind": self.kind, "before": self.before}


@contextlib.contextmanager
def peak_memory() -> Iterator[PeakMemory]:
    """Measure the block's peak memory: a GPU's where the block uses one, otherwise resident."""
    peak = PeakMemory()
    gpu, allocated_before = torch.cuda.is_available(), 0
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        allocated_before = torch.cuda.memory_allocated()
    was_reset = _reset()
    peak.before = _status("VmRSS")
    yield peak
    allocated = torch.cuda.max_memory_allocated() if gpu else 0
    if allocated > 0:
        peak.bytes, peak.kind, peak.before = allocated, "allocator", allocated_before
        return
    peak.bytes = _high_water_mark()
    peak.kind = "unknown" if peak.bytes == 0 else "resident" if was_reset else "process"


def _reset() -> bool:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _status(field: str) -> int:
    """Bytes of a field of Linux's process status; 0 where there is none."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * int(line.split()[1])
    return 0


def _high_water_mark() -> int:
    found = _status("VmHWM")
    if found:
        return found
    try:
        import resource
    except ImportError:
        return 0
    # Kilobytes, but bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
