"""Resident memory while a block runs, its own and that of mapped files apart."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

EVERY = 0.02  # seconds

FIELDS = {"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "files"}


def now() -> dict[str, int]:
    """Bytes resident: in all, anonymous, of mapped files; empty where the system does not tell."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in FIELDS:
                found[FIELDS[name]] = 1024 * int(value.split()[0])
    return found


@contextlib.contextmanager
def watched() -> Iterator[dict[str, int]]:
    """The most of each of :func:`now` during the block, looked at fifty times a second."""
    peak = now()
    stop = threading.Event()

    def look() -> None:
        for name, size in now().items():
            peak[name] = max(peak.get(name, 0), size)

    def watch() -> None:
        while not stop.wait(EVERY):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
        look()


def disk_bytes() -> int | None:
    """Bytes that this process has had read from disks so far; None where the system tells not."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    return None
