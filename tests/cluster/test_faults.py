"""Processes and machines that die, shards that are gone, shards that are slow. Real Ray nodes."""

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
from golddiff.store.manifest import identity_of
from tests.recorded import Recorded

from .conftest import part

TOLERANCE = 1e-5  # as in test_exactness.py
A_NODE_EACH = 0.6  # cores a shard: a node of one core has room for one


@pytest.fixture(scope="module")
def shards(digits, tmp_path_factory):
    """Three shards of the digits."""
    folder, borders = tmp_path_factory.mktemp("faults"), (0, 500, 1100, digits.n)
    return [
        part(digits, slice(a, b), folder / f"part-{i}")
        for i, (a, b) in enumerate(itertools.pairwise(borders))
    ]


@pytest.fixture(scope="module")
def third(cluster):
    """A node that is there for the first of these tests to lose."""
    return cluster.add_node(num_cpus=1)


@pytest.fixture(scope="module")
def store(cluster, third, shards):
    """The three shards, one on each of the three nodes."""
    with ShardedStore.open(shards, num_cpus=A_NODE_EACH, patience=600.0) as store:
        yield store


def processes_of(node):
    """Ids of the processes that a node's own, the raylet, has started."""
    (raylet,) = node.all_processes["raylet"]
    return {child.pid for child in psutil.Process(raylet.process.pid).children(recursive=True)}


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


def test_a_run_survives_the_death_of_a_node(store, cluster, third, digits):
    one, many = golddiff.Optimal(digits), Recorded(golddiff.Optimal(store))
    before, dying = dict(store.pool.pids), [psutil.Process(pid) for pid in processes_of(third)]
    (there,) = (path for path, pid in before.items() if pid in {process.pid for process in dying})
    cluster.add_node(num_cpus=1)  # with room for the shard that loses its node

    def fail():
        """All its processes at once: without the raylet they would live on for a while."""
        cluster.remove_node(third, allow_graceful=False)
        for process in dying:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not psutil.wait_procs(dying, timeout=60)[1]

    golddiff.sample(many, 2, steps=6, on_step=during(2, fail))
    assert many.furthest(one) <= TOLERANCE
    assert store.share == 1
    # Four steps were done with the node gone, so its shard has a process on another.
    left = set().union(*(processes_of(n) for n in (cluster.head_node, *cluster.worker_nodes)))
    assert set(store.pool.pids.values()) <= left
    assert [path for path, pid in store.pool.pids.items() if pid != before[path]] == [there]


def test_a_run_survives_a_killed_worker(store, digits):
    one, many = (golddiff.GoldDiff(golddiff.PCA(s)) for s in (digits, store))
    many = Recorded(many)
    before, victim = dict(store.pool.pids), store.paths[1]
    found = golddiff.sample(many, 3, steps=10, on_step=during(4, lambda: kill(before[victim])))
    changed = [path for path, pid in store.pool.pids.items() if pid != before[path]]
    assert changed == [victim]
    assert store.share == found.share == 1
    assert many.furthest(one) <= TOLERANCE


def test_a_worker_killed_within_a_step_does_it_again(store, digits):
    x = digits.images([3, 900]) + 1.0
    expected = golddiff.PCA(digits)(x, 1.0)
    denoiser, before, killed = golddiff.PCA(store), dict(store.pool.pids), []

    def on_answer(shard):  # the first that answers has another killed, at work or just done
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

    def wake(shard):  # it goes on only once the others were merged
        answered.append(store.paths[shard])
        if len(answered) == 2:
            os.kill(store.pool.pids[slow], signal.SIGCONT)

    store.pool.on_answer = wake
    assert torch.equal(denoiser(x, 2.0), expected)
    store.pool.on_answer = lambda shard: None
    assert answered[2] == slow


def test_a_shard_that_is_gone_stops_the_run_with_its_name(store, shards, digits):
    denoiser, x = golddiff.Optimal(store), digits.images([8])
    expected = denoiser(x, 1.0)
    aside = shards[2].with_name("aside")
    shards[2].rename(aside)
    kill(store.pool.pids[str(shards[2])])
    with pytest.raises(golddiff.ClusterError, match=f"shard {shards[2]} is lost: .*not exist"):
        denoiser(x, 1.0)
    aside.rename(shards[2])
    assert torch.equal(denoiser(x, 1.0), expected)


def test_a_silent_shard_is_lost_after_the_patience(store, monkeypatch, capfd):
    monkeypatch.setattr(store.pool, "patience", 3.0)
    pid = store.pool.pids[store.paths[1]]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(golddiff.ClusterError, match="part-1 is lost: no sign of life for 3 s"):
            store.images([700])  # asks that shard alone
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was ended
            os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert store.images([700]).isfinite().all()  # by a new process
    said = capfd.readouterr()
    assert "Shard.alive" not in said.err + said.out  # Ray asks a process that was ended no more


def test_a_shard_that_is_missing_from_the_start_counts_as_the_list_says(cluster, digits, tmp_path):
    there = ImageStore.open(part(digits, slice(0, 500), tmp_path / "part"))
    records = [
        ShardRecord(there.path.name, there.n, identity_of(there.manifest)),
        ShardRecord("nowhere", 1500, "unknown"),
    ]
    Listing(records).write(tmp_path)
    with ShardedStore.open(tmp_path, allow_missing=True, patience=600.0) as store:
        assert (store.n, store.share) == (2000, 0.25)
        assert golddiff.sample(golddiff.Wiener(store), 1, 2).share == 0.25
        # Of the images that are there, and their number is that of the factor itself.
        assert store.factors.images == 500
        assert golddiff.sample(golddiff.PCA(store), 1, 2).share == 0.25
        shutil.rmtree(there.path)
        kill(store.pool.pids[str(there.path)])
        with pytest.raises(golddiff.ClusterError, match="every shard of the store is lost"):
            golddiff.Optimal(store)(torch.zeros(1, 1, 8, 8), 1.0)


# The last, since it takes a shard from the store that these tests share.
def test_allow_missing_goes_on_and_says_what_share_was_seen(
    store, shards, digits, make_store, monkeypatch
):
    monkeypatch.setattr(store.pool, "_allow_missing", True)
    rest = make_store(np.array(digits.flat[:1100]).reshape(-1, 1, 8, 8), digits.labels[:1100])
    assert (store.pool.missing, store.share, store.n) == ({}, 1.0, digits.n)

    def lose():
        shutil.rmtree(shards[2])
        kill(store.pool.pids[str(shards[2])])

    found = golddiff.sample(golddiff.Optimal(store), 2, steps=4, on_step=during(2, lose))
    assert found.share == store.share == 1100 / digits.n
    assert list(store.pool.missing) == [str(shards[2])]
    x = digits.images([1500, 3]) + 2.0
    means = golddiff.Optimal(store)(x, 3.0)
    assert torch.allclose(means, golddiff.Optimal(rest)(x, 3.0), atol=TOLERANCE)
    golden = golddiff.GoldDiff(golddiff.PCA(store), golddiff.PaperSchedule(variant="released"))
    assert torch.isfinite(golden(x, 1.0)).all()
