"""Processes and machines that die, shards that are gone, shards that are slow. Real Ray nodes."""

import itertools
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

import golddiff
from golddiff.cluster import ShardedStore
from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.manifest import identity_of
from golddiff.store import ImageStore

from .conftest import part

TOLERANCE = 1e-5


def cut_in_three(digits, folder):
    borders = (0, 500, 1100, digits.n)
    return [
        part(digits, slice(a, b), folder / f"part-{i}")
        for i, (a, b) in enumerate(itertools.pairwise(borders))
    ]


@pytest.fixture(scope="module")
def shards(digits, tmp_path_factory):
    """Three shards of the digits."""
    return cut_in_three(digits, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def store(cluster, shards):
    with ShardedStore.open(shards, patience=60.0) as opened:
        yield opened


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)


def during(step, action):
    """An ``on_step`` that acts once, after so many steps."""
    done = []

    def on_step(images):
        done.append(images)
        if len(done) == step:
            action()

    return on_step


def test_a_run_survives_a_killed_worker(store, digits):
    one, many = (golddiff.GoldDiff(golddiff.PCA(s)) for s in (digits, store))
    expected = golddiff.sample(one, 3, steps=10)
    before, victim = dict(store.pids), store.paths[1]
    found = golddiff.sample(many, 3, steps=10, on_step=during(4, lambda: kill(before[victim])))
    changed = [path for path, pid in store.pids.items() if pid != before[path]]
    assert changed == [victim]
    assert store.share == found.share == 1
    assert float((found.trajectory - expected.trajectory).abs().max()) <= TOLERANCE


def test_a_worker_killed_within_a_step_does_it_again(store, digits):
    x = digits.images([3, 900]) + 1.0
    expected = golddiff.PCA(digits)(x, 1.0)
    denoiser, before, killed = golddiff.PCA(store), dict(store.pids), []

    def on_answer(shard):  # the first that answers has another killed, at work or just done
        if not killed:
            killed.append(store.paths[(shard + 1) % 3])
            kill(store.pids[killed[0]])

    store.watch(on_answer)
    for _ in range(2):
        assert torch.allclose(denoiser(x, 1.0), expected, atol=TOLERANCE)
    store.watch(lambda shard: None)
    assert store.pids[killed[0]] != before[killed[0]]


def test_a_slow_shard_does_not_hold_up_the_others(store, digits):
    x = digits.images([5]) + 1.0
    denoiser = golddiff.Optimal(store)
    expected = denoiser(x, 2.0)
    slow, answered = store.paths[0], []
    os.kill(store.pids[slow], signal.SIGSTOP)

    def wake(shard):  # it goes on only once the others were merged
        answered.append(store.paths[shard])
        if len(answered) == 2:
            os.kill(store.pids[slow], signal.SIGCONT)

    store.watch(wake)
    assert torch.equal(denoiser(x, 2.0), expected)
    store.watch(lambda shard: None)
    assert answered[2] == slow


def test_a_shard_that_is_gone_stops_the_run_with_its_name(store, shards, digits):
    denoiser, x = golddiff.Optimal(store), digits.images([8])
    expected = denoiser(x, 1.0)
    aside = shards[2].with_name("aside")
    shards[2].rename(aside)
    kill(store.pids[str(shards[2])])
    with pytest.raises(golddiff.ClusterError, match=f"shard {shards[2]} is lost: .*not exist"):
        denoiser(x, 1.0)
    aside.rename(shards[2])
    assert torch.equal(denoiser(x, 1.0), expected)


def test_a_silent_shard_is_lost_after_the_patience(store, monkeypatch):
    monkeypatch.setattr(store._pool, "patience", 3.0)
    pid = store.pids[store.paths[1]]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(golddiff.ClusterError, match="part-1 is lost: no sign of life for 3 s"):
            store.images([700])  # asks that shard alone
    finally:
        os.kill(pid, signal.SIGCONT)


def test_allow_missing_goes_on_and_says_what_share_was_seen(cluster, digits, tmp_path, make_store):
    shards = cut_in_three(digits, tmp_path)
    rest = make_store(np.array(digits.flat[:1100]).reshape(-1, 1, 8, 8), digits.labels[:1100])
    with ShardedStore.open(shards, allow_missing=True) as store:
        assert (store.missing, store.share, store.n) == ({}, 1.0, digits.n)

        def lose():
            shutil.rmtree(shards[2])
            kill(store.pids[str(shards[2])])

        found = golddiff.sample(golddiff.Optimal(store), 2, steps=4, on_step=during(2, lose))
        assert found.share == store.share == 1100 / digits.n
        assert list(store.missing) == [str(shards[2])]
        x = digits.images([1500, 3]) + 2.0
        means = golddiff.Optimal(store)(x, 3.0)
        assert torch.allclose(means, golddiff.Optimal(rest)(x, 3.0), atol=TOLERANCE)
        golden = golddiff.GoldDiff(golddiff.PCA(store), golddiff.PaperSchedule(variant="released"))
        assert torch.isfinite(golden(x, 1.0)).all()
        for path in shards[:2]:
            shutil.rmtree(path)
            kill(store.pids[str(path)])
        with pytest.raises(golddiff.ClusterError, match="every shard of the store is lost"):
            golden(x, 1.0)


def test_a_run_survives_the_death_of_a_node(cluster, digits, shards):
    third = cluster.add_node(num_cpus=1)
    (raylet,) = (info.process.pid for info in third.all_processes["raylet"])
    one = golddiff.Optimal(digits)
    expected = golddiff.sample(one, 2, steps=6)
    with ShardedStore.open(shards, patience=120.0) as store:
        children = {child.pid for child in psutil.Process(raylet).children(recursive=True)}
        before = dict(store.pids)
        there = [path for path, pid in before.items() if pid in children]
        assert there  # shards are spread over the nodes

        def fail():
            cluster.remove_node(third, allow_graceful=False)

        many = golddiff.Optimal(store)
        found = golddiff.sample(many, 2, steps=6, on_step=during(2, fail))
        assert all(store.pids[path] != before[path] for path in there)
    assert float((found.trajectory - expected.trajectory).abs().max()) <= TOLERANCE


def test_a_shard_that_is_missing_from_the_start_counts_as_the_list_says(cluster, shards, tmp_path):
    stores = [ImageStore.open(path) for path in shards[:2]]
    records = [ShardRecord(str(s.path), s.n, identity_of(s.manifest)) for s in stores]
    records[1] = replace(records[1], path=str(tmp_path / "nowhere"))
    Listing(records).write(tmp_path)
    with ShardedStore.open(tmp_path, allow_missing=True) as store:
        n = sum(s.n for s in stores)
        assert (store.n, store.share) == (n, stores[0].n / n)
        assert golddiff.sample(golddiff.Wiener(store), 1, 2).share == store.share
        # Of the images that are there, and their number is that of the factor itself.
        assert store.factor_images == stores[0].n
        assert golddiff.sample(golddiff.PCA(store), 1, 2).share == store.share
