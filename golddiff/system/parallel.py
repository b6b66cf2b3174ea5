"""Threads for the compiled kernels, which release the interpreter lock while they run."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")

IN_FLIGHT = 8  # tasks running, or finished and not yet taken, for each thread

_pools: dict[int, ThreadPoolExecutor] = {}
_limits: list[Any] = []  # of matrix products: the one that holds, then None for each who came since
_lock = threading.Lock()
_here = threading.local()


def use_threads(count: int | None) -> None:
    """So many threads in this process: tasks', torch's, and those of NumPy's matrix products.

    None: as many as before.
    """
    if count is None:
        return
    torch.set_num_threads(count)
    _libraries().limit(limits=count)


def results_held(in_flight: int = IN_FLIGHT) -> int:
    """The most results of :func:`map_ordered` that are in memory at once."""
    return in_flight * torch.get_num_threads() + 1


def map_ordered(
    function: Callable[[Task], Result], tasks: Iterable[Task], in_flight: int = IN_FLIGHT
) -> Iterator[Result]:
    """Run ``function`` on each task with as many threads as torch uses; results in task order.

    How the work is cut into tasks must not depend on the number of threads: then neither do the
    results, to the last bit. Within a task it runs on the task's own thread, and so do NumPy's
    matrix products.
    """
    items = list(tasks)
    workers = min(torch.get_num_threads(), len(items))
    if workers <= 1 or getattr(_here, "busy", False):
        yield from map(function, items)
        return

    def work(item: Task) -> Result:
        _here.busy = True  # one that waits for others of its pool could wait for ever
        return function(item)

    with products_alone():
        yield from in_turn(_pool(torch.get_num_threads()), work, items, in_flight * workers)


def in_turn(
    pool: ThreadPoolExecutor, function: Callable[[Task], Result], tasks: Iterable[Task], most: int
) -> Iterator[Result]:
    """Results of tasks in their order; at most ``most`` tasks run, or wait until they are taken."""
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            if len(waiting) >= most:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, task))
        while waiting:
            yield waiting.popleft().result()
    finally:
        # What runs already may still write to the caller's arrays.
        wait([future for future in waiting if not future.cancel()])


def for_each(function: Callable[[Task], object], tasks: Iterable[Task]) -> None:
    """Run ``function``, which keeps what it makes itself, on each task; see :func:`map_ordered`."""
    deque(map_ordered(function, tasks), maxlen=0)


@contextlib.contextmanager
def products_alone() -> Iterator[None]:
    """While any tasks run, matrix products have no threads of their own.

    They would wait for those of other tasks: of 64 tasks with products of 128 x 12,288 numbers each
    took three seconds instead of a tenth. The limit is the whole process's, so those who come while
    it holds leave it alone, and the last to go lifts it.
    """
    with _lock:
        _limits.append(_libraries().limit(limits=1) if not _limits else None)
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop() if _limits else None  # none in a process that was forked
            if limit is not None:  # the first one's: nobody is left
                limit.restore_original_limits()


@cache
def _libraries() -> Any:
    """The libraries for matrix products that are loaded by now; to look takes milliseconds."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController().select(user_api="blas")


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay: starting some takes as long as a small step."""
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads, "golddiff")
        return _pools[threads]


def _forget() -> None:
    """In a process that was forked: threads are not, and torch would wait for its own for ever."""
    torch.set_num_threads(1)
    global _lock
    _pools.clear()
    _lock = threading.Lock()
    if _limits:
        _limits[0].restore_original_limits()
        _limits.clear()
    _here.busy = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
