"""Thread pools for the compiled kernels, which release the GIL."""

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

IN_FLIGHT = 3  # tasks per thread that are running, or finished but not consumed

_limits: list[Any] = []  # BLAS thread limits: the active one, then None for each later entry
_lock = threading.Lock()
_thread = threading.local()


def use_threads(count: int | None) -> None:
    """Set the number of threads for tasks, torch and NumPy's matrix products; None changes nothing.

    The setting is process-wide.
    """
    if count is None:
        return
    torch.set_num_threads(count)
    _libraries().limit(limits=count)


def keep_newest(cache: dict[Any, Any], most: int) -> None:
    """Delete the oldest entries above ``most``, which other threads may do at the same time."""
    for oldest in list(cache)[:-most]:
        cache.pop(oldest, None)


def map_ordered(
    function: Callable[[Task], Result], tasks: Iterable[Task], threads: int | None = None
) -> Iterator[Result]:
    """Run ``function`` on each task in parallel; yield results in task order.

    At most ``threads`` tasks run at once (None: torch's number of threads), and at most
    ``IN_FLIGHT * threads + 1`` results are in memory. Results are bitwise independent of
    ``threads`` if the division into tasks is. Inside a task, a nested call and NumPy's matrix
    products run on the task's own thread.
    """
    items = list(tasks)
    available = torch.get_num_threads()
    threads = available if threads is None else threads
    workers = min(threads, len(items))
    if getattr(_thread, "busy", False):
        yield from map(function, items)
        return

    def work(item: Task) -> Result:
        _thread.busy = True  # a nested call that waits for its own pool could deadlock
        return function(item)

    with single_threaded_blas():  # for one task too: a product's last digits follow its threads
        if workers <= 1:
            yield from map(function, items)
            return
        # All calls share a pool. If fewer tasks may run than it has threads, only so many are
        # submitted at a time.
        most = workers if threads < available else IN_FLIGHT * workers
        yield from iterate_in_order(_pool(available), work, items, most)


def iterate_in_order(
    pool: ThreadPoolExecutor, function: Callable[[Task], Result], tasks: Iterable[Task], most: int
) -> Iterator[Result]:
    """Yield results in task order; at most ``most`` tasks are running or not yet consumed."""
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            if len(waiting) >= most:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, task))
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Tasks that have started may still write to the caller's arrays.
        wait([future for future in waiting if not future.cancel()])


def for_each(function: Callable[[Task], object], tasks: Iterable[Task]) -> None:
    """Run ``function`` on each task for its side effects; see :func:`map_ordered`."""
    deque(map_ordered(function, tasks), maxlen=0)


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Limit matrix products to one thread inside the block.

    With threads of their own, the products of parallel tasks wait for each other: 64 tasks with
    products of 128 x 12,288 numbers took 3 s each instead of 0.1 s. The limit is process-wide:
    the first block sets it, and the last block to end restores it.
    """
    with _lock:
        _limits.append(_libraries().limit(limits=1) if not _limits else None)
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop() if _limits else None  # the list is empty after a fork
            if limit is not None:  # the first entry: no other block is active
                limit.restore_original_limits()


@cache
def _libraries() -> Any:
    """The BLAS libraries loaded so far; cached because the search takes milliseconds."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController().select(user_api="blas")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """A pool that is kept, because starting threads takes as long as a small step."""
    return ThreadPoolExecutor(threads, "golddiff")


def _reset_after_fork() -> None:
    """Reset a forked process: it has no worker threads, and torch would wait for them."""
    torch.set_num_threads(1)
    global _lock
    _pool.cache_clear()
    _lock = threading.Lock()
    if _limits:
        _limits[0].restore_original_limits()
        _limits.clear()
    _thread.busy = False


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reset_after_fork)
