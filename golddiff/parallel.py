"""Threads for the compiled kernels, which release the interpreter lock while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


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
        yield from pool.map(function, items)
