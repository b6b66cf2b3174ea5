"""A side in a process of its own: its memory is its own, and its modules disturb nobody's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from golddiff.bench.memory import peak_resident
from golddiff.bench.side import SideSpec, make_side
from golddiff.bench.work import Work
from golddiff.errors import ArgumentError, GoldDiffError, StoreError
from golddiff.store import ImageStore


class Remote:
    """A side that runs in another process, asked through a pipe.

    Use as a context; the process ends with it.

    Attributes:
        spec: what was asked for.
        opened: bytes resident at most once the package was imported and the store was open.
        images: see :class:`golddiff.bench.side.Side`; None for all.

    Raises:
        GoldDiffError: whatever the side raises, with its name in front.
    """

    def __init__(self, spec: SideSpec) -> None:
        self.spec = spec
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=serve, args=(spec, there), daemon=True)
        self._process.start()
        there.close()  # so that its end is noticed here
        self.opened: int
        self.images: int | None

    def __enter__(self) -> Remote:
        try:
            self.opened, self.images = self._answer()
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


def serve(spec: SideSpec, pipe: Connection) -> None:
    """The other process: make the side, then answer questions until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)  # for libraries that a peer loads
    os.environ["TQDM_DISABLE"] = "1"  # a peer's bars would run through ours
    torch.set_num_threads(spec.threads)
    try:
        store = ImageStore.open(spec.store)
        opened = peak_resident()
        side = make_side(spec, store)
        pipe.send((None, (opened, side.images)))
        check = None
        while True:
            what, array, sigma = pipe.recv()
            x = torch.empty(0) if array is None else torch.from_numpy(array)
            answer: Any = None
            if what in ("step", "half", "quarter"):
                step = getattr(side, what)
                start = time.perf_counter()
                out = step(x, sigma)
                answer = time.perf_counter() - start, out.numpy()
            elif what == "work":
                answer = side.work(x, sigma)
            elif what == "describe":
                answer = side.describe(sigma)
            elif what == "peak":
                answer = peak_resident()
            elif side.check is not None:
                check = side.check() if check is None else check
                difference = check.theirs(x, sigma) - check.ours(x, sigma)
                answer = float(difference.abs().max()), check.text
            pipe.send((None, answer))
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
