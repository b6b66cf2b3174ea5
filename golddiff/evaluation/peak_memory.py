"""Peak memory of a block of code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from golddiff.system.memory import peak_resident, process_memory

_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): "reset the peak resident set size"


@dataclass
class PeakMemory:
    """The result of :func:`peak_memory`, filled in when its block ends."""

    bytes: int = 0  # the peak
    # What was measured. "allocator": GPU tensors of torch's allocator. "resident": resident memory
    # of the process during the block, with interpreter, libraries and mapped pages of the store.
    # "process": resident memory since the process started, where the system cannot reset the
    # counter (not Linux). "unknown": the system does not report it, and bytes is 0
    kind: str = "unknown"
    before: int = 0  # memory in use when the block began; 0 if unknown


@contextlib.contextmanager
def peak_memory() -> Iterator[PeakMemory]:
    """Measure the block's peak memory: GPU memory if the block uses a GPU, else resident memory."""
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
    # A network that waits on the GPU is not the block's.
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > before:
        peak.bytes, peak.kind, peak.before = torch.cuda.max_memory_allocated(), "allocator", before
        return
    peak.bytes = peak_resident()
    peak.kind = kind if peak.bytes else "unknown"
