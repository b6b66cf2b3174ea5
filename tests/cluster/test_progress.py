"""Progress bars of shards in ``golddiff sample --cluster``."""

from types import SimpleNamespace

import pytest
import torch
from rich.progress import Progress

import golddiff
from golddiff.cli.cluster import answers_per_shard, shard_bar
from golddiff.store.images import ImageStore


class FakeShardedStore:
    """A stand-in for a sharded store whose shards answer on command."""

    def __init__(self, shards):
        self.paths = [f"s3://bucket/photos/shard-{i:05d}/" for i in range(shards)]
        self.pool = SimpleNamespace(missing={}, on_answer=None)

    def answer(self, shard):
        self.pool.on_answer(shard)


@pytest.fixture
def progress():
    return Progress(disable=True)


def test_shards_share_a_bar_that_names_the_slowest(progress):
    store = FakeShardedStore(25)
    shard_bar(progress, store, 2)
    (task,) = progress.tasks
    for _ in range(2):
        for shard in range(25):
            if shard != 7:
                store.answer(shard)
    assert (task.completed, task.description) == (0, "  slowest of 25 shards: shard-00007")
    store.pool.missing[store.paths[7]] = "its disk failed"
    store.answer(3)
    assert task.completed == 2
    assert "slowest of 24 shards" in task.description


def test_a_single_store_has_no_bars(progress, digits):
    assert isinstance(digits, ImageStore)
    shard_bar(progress, digits, 10)
    assert progress.tasks == []


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
@pytest.mark.parametrize("labels", [None, [0, 1, 0, 2, 2]])
def test_answers_per_shard_counts_the_denoiser_calls_of_a_run(digits, sampler, labels):
    calls = []

    class Counting(golddiff.Wiener):
        def denoise(self, x, sigma, label):
            calls.append(label)
            return super().denoise(x, sigma, label)

    golddiff.sample(
        Counting(digits), 5, 3, sampler, batch_size=2,
        labels=None if labels is None else torch.tensor(labels),
    )  # fmt: skip
    assert len(calls) == answers_per_shard(3, sampler, 5, 2, labels)
