"""A side in a process of its own: its memory is its own, and its modules disturb nobody's."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.errors import ArgumentError, GoldDiffError, StoreError
from golddiff.store.images import ImageStore
from golddiff.system.parallel import use_threads
from golddiff_lab.race.memory import peak_resident
from golddiff_lab.race.side import Check, SideSpec, make_side
from golddiff_lab.race.work import Work


class Remote:
    """A side that runs in another process, asked through a pipe.

    Use as a context; the process ends with it.

    Attributes:
        spec: what was asked for.
        opened: bytes resident at most once the package was imported and the store was open.
        images, warm_up: see :class:`golddiff_lab.race.side.Side`.

    Raises:
        GoldDiffError: whatever the side raises, with its name in front.
    """

    def __init__(self, spec: SideSpec) -> None:
        self.spec = spec
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=serve, args=(spec, there), daemon=True)
        # Read when torch and tqdm are imported, which is before ``serve`` runs: the threads of
        # libraries that a peer loads, and a peer's bars, which would run through ours.
        with environment(OMP_NUM_THREADS=str(spec.threads), TQDM_DISABLE="1"):
            self._process.start()
        there.close()  # so that its end is noticed here
        self.opened: int
        self.images: int | None
        self.warm_up: bool

    def __enter__(self) -> Remote:
        try:
            self.opened, self.images, self.warm_up = self._answer()
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

    def step(
        self, x: torch.Tensor, sigma: float, which: str = "step"
    ) -> tuple[float, torch.Tensor]:
        """Seconds of one step of the whole batch, and its output.

        Args:
            x: (B, *shape).
            sigma: noise level.
            which: "step", or the "half" or "quarter" of one.
        """
        seconds, out = self._ask(which, x.numpy(), sigma)
        return seconds, torch.from_numpy(out)

    def work(self, x: torch.Tensor, sigma: float) -> Work | None:
        """Operations and bytes of that step, where they are known."""
        work: Work | None = self._ask("work", x.numpy(), sigma)
        return work

    def describe(self, sigma: float) -> str | None:
        """The side's own words about a step at sigma."""
        text: str | None = self._ask("describe", None, sigma)
        return text

    def peak(self) -> int:
        """The most bytes resident so far."""
        peak: int = self._ask("peak", None, 0.0)
        return peak

    def check(self, x: torch.Tensor, sigma: float) -> tuple[float, str] | None:
        """Largest difference between a peer and ours where their maths is the same; what it is."""
        answer: tuple[float, str] | None = self._ask("check", x.numpy(), sigma)
        return answer

    def _ask(self, *question: Any) -> Any:
        self._pipe.send(question)
        return self._answer()

    def _answer(self) -> Any:
        try:
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(timeout=5)
            raise ArgumentError(
                f"{self.spec.name}: its process ended (exit code {self._process.exitcode}); "
                "out of memory?"
            ) from None
        if kind is not None:
            raise kind(f"{self.spec.name}: {answer}")
        return answer


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


def serve(spec: SideSpec, pipe: Connection) -> None:
    """The other process: make the side, then answer questions until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    use_threads(spec.threads)
    try:
        side = Answering(spec)
        pipe.send((None, side.about))
        while True:
            what, array, sigma = pipe.recv()
            pipe.send((None, side.answer(what, array, sigma)))
    except (EOFError, BrokenPipeError):
        return  # nobody asks any more
    except GoldDiffError as error:
        kind = StoreError if isinstance(error, StoreError) else ArgumentError
        pipe.send((kind, str(error)))
    except Exception as error:
        # A peer's code can fail in any way; its last line tells the user most.
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        pipe.send((ArgumentError if spec.peer is not None else RuntimeError, text))


class Answering:
    """A side that answers questions by name.

    Attributes:
        about: peak memory with the store open, images scanned, whether to warm up.
    """

    def __init__(self, spec: SideSpec) -> None:
        store = ImageStore.open(spec.store)
        opened = peak_resident()
        self._side = make_side(spec, store)
        self._check: Check | None = None
        self.about = opened, self._side.images, self._side.warm_up

    def answer(self, what: str, array: NDArray[np.float32] | None, sigma: float) -> Any:
        """What a question asks: see the methods of :class:`Remote`."""
        side = self._side
        x = torch.empty(0) if array is None else torch.from_numpy(array)
        if what == "work":
            return side.work(x, sigma)
        if what == "describe":
            return side.describe(sigma)
        if what == "peak":
            return peak_resident()
        if what == "check":
            if side.check is None:
                return None
            if self._check is None:
                self._check = side.check()
            difference = self._check.theirs(x, sigma) - self._check.ours(x, sigma)
            return float(difference.abs().max()), self._check.text
        step = getattr(side, what)
        start = time.perf_counter()
        out = step(x, sigma)
        return time.perf_counter() - start, out.numpy()
