"""Stores cut into shards, and a Ray of two nodes that all these tests share."""

import contextlib
import os
from pathlib import Path

import numpy as np
import psutil
import pytest

import golddiff
from golddiff.cluster import ShardedStore
from golddiff.store.images import ImageStore

try:
    import ray
except ImportError:  # an extra
    ray = None

HERE = Path(__file__).parent
STARTS = 3
# A node that is gone is noticed after 5 seconds, not 15.
NOTICED = {"health_check_period_ms": 600}


def pytest_collection_modifyitems(items):
    """Skip what needs Ray where it is not installed."""
    if ray is not None:
        return
    mark = pytest.mark.skip(reason="needs Ray: pip install 'golddiff[cluster]'")
    for item in items:
        if HERE in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(mark)


@pytest.fixture(scope="package")
def cluster():
    """A real Ray, joined: two nodes of one core each, as ``ray start`` starts them.

    When the last of these tests is done no process of it is left.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.shutdown()  # what tests elsewhere may have left
    others = _children()
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise every shard's process compiles the package's source again.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        made = _two_nodes()
    golddiff.cluster.connect(made.address)
    yield made
    ours = _children() - others
    ray.shutdown()
    made.shutdown()
    assert not _still_there(ours, patience=60)


def _two_nodes():
    from ray.cluster_utils import Cluster

    # Where other work leaves it no time Ray gives a start up after half a minute.
    for left in reversed(range(STARTS)):
        others, made = _children(), Cluster()
        try:
            made.add_node(num_cpus=1, include_dashboard=False, _system_config=NOTICED)
            made.add_node(num_cpus=1)
            return made
        except Exception:  # Ray's own kinds
            made.shutdown()
            _still_there(_children() - others, patience=0)
            if left == 0:
                raise


def _children():
    return set(psutil.Process().children(recursive=True))


def _still_there(processes, patience):
    """Those that have not ended after so many seconds; they are killed."""
    _, alive = psutil.wait_procs(processes, timeout=patience)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return alive


@pytest.fixture(scope="session")
def cut(tmp_path_factory):
    """cut(store, shards): the paths of shards of about equal size, uneven on purpose."""
    root = tmp_path_factory.mktemp("shards")
    made = {}

    def into(store, shards):
        key = str(store.path), shards
        if key not in made:
            borders = np.linspace(0, store.n, shards + 1).astype(int)
            borders[1:-1] += np.arange(shards - 1) % 3
            made[key] = [
                part(store, rows, root / f"{len(made)}-{i}")
                for i, rows in enumerate(map(slice, borders[:-1], borders[1:]))
            ]
        return made[key]

    return into


def part(store, rows, path):
    """A store of some consecutive rows of another."""
    pixels = np.array(store.flat[rows]).reshape(-1, *store.shape)
    labels = None if store.labels is None else store.labels[rows]
    ImageStore.build(pixels, path, labels)
    return path


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """The 1,797 digits as one store."""
    return ImageStore.build("digits", tmp_path_factory.mktemp("digits") / "store")


@pytest.fixture(scope="package")
def two(cluster, digits, cut):
    """The digits in two shards, open for all tests that leave them as they are."""
    # Processes take their time to start where other work goes on.
    with ShardedStore.open(cut(digits, 2), patience=600.0) as store:
        yield store


@pytest.fixture(scope="session")
def patches(tmp_path_factory):
    """300 colour images of 16 x 16, without labels."""
    return _patches(tmp_path_factory, 300)


@pytest.fixture(scope="package")
def coloured(cluster, patches, cut, tmp_path_factory):
    """The patches in two shards, each larger (115,200 bytes of pixels) than what may be resident.

    Open, like ``two``, for all tests that leave it as it is.
    """
    with ShardedStore.open(cut(patches, 2), memory_limit=50_000, patience=600.0) as store:
        store.artifacts.folder = tmp_path_factory.mktemp("beside")
        yield store


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """1,500 colour images of 16 x 16, the first half of one class, the second of another."""
    unlabelled = _patches(tmp_path_factory, 1500)
    return ImageStore.build(
        np.array(unlabelled.flat).reshape(-1, *unlabelled.shape),
        tmp_path_factory.mktemp("many") / "store",
        np.arange(1500) // 750,
    )


@pytest.fixture(scope="package")
def halves(cluster, many, cut):
    """The 1,500 in two shards, a class in each; open for all tests that leave them as they are."""
    with ShardedStore.open(cut(many, 2), patience=600.0) as store:
        yield store


def _patches(tmp_path_factory, n):
    path = tmp_path_factory.mktemp("patches") / "store"
    return ImageStore.build("patches", path, limit=n, size=16)
