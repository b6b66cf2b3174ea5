"""Threads for the compiled kernels, which release the interpreter lock while they run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")

IN_FLIGHT = 3  # tasks running or finished and not yet taken, for each thread


def results_held() -> int:
    """The most results of :func:`in_order` that are in memory at once."""
    return IN_FLIGHT * torch.get_num_threads() + 1


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """Run ``function`` on each task with as many threads as torch uses; results in task order.

    How the work is cut into tasks must not depend on the number of threads: then neither do the
    results, to the last bit.
    """
    items = list(tasks)
    workers = min(torch.get_num_threads(), len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        # Only so many at a time: results wait in memory until they are taken.
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                if len(waiting) >= IN_FLIGHT * workers:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(function, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
