"""A side of a race in its own process, so that its memory and imported modules are separate."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from golddiff.denoiser import Denoiser
from golddiff.estimators.registry import create
from golddiff.sampling import sample
from golddiff.store.images import ImageStore
from golddiff.support import TiledSupport
from golddiff.system.errors import ArgumentError, GoldDiffError, StoreError
from golddiff.system.memory import peak_resident
from golddiff.system.numbers import F32
from golddiff.system.parallel import use_threads
from golddiff_lab.peers import PEERS
from golddiff_lab.sides import SideSpec, Step
from golddiff_lab.timing import Timed, timed


class RunningSide:
    """A side in its own process, which times its steps and returns picklable values."""

    def __init__(self, spec: SideSpec) -> None:
        store = ImageStore.open(spec.store, spec.memory_limit)
        self._opened = peak_resident()
        self._step: Step
        if spec.name in PEERS:
            self._step = PEERS[spec.name].make(spec, store)
        else:
            self._step = create(spec.name, store, spec.settings.of(spec.name), spec.seed)

    def step(self, x: F32, sigma: float) -> Timed:
        """One step of the whole batch (B, *shape)."""
        queries = torch.from_numpy(x)
        return timed(lambda: self._step(queries, sigma).numpy())

    def run(self, images: int, steps: int, seed: int) -> Timed:
        """A whole DDIM run of the given number of images."""
        denoiser: Any = self._step
        return timed(
            lambda: sample(denoiser, images, steps, seed=seed, trajectory=False).images.numpy()
        )

    def weighed(self, x: F32, sigma: float) -> float | None:
        """Mean number of images in a query's support; tiled supports count distinct images."""
        if not isinstance(self._step, Denoiser):
            return None
        try:
            queries = x.reshape(len(x), -1)
            _, supports = self._step.estimator_supports(queries, sigma, None)
        except ArgumentError:
            return None  # it weighs no images, or does not report its supports
        return float(
            np.mean([len(s.rows) if isinstance(s, TiledSupport) else len(s) for s in supports])
        )

    def memory(self) -> dict[str, int]:
        """Largest resident bytes until the store was open (``opened``), and so far (``peak``)."""
        return {"opened": self._opened, "peak": peak_resident()}


class Process:
    """A :class:`RunningSide` in another process, whose methods are called through a pipe.

    The process starts immediately. Used as a context manager, it is stopped at the end.

    Raises:
        GoldDiffError: any error of the side, prefixed with its name.
    """

    def __init__(self, spec: SideSpec) -> None:
        self.name = spec.name
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(target=serve, args=(spec, child_pipe), daemon=True)
        # Set before torch and tqdm are imported in the child: limits threads of the libraries
        # that a peer loads, and hides its progress bars, which would mix with ours.
        with patch.dict(os.environ, OMP_NUM_THREADS=str(spec.threads), TQDM_DISABLE="1"):
            self._process.start()
        child_pipe.close()  # otherwise reading here would not fail when the process ends

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
        """Stop the process."""
        self._pipe.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the side and return its result."""
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


def serve(spec: SideSpec, pipe: Connection) -> None:
    """Main function of the child process: create the side, serve calls until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops this process
    use_threads(spec.threads)
    try:
        side = RunningSide(spec)
        pipe.send((None, None))
        while True:
            method, arguments = pipe.recv()
            pipe.send((None, getattr(side, method)(*arguments)))
    except (EOFError, BrokenPipeError):
        return  # the parent closed the pipe
    except GoldDiffError as error:
        kind = StoreError if isinstance(error, StoreError) else ArgumentError
        pipe.send((kind, str(error)))
    except Exception as error:
        # A peer's code may raise anything; the innermost line is the most useful to the user.
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        pipe.send((ArgumentError, text))
