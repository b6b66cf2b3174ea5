"""Tasks on threads: ordered results, nested tasks, errors, forks, and threads of libraries."""

import contextlib
import os
import signal
import threading

import pytest
import torch
from threadpoolctl import threadpool_limits

from golddiff import GoldDiff, Optimal, sample
from golddiff.system.parallel import _libraries, for_each, map_ordered, use_threads

pytestmark = pytest.mark.usefixtures("two_threads")


def blas_threads():
    """Thread counts of the libraries known at first use; other tests may load more."""
    return {library["num_threads"] for library in _libraries().info()}


def test_results_come_in_the_order_of_the_tasks():
    assert list(map_ordered(lambda n: n * n, range(50))) == [n * n for n in range(50)]


def test_tasks_may_run_tasks():
    def multiples(n):
        return list(map_ordered(lambda m: n * m, range(20)))

    products = [[n * m for m in range(20)] for n in range(20)]
    assert list(map_ordered(multiples, range(20))) == products


@pytest.mark.parametrize("threads", [1, 2, 5, None])
def test_at_most_the_given_number_of_tasks_run_at_once(threads):
    torch.set_num_threads(5)  # the fixture restores it
    running, most, lock = set(), 0, threading.Lock()

    def work(n):
        nonlocal most
        with lock:
            running.add(n)
            most = max(most, len(running))
        threading.Event().wait(0.005)
        with lock:
            running.remove(n)
        return n

    assert list(map_ordered(work, range(40), threads)) == list(range(40))
    assert most <= (threads or 5)


def test_each_task_runs_once():
    done = []
    for_each(lambda n: for_each(lambda m: done.append((n, m)), range(3)), range(100))
    assert sorted(done) == [(n, m) for n in range(100) for m in range(3)]


def test_after_an_error_no_task_runs_or_starts():
    running, started = [], []
    gate = threading.Event()

    def work(n):
        started.append(n)
        if n == 0:
            gate.wait(10)
            raise KeyError(n)
        running.append(n)
        gate.set()
        threading.Event().wait(0.05)
        running.remove(n)

    with pytest.raises(KeyError):
        for_each(work, range(100))
    assert not running
    assert len(started) < 100
    assert list(map_ordered(str, range(3))) == ["0", "1", "2"]


def test_a_forked_process_starts_its_own_threads():
    list(map_ordered(str, range(10)))
    child = os.fork()
    if child == 0:
        os._exit(0 if list(map_ordered(str, range(10))) == list(map(str, range(10))) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("tasks", "threads"), [(8, None), (8, 1), (1, None)])
def test_blas_uses_one_thread_within_tasks(tasks, threads):
    with threadpool_limits(2, user_api="blas"):
        counts = list(map_ordered(lambda _: blas_threads(), range(tasks), threads))
        assert counts == [{1}] * tasks
        assert blas_threads() == {2}


def test_blas_threads_return_after_the_last_of_several_runs():
    with threadpool_limits(2, user_api="blas"):
        first, second = map_ordered(str, range(8)), map_ordered(str, range(8))
        next(first), next(second)
        assert list(first) == list("1234567")
        assert blas_threads() == {1}
        second.close()
        assert blas_threads() == {2}


def test_use_threads_sets_the_threads_of_torch_and_blas():
    with threadpool_limits(2, user_api="blas"):
        use_threads(1)
        assert torch.get_num_threads() == 1
        assert blas_threads() == {1}


def test_sampling_in_a_forked_process_does_not_hang(make_store, smooth_images):
    denoiser = GoldDiff(Optimal(make_store(smooth_images(200, (3, 16, 16)))))
    expected = sample(denoiser, 64, steps=2).images
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a hung child
        with contextlib.suppress(BaseException):
            os._exit(0 if torch.equal(sample(denoiser, 64, steps=2).images, expected) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
