"""A short version of ``python -m reliability.numbers``, with a few of its random cases."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.store.device import DeviceStore
from reliability.numbers.paths import PATHS
from reliability.numbers.run import compare


@pytest.mark.parametrize("path", PATHS)
def test_fast_paths_match_float64_references(path):
    report = compare(40, seed=1, only=[path])
    assert report.paths
    assert not {name: worst for name, worst in report.paths.items() if worst.found}


def test_images_with_small_values_stay_distinct_on_a_device(make_store):
    """Regression: proxies of floats below 0.01 were all rounded to one level."""
    rng = np.random.default_rng(0)
    values = (1e-3 * rng.standard_normal((8, 6))).astype(np.float32)
    store = make_store(torch.from_numpy(values))
    method = golddiff.GoldDiff(golddiff.Optimal(store), golddiff.PaperSchedule(0.2, 0.5, 0.4, 0.9))
    x = torch.from_numpy(values + 0.03 * rng.standard_normal((8, 6)).astype(np.float32))
    cpu = torch.device("cpu")
    store.__dict__["_on_device"] = {cpu: DeviceStore(store, cpu)}  # torch code, as on a GPU
    assert (method.to(cpu)(x, 0.03) - method(x, 0.03)).abs().max() < 1e-6
