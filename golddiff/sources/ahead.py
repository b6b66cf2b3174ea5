"""Working a little ahead of the reader, in order and in bounded memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.base import Batch

Job = TypeVar("Job")
Result = TypeVar("Result")


def worker_count() -> int:
    """Threads worth using: one a core, at least 2 to overlap reading, at most 4."""
    return max(2, min(4, os.cpu_count() or 2))


def ahead(
    function: Callable[[Job], Result], jobs: Iterable[Job], workers: int | None = None
) -> Iterator[Result]:
    """Yield ``function(job)`` for each job in order, computed by a few threads ahead.

    At most ``workers + 2`` results exist at a time, so memory stays bounded however slow the
    reader is. An error of ``function`` is raised in its job's place.
    """
    workers = workers or worker_count()
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for job in jobs:
                pending.append(pool.submit(function, job))
                if len(pending) > workers + 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def rebatch(
    pieces: Iterable[tuple[NDArray[np.generic], NDArray[np.int64] | None]], size: int
) -> Iterator[Batch]:
    """Cut and join pieces of any lengths into batches of ``size`` (the last may be shorter).

    Args:
        pieces: pairs of pixels (b, *shape) and labels (b,) or None, b >= 0.
        size: examples a batch, at least 1.
    """
    held: list[tuple[NDArray[np.generic], NDArray[np.int64] | None]] = []
    count = 0
    for pixels, labels in pieces:
        start = 0
        while start < len(pixels):
            stop = min(len(pixels), start + size - count)
            held.append((pixels[start:stop], None if labels is None else labels[start:stop]))
            count += stop - start
            start = stop
            if count == size:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(held: list[tuple[NDArray[np.generic], NDArray[np.int64] | None]]) -> Batch:
    pixels = np.concatenate([piece for piece, _ in held])
    labels = [piece for _, piece in held if piece is not None]
    return Batch(pixels, np.concatenate(labels) if labels else None)
