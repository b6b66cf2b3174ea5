"""The most memory that a run held at one time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from golddiff.system.memory import peak_resident, process_memory

_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): "reset the peak resident set size"


@dataclass
class PeakMemory:
    """Filled in when the block of :func:`peak_memory` ends."""

    bytes: int = 0  # the peak
    # What it is the peak of. "allocator": the GPU tensors of torch's allocator. "resident": the
    # process's resident memory during the block, all of it: interpreter, libraries and the mapped
    # pages of the store included. "process": the same since the process started, where the system
    # cannot reset the counter (not Linux). "unknown": no system call here gives it; bytes is 0
    kind: str = "unknown"
    before: int = 0  # what was held already when the block began, 0 where that is not known

    def figures(self) -> dict[str, int | str]:
        """The same for JSON."""
        return asdict(self)


@contextlib.contextmanager
def peak_memory() -> Iterator[PeakMemory]:
    """Measure the block's peak memory: a GPU's where the block uses one, otherwise resident."""
    peak, before = PeakMemory(), 0
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    kind = "process"
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)
        kind = "resident"
    peak.before = process_memory().get("VmRSS", 0)
    yield peak
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        peak.bytes, peak.kind, peak.before = torch.cuda.max_memory_allocated(), "allocator", before
        return
    peak.bytes = peak_resident()
    peak.kind = kind if peak.bytes else "unknown"
