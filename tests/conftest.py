"""Fixtures for small training sets, and for the real data packs if they are installed."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from golddiff.store.images import ImageStore
from golddiff.system.parallel import use_threads

# Examples write stores to disk, so their time varies: no deadline.
settings.register_profile("golddiff", deadline=None, max_examples=12, derandomize=True)
settings.load_profile("golddiff")


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory):
    """Use a temporary cache for the test run instead of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDDIFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def make_store(tmp_path_factory):
    """Build a store from an array: make_store(pixels, labels=None)."""
    root = tmp_path_factory.mktemp("stores")
    count = itertools.count()

    def make(pixels, labels=None, **options):
        return ImageStore.build(pixels, root / f"store{next(count)}", labels, **options)

    return make


@pytest.fixture
def fails(capsys):
    """fails(*arguments): check for exit status 2 and return the only line on stderr."""
    from golddiff.cli import run

    def check(*arguments):
        capsys.readouterr()
        assert run(arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("golddiff: ")
        return lines[0]

    return check


@pytest.fixture(scope="session")
def smooth_images():
    """smooth_images(n, shape, seed): uint8 images with spatial correlations, as photos have."""

    def make(n, shape=(3, 8, 8), seed=0):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randn(n, shape[0], 3, 3, generator=generator)
        images = torch.nn.functional.interpolate(coarse, shape[1:], mode="bicubic")
        images = images + 0.2 * torch.randn(n, *shape, generator=generator)
        return ((images * 0.4).clamp(-1, 1) * 127.5 + 127.5).round().to(torch.uint8)

    return make


@pytest.fixture(scope="session")
def data_packs():
    """The folder of real data packs: $GOLDDIFF_DATA, or shared/data beside the checkout."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("GOLDDIFF_DATA", default))
    if not folder.is_dir():
        pytest.skip("needs the real data packs (set GOLDDIFF_DATA to their folder)")
    return folder


@pytest.fixture
def two_threads():
    """Tasks run on two threads, whatever the machine has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    use_threads(threads)


@pytest.fixture
def queries():
    """queries(store, sigma, b, seed): noisy training images, float32 (b, *shape)."""

    def make(store, sigma, b=4, seed=1):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(store.n, (b,), generator=generator)
        return store.images(rows) + sigma * torch.randn((b, *store.shape), generator=generator)

    return make


def float64_images(store):
    """All images of a store as float64 in [-1, 1], (n, d), computed from the stored values."""
    raw = np.asarray(store.flat, dtype=np.float64)
    return raw / 127.5 - 1 if store.manifest.dtype == "uint8" else raw
