"""An object in a process of its own: its memory is its own, its modules disturb nobody's."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from golddiff.system.errors import ArgumentError, GoldDiffError, StoreError
from golddiff.system.parallel import use_threads


class Process:
    """An object that is made in another process, whose methods are called through a pipe.

    It starts at once; use it as a context, at whose end the process ends.

    Args:
        name: of it, in front of its errors.
        make: makes the object from ``spec``; a function of a module.
        spec: plain values.
        threads: that it uses.

    Raises:
        GoldDiffError: whatever the object raises, with its name in front.
    """

    def __init__(self, name: str, make: Callable[[Any], object], spec: Any, threads: int) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(
            target=serve, args=(make, spec, threads, there), daemon=True
        )
        # Read when torch and tqdm are imported, which is before ``serve`` runs: the threads of
        # libraries that a peer loads, and a peer's bars, which would run through ours.
        with environment(OMP_NUM_THREADS=str(threads), TQDM_DISABLE="1"):
            self._process.start()
        there.close()  # so that its end is noticed here

    def __enter__(self) -> Process:
        try:
            self._answer()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def ask(self, method: str, *arguments: Any) -> Any:
        """What a method of the object returns."""
        self._pipe.send((method, arguments))
        return self._answer()

    def _answer(self) -> Any:
        try:
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(timeout=5)
            raise ArgumentError(
                f"{self.name}: its process ended (exit code {self._process.exitcode}); "
                "out of memory?"
            ) from None
        if kind is not None:
            raise kind(f"{self.name}: {answer}")
        return answer


def serve(make: Callable[[Any], object], spec: Any, threads: int, pipe: Connection) -> None:
    """The other process: make the object, then answer until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    use_threads(threads)
    try:
        made = make(spec)
        pipe.send((None, None))
        while True:
            method, arguments = pipe.recv()
            pipe.send((None, getattr(made, method)(*arguments)))
    except (EOFError, BrokenPipeError):
        return  # nobody asks any more
    except GoldDiffError as error:
        kind = StoreError if isinstance(error, StoreError) else ArgumentError
        pipe.send((kind, str(error)))
    except Exception as error:
        # A peer's code can fail in any way; its last line tells the user most.
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        pipe.send((ArgumentError, text))


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Other variables of the environment during the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
