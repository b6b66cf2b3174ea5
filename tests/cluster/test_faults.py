"""Killed processes and nodes, lost shards and slow shards, on real Ray nodes."""

import contextlib
import itertools
import os
import shutil
import signal

import numpy as np
import psutil
import pytest
import torch

import golddiff
from golddiff.cluster import ShardedStore
from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.store.images import ImageStore
from tests.recorded import Recorded

from .conftest import part

TOLERANCE = 1e-5  # as in test_exactness.py
CPUS_PER_SHARD = 0.6  # a node of one core has room for one shard


@pytest.fixture(scope="module")
def shards(digits, tmp_path_factory):
    """Three shards of the digits."""
    folder, borders = tmp_path_factory.mktemp("faults"), (0, 500, 1100, digits.n)
    return [
        part(digits, slice(a, b), folder / f"part-{i}")
        for i, (a, b) in enumerate(itertools.pairwise(borders))
    ]


@pytest.fixture(scope="module")
def third_node(cluster):
    """A node for the first of these tests to remove."""
    return cluster.add_node(num_cpus=1)


@pytest.fixture(scope="module")
def store(cluster, third_node, shards):
    """The three shards, one on each of the three nodes."""
    with ShardedStore.open(shards, num_cpus=CPUS_PER_SHARD, patience=600.0) as store:
        yield store


def processes_of(node):
    """Process ids of all descendants of a node's raylet."""
    (raylet,) = node.all_processes["raylet"]
    return {child.pid for child in psutil.Process(raylet.process.pid).children(recursive=True)}


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)


def during(step, action):
    """An ``on_step`` callback that calls ``action`` once, after ``step`` steps."""
    states = []

    def on_step(images):
        states.append(images)
        if len(states) == step:
            action()

    return on_step


def test_a_run_survives_the_death_of_a_node(store, cluster, third_node, digits):
    single, recorded = golddiff.Optimal(digits), Recorded(golddiff.Optimal(store))
    before, dying = dict(store.pool.pids), [psutil.Process(pid) for pid in processes_of(third_node)]
    (lost,) = (path for path, pid in before.items() if pid in {process.pid for process in dying})
    cluster.add_node(num_cpus=1)  # has room for the lost node's shard

    def fail():
        """Kill all its processes: without the raylet they would live on for a while."""
        cluster.remove_node(third_node, allow_graceful=False)
        for process in dying:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not psutil.wait_procs(dying, timeout=60)[1]

    golddiff.sample(recorded, 2, steps=6, on_step=during(2, fail))
    assert recorded.furthest(single) <= TOLERANCE
    assert store.share == 1
    # Four steps ran without the node, so its shard has a process on another node.
    remaining = set().union(*(processes_of(n) for n in (cluster.head_node, *cluster.worker_nodes)))
    assert set(store.pool.pids.values()) <= remaining
    assert [path for path, pid in store.pool.pids.items() if pid != before[path]] == [lost]


def test_a_run_survives_a_killed_worker(store, digits):
    single, sharded = (golddiff.GoldDiff(golddiff.PCA(s)) for s in (digits, store))
    sharded = Recorded(sharded)
    before, victim = dict(store.pool.pids), store.paths[1]
    samples = golddiff.sample(sharded, 3, steps=10, on_step=during(4, lambda: kill(before[victim])))
    changed = [path for path, pid in store.pool.pids.items() if pid != before[path]]
    assert changed == [victim]
    assert store.share == samples.share == 1
    assert sharded.furthest(single) <= TOLERANCE


def test_a_worker_killed_within_a_step_is_replaced_and_repeats_it(store, digits):
    x = digits.images([3, 900]) + 1.0
    expected = golddiff.PCA(digits)(x, 1.0)
    denoiser, before, killed = golddiff.PCA(store), dict(store.pool.pids), []

    def on_answer(shard):  # the first answer kills another shard, busy or just done
        if not killed:
            killed.append(store.paths[(shard + 1) % 3])
            kill(store.pool.pids[killed[0]])

    store.pool.on_answer = on_answer
    for _ in range(2):
        assert torch.allclose(denoiser(x, 1.0), expected, atol=TOLERANCE)
    store.pool.on_answer = lambda shard: None
    assert store.pool.pids[killed[0]] != before[killed[0]]


def test_a_slow_shard_does_not_hold_up_the_others(store, digits):
    x = digits.images([5]) + 1.0
    denoiser = golddiff.Optimal(store)
    expected = denoiser(x, 2.0)
    slow, answered = store.paths[0], []
    os.kill(store.pool.pids[slow], signal.SIGSTOP)

    def wake(shard):  # resumes the slow shard once the other two have answered
        answered.append(store.paths[shard])
        if len(answered) == 2:
            os.kill(store.pool.pids[slow], signal.SIGCONT)

    store.pool.on_answer = wake
    assert torch.equal(denoiser(x, 2.0), expected)
    store.pool.on_answer = lambda shard: None
    assert answered[2] == slow


