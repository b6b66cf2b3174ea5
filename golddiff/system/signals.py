"""Signals that end a process, treated as Ctrl+C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and when the terminal closes (SIGHUP).

    Files are then cleaned up as after Ctrl+C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler)}
    closed = getattr(signal, "SIGHUP", None)  # Windows has none, and nohup ignores it
    if closed is not None and signal.getsignal(closed) is not signal.SIG_IGN:
        # As SIGTERM, which uvicorn takes over while it serves.
        previous[closed] = signal.signal(closed, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
