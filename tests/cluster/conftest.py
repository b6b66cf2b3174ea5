"""Sharded stores, and a Ray cluster of two nodes, shared by all these tests."""

import contextlib
import os
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import golddiff
from golddiff import __version__
from golddiff.cluster import ShardedStore
from golddiff.cluster.shard import Shard
from golddiff.store.images import ImageStore
from golddiff.system.residency import DEFAULT_LIMIT

try:
    import ray
except ImportError:  # an extra
    ray = None

HERE = Path(__file__).parent
STARTS = 3
# Ray detects a lost node after 5 seconds instead of 15.
NOTICED = {"health_check_period_ms": 600}


def pytest_collection_modifyitems(items):
    """Skip tests that need Ray if it is not installed."""
    if ray is not None:
        return
    mark = pytest.mark.skip(reason="needs Ray: pip install 'golddiff[cluster]'")
    for item in items:
        if HERE in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(mark)


@pytest.fixture(scope="package")
def cluster():
    """A Ray cluster of two one-core nodes, joined; asserts at the end that no process is left."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.shutdown()  # other tests may have joined a cluster
    earlier = _children()
    with pytest.MonkeyPatch.context() as patch:
        # With it, every shard's process compiles the package's source again.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        nodes = _two_nodes()
    golddiff.cluster.connect(nodes.address)
    yield nodes
    own = _children() - earlier
    ray.shutdown()
    nodes.shutdown()
    assert not _kill_survivors(own, patience=60)


def _two_nodes():
    from ray.cluster_utils import Cluster

    # On a busy machine, Ray's start times out after half a minute.
    for attempts_left in reversed(range(STARTS)):
        earlier, nodes = _children(), Cluster()
        try:
            nodes.add_node(num_cpus=1, include_dashboard=False, _system_config=NOTICED)
            nodes.add_node(num_cpus=1)
            return nodes
        except Exception:  # Ray raises several types
            nodes.shutdown()
            _kill_survivors(_children() - earlier, patience=0)
            if attempts_left == 0:
                raise


def _children():
    return set(psutil.Process().children(recursive=True))


def _kill_survivors(processes, patience):
    """Wait ``patience`` seconds, then kill the processes still alive and return them."""
    _, alive = psutil.wait_procs(processes, timeout=patience)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return alive


@pytest.fixture(scope="session")
def split(tmp_path_factory):
    """split(store, shards): the paths of the given number of shards, of unequal sizes."""
    root = tmp_path_factory.mktemp("shards")
    paths = {}

    def shard_paths(store, shards):
        key = str(store.path), shards
        if key not in paths:
            borders = np.linspace(0, store.n, shards + 1).astype(int)
            borders[1:-1] += np.arange(shards - 1) % 3
            paths[key] = [
                part(store, rows, root / f"{len(paths)}-{i}")
                for i, rows in enumerate(map(slice, borders[:-1], borders[1:]))
            ]
        return paths[key]

    return shard_paths


def shard_at(path):
    """A shard in this process, opened as the driver opens it in another."""
    return Shard(path, DEFAULT_LIMIT, torch.get_num_threads(), __version__)


def part(store, rows, path):
    """Build a store of consecutive rows of another; returns its path."""
    pixels = np.array(store.flat[rows]).reshape(-1, *store.shape)
    labels = None if store.labels is None else store.labels[rows]
    ImageStore.build(pixels, path, labels)
    return path


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """The 1,797 digits as one store."""
    return ImageStore.build("digits", tmp_path_factory.mktemp("digits") / "store")


@pytest.fixture(scope="package")
def split_digits(cluster, digits, split):
    """The digits in two shards; not to be modified."""
    # On a busy machine, processes start slowly.
    with ShardedStore.open(split(digits, 2), patience=600.0) as store:
        yield store


@pytest.fixture(scope="session")
def patches(tmp_path_factory):
    """300 colour images of 16 x 16, without labels."""
    path = tmp_path_factory.mktemp("patches") / "store"
    return ImageStore.build("patches", path, limit=300, size=16)


@pytest.fixture(scope="package")
def split_patches(cluster, patches, split, tmp_path_factory):
    """The patches in two shards of 115,200 bytes, above the memory limit; not to be modified."""
    with ShardedStore.open(split(patches, 2), memory_limit=50_000, patience=600.0) as store:
        store.artifacts.folder = tmp_path_factory.mktemp("beside")
        yield store