def test_a_run_stops_with_the_name_of_a_lost_shard(store, shards, digits):
    denoiser, x = golddiff.Optimal(store), digits.images([8])
    expected = denoiser(x, 1.0)
    aside = shards[2].with_name("aside")
    shards[2].rename(aside)
    kill(store.pool.pids[str(shards[2])])
    with pytest.raises(golddiff.ClusterError, match=f"shard {shards[2]} is lost: .*not exist"):
        denoiser(x, 1.0)
    aside.rename(shards[2])
    assert torch.equal(denoiser(x, 1.0), expected)


def test_a_restarted_process_refuses_other_images_at_its_path(cluster, digits, tmp_path):
    """It would answer with them."""
    first, second = (
        part(digits, slice(k, k + 300), tmp_path / name) for name, k in (("a", 0), ("b", 300))
    )
    with ShardedStore.open([first, second], patience=600.0) as store:
        denoiser, x = golddiff.Optimal(store), digits.images([8])
        denoiser(x, 1.0)
        shutil.rmtree(second)
        part(digits, slice(600, 900), second)
        kill(store.pool.pids[str(second)])
        with pytest.raises(golddiff.ClusterError, match=f"shard {second}: its files are not those"):
            denoiser(x, 1.0)


def test_a_silent_shard_is_lost_after_patience_seconds(store, monkeypatch, capfd):
    monkeypatch.setattr(store.pool, "patience", 3.0)
    pid = store.pool.pids[store.paths[1]]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(golddiff.ClusterError, match="part-1 is lost: no sign of life for 3 s"):
            store.images([700])  # queries only that shard
    finally:
        with contextlib.suppress(ProcessLookupError):  # the pool has ended it
            os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert store.images([700]).isfinite().all()  # from a new process
    captured = capfd.readouterr()
    assert "Shard.alive" not in captured.err + captured.out  # no call to the ended process


def test_a_missing_shard_of_unknown_size_is_refused(cluster, digits, tmp_path):
    available = part(digits, slice(0, 500), tmp_path / "part")
    with pytest.raises(golddiff.ClusterError, match=r"nowhere is missing, and its size is unknown"):
        ShardedStore.open([available, tmp_path / "nowhere"], allow_missing=True)


def test_a_missing_shard_counts_with_its_listed_size(cluster, digits, tmp_path):
    available = ImageStore.open(part(digits, slice(0, 500), tmp_path / "part"))
    records = [
        ShardRecord(available.path.name, available.n, available.manifest.identity),
        ShardRecord("nowhere", 1500, "unknown"),
    ]
    Listing(records).write(tmp_path)
    with ShardedStore.open(tmp_path, allow_missing=True, patience=600.0) as store:
        assert (store.n, store.share) == (2000, 0.25)
        assert golddiff.sample(golddiff.Wiener(store), 1, 2).share == 0.25
        # The factor is computed from the available images and records their number.
        assert store.factor().images == 500
        assert not store.factors.is_saved()
        run = golddiff.sample(golddiff.recommended(store), 1, 2)
        assert run.share == 0.25
        remaining = golddiff.novelty(run.images, available)
        assert torch.equal(run.novelty.nearest, remaining.nearest)
        assert run.novelty.spacing == pytest.approx(remaining.spacing)
        x = available.images([3]) + 1.0
        given = golddiff.Optimal(store).given(torch.zeros(store.n))
        assert torch.allclose(given(x, 1.0), golddiff.Optimal(available)(x, 1.0), atol=TOLERANCE)
        with pytest.raises(golddiff.ArgumentError, match="its store is in shards, expected a sing"):
            golddiff.restore(golddiff.PCA(store), x, lambda y: y, 0.1)
        shutil.rmtree(available.path)
        kill(store.pool.pids[str(available.path)])
        with pytest.raises(golddiff.ClusterError, match="every shard of the store is lost"):
            golddiff.Optimal(store)(torch.zeros(1, 1, 8, 8), 1.0)


# This test is the last, since it removes a shard of the shared store.
def test_with_allow_missing_a_run_continues_and_reports_its_share(
    store, shards, digits, make_store, monkeypatch
):
    monkeypatch.setattr(store.pool, "_allow_missing", True)
    remaining = make_store(np.array(digits.flat[:1100]).reshape(-1, 1, 8, 8), digits.labels[:1100])
    assert (store.pool.missing, store.share, store.n) == ({}, 1.0, digits.n)

    def lose():
        shutil.rmtree(shards[2])
        kill(store.pool.pids[str(shards[2])])

    samples = golddiff.sample(golddiff.Optimal(store), 2, steps=4, on_step=during(2, lose))
    assert samples.share == store.share == 1100 / digits.n
    assert list(store.pool.missing) == [str(shards[2])]
    x = digits.images([1500, 3]) + 2.0
    means = golddiff.Optimal(store)(x, 3.0)
    assert torch.allclose(means, golddiff.Optimal(remaining)(x, 3.0), atol=TOLERANCE)
    golden = golddiff.GoldDiff(golddiff.PCA(store), golddiff.PaperSchedule(variant="released"))
    assert torch.isfinite(golden(x, 1.0)).all()
