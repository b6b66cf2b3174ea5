"""Peak memory of a process."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path


def peak_resident() -> int:
    """The most bytes of memory that this process had resident so far.

    That includes the pages of mapped files (a store's) that it touched. From Linux's VmHWM where
    there is one: ``ru_maxrss`` also keeps the peak of the process that started this one.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
