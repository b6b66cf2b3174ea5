"""Tasks over threads: results in order, within tasks too, after errors and in forked processes."""

import contextlib
import os
import signal
import threading

import pytest
import torch
from threadpoolctl import threadpool_limits

from golddiff import GoldDiff, Optimal, sample
from golddiff.system.parallel import _libraries, for_each, map_ordered, use_threads


def threads_of_products():
    """Of the libraries that were loaded when first looked for; other tests load more."""
    return {library["num_threads"] for library in _libraries().info()}


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_tasks():
    assert list(map_ordered(lambda n: n * n, range(50))) == [n * n for n in range(50)]


def test_tasks_may_have_tasks_of_their_own():
    def rows(n):
        return list(map_ordered(lambda m: n * m, range(20)))

    assert list(map_ordered(rows, range(20))) == [[n * m for m in range(20)] for n in range(20)]


def test_each_task_is_done_once():
    done = []
    for_each(lambda n: for_each(lambda m: done.append((n, m)), range(3)), range(100))
    assert sorted(done) == [(n, m) for n in range(100) for m in range(3)]


def test_after_an_error_nothing_runs_any_more_and_no_task_begins():
    running, begun = [], []
    gate = threading.Event()

    def work(n):
        begun.append(n)
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
    assert len(begun) < 100
    assert list(map_ordered(str, range(3))) == ["0", "1", "2"]


def test_a_forked_process_has_threads_of_its_own():
    list(map_ordered(str, range(10)))
    child = os.fork()
    if child == 0:
        os._exit(0 if list(map_ordered(str, range(10))) == list(map(str, range(10))) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_products_within_tasks_have_no_threads_of_their_own():
    with threadpool_limits(2, user_api="blas"):
        inside = list(map_ordered(lambda _: threads_of_products(), range(8)))
        assert inside == [{1}] * 8
        assert threads_of_products() == {2}


def test_products_have_their_threads_again_once_the_last_of_several_runs_is_over():
    with threadpool_limits(2, user_api="blas"):
        first, second = map_ordered(str, range(8)), map_ordered(str, range(8))
        next(first), next(second)
        assert list(first) == list("1234567")
        assert threads_of_products() == {1}
        second.close()
        assert threads_of_products() == {2}


def test_threads_are_those_of_tasks_and_of_products():
    with threadpool_limits(2, user_api="blas"):
        use_threads(1)
        assert torch.get_num_threads() == 1
        assert threads_of_products() == {1}


def test_a_forked_process_does_not_wait_for_torch_s_threads(make_store, smooth_images):
    denoiser = GoldDiff(Optimal(make_store(smooth_images(200, (3, 16, 16)))))
    expected = sample(denoiser, 64, steps=2).images
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # it would wait for ever
        with contextlib.suppress(BaseException):
            os._exit(0 if torch.equal(sample(denoiser, 64, steps=2).images, expected) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
