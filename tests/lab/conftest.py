"""Tiny data sets and stand-in networks, under the names of the paper's data sets."""

import numpy as np
import pytest
import torch

import golddiff
from tests.oracles_for_tests import stand_in

NAMES = ("mnist", "cifar10", "imagenet64-100")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, smooth_images):
    """The root folder, the stores' paths by name, and the function that loads the networks."""
    root = tmp_path_factory.mktemp("tiny")
    stores, loaders = {}, {}
    for i, name in enumerate(NAMES):
        shape = (1, 6, 6) if name == "mnist" else (3, 6, 6)
        images = smooth_images(40, shape, seed=i)
        store = golddiff.ImageStore.build(images, root / f"{name}.store", np.arange(40) % 4)
        stores[name] = store.path
        loaders[str(root / f"{name}.pt")] = stand_in(store, root / f"{name}.pt")
    return root, stores, lambda path, device="cpu": loaders[str(path)](path)


@pytest.fixture(scope="session")
def all_data_and_oracles(tiny):
    """Command-line arguments with every data set and an oracle of every kind."""
    root, stores, _ = tiny
    arguments = []
    for name, path in stores.items():
        arguments += ["--data", f"{name}={path}"]
        for suffix in ("", "-conditional", "-edm-vp"):
            arguments += ["--oracle", f"{name}{suffix}={root / name}.pt"]
    return arguments


@pytest.fixture(scope="session")
def all_pages(tiny, all_data_and_oracles, tmp_path_factory):
    """The folder of ``golddiff reproduce all --quick``, run once."""
    from golddiff.cli import run

    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDDIFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(golddiff, "load_oracle", tiny[2], raising=False)
        threads = torch.get_num_threads()
        arguments = ["--quick", "--n", "2", "--kamb-images", "20", "--threads", "1"]
        assert run(["reproduce", "all", *all_data_and_oracles, *arguments, "--out", str(out)]) == 0
        torch.set_num_threads(threads)
    return out


@pytest.fixture
def stand_in_networks(monkeypatch, tiny):
    """``golddiff.load_oracle`` loads the stand-in networks."""
    monkeypatch.setattr(golddiff, "load_oracle", tiny[2], raising=False)
