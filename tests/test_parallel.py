"""Tasks on threads: ordered results, nested tasks, errors, forks, and threads of libraries."""

import contextlib
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from golddiff import PCA, AdaptiveSchedule, GoldDiff, Optimal, PSPCSquare, Wiener, sample
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


class Emptied(dict):
    """A cache whose entries other threads delete at once, between any two lines."""

    def __setitem__(self, key, value):
        pass

    def __len__(self):
        return 200

    def __iter__(self):
        return iter(range(200))


def test_what_other_threads_delete_from_a_cache_is_not_missed(make_store, smooth_images):
    store = make_store(smooth_images(60, (1, 9, 9)), torch.arange(60) % 2)
    x = store.images([1, 2]) + 0.5
    measured = Wiener(store).given_measurement(lambda v: v[..., :2, :2], x[..., :2, :2], 0.1)
    adaptive = GoldDiff(PCA(store), AdaptiveSchedule()).schedule
    expected = [store.factor(0).mean, PCA(store)(x, 1.0), measured(x, 1.0)]
    estimator = PCA(store)
    estimator._ready, measured._conditioned, adaptive._comparisons = Emptied(), Emptied(), Emptied()
    store.factors._computed = Emptied()
    found = [store.factor(0).mean, estimator(x, 1.0), measured(x, 1.0)]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert adaptive.comparison(1.0)


def test_threads_call_one_denoiser_at_many_noise_levels(make_store, smooth_images):
    """Regression: KeyError or RuntimeError where two threads deleted the oldest level."""
    denoiser, end = PSPCSquare(make_store(smooth_images(20, (1, 4, 4))), 3), time.monotonic() + 1

    def call(seed):
        generator = np.random.default_rng(seed)
        while time.monotonic() < end:
            denoiser.ready(generator.random())
            denoiser.working_bytes(20)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(4)))
    finally:
        sys.setswitchinterval(interval)


def test_a_call_in_one_thread_does_not_wait_for_another(make_store, smooth_images):
    """Regression: on Python 3.11 all calls of Wiener and GaussianMixture shared a lock."""
    store, started, go_on = make_store(smooth_images(20)), threading.Event(), threading.Event()

    class Slow(Wiener):
        def gaussians(self, prior):
            started.set()
            go_on.wait()
            return super().gaussians(prior)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(Slow(store).denoise, store.values(np.arange(1)), 1.0, None)
        started.wait()
        try:
            pool.submit(Wiener(store), store.images([1]), 1.0).result(timeout=30)
        finally:
            go_on.set()
