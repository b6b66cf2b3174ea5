"""What ``golddiff sample --cluster`` shows of each shard while it works."""

from types import SimpleNamespace

import pytest
import torch
from rich.progress import Progress

import golddiff
from golddiff.cli.cluster import BARS, answers_per_shard, shard_bars
from golddiff.store.images import ImageStore


class Sharded:
    """Stands for a store whose shards answer when they are told to."""

    def __init__(self, shards):
        self.paths = [f"s3://bucket/photos/shard-{i:05d}/" for i in range(shards)]
        self.pool = SimpleNamespace(missing={}, on_answer=None)

    def answer(self, shard):
        self.pool.on_answer(shard)


@pytest.fixture
def bar():
    return Progress(disable=True)


def test_a_few_shards_have_a_bar_each(bar):
    store = Sharded(3)
    shard_bars(bar, store, 10)
    assert [task.description for task in bar.tasks] == [f"  shard-0000{i}" for i in range(3)]
    for shard in (0, 0, 2):
        store.answer(shard)
    assert [(task.completed, task.total) for task in bar.tasks] == [(2, 10), (0, 10), (1, 10)]


def test_of_many_shards_the_slowest_is_named(bar):
    store = Sharded(BARS + 1)
    shard_bars(bar, store, 2)
    (task,) = bar.tasks
    for _ in range(2):
        for shard in range(BARS + 1):
            if shard != 7:
                store.answer(shard)
    assert (task.completed, task.description) == (0, f"  slowest of {BARS + 1} shards: shard-00007")
    store.pool.missing[store.paths[7]] = "its disk failed"
    store.answer(3)
    assert task.completed == 2
    assert f"slowest of {BARS} shards" in task.description


def test_a_store_that_lies_here_has_none(bar, digits):
    assert isinstance(digits, ImageStore)
    shard_bars(bar, digits, 10)
    assert bar.tasks == []


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
@pytest.mark.parametrize("labels", [None, [0, 1, 0, 2, 2]])
def test_each_shard_answers_as_often_as_a_run_asks(digits, sampler, labels):
    asked = []

    class Counting(golddiff.Wiener):
        def denoise(self, x, sigma, label):
            asked.append(label)
            return super().denoise(x, sigma, label)

    golddiff.sample(
        Counting(digits), 5, 3, sampler, batch_size=2,
        labels=None if labels is None else torch.tensor(labels),
    )  # fmt: skip
    assert len(asked) == answers_per_shard(3, sampler, 5, 2, labels)
