"""Stores cut into shards, and a Ray of two cores."""

from pathlib import Path

import numpy as np
import pytest

import golddiff
from golddiff.store import ImageStore

try:
    import ray
except ImportError:  # an extra
    ray = None

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Skip what needs Ray where it is not installed."""
    if ray is not None:
        return
    mark = pytest.mark.skip(reason="needs Ray: pip install 'golddiff[cluster]'")
    for item in items:
        if HERE in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(mark)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """What is computed from lists of shards must not reach the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDDIFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    if ray is not None:
        ray.shutdown()


@pytest.fixture(scope="module")
def cluster():
    """A real Ray of two cores, started once for the modules that share it."""
    if not ray.is_initialized():
        golddiff.cluster.connect(num_cpus=2)


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


@pytest.fixture(scope="session")
def patches(tmp_path_factory):
    """500 colour images of 16 x 16, without labels."""
    return ImageStore.build(
        "patches", tmp_path_factory.mktemp("patches") / "store", limit=500, size=16
    )
