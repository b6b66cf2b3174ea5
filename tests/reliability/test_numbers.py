"""A few of the cases that ``python -m reliability.numbers`` compares by the ten thousand."""

import numpy as np
import torch

import golddiff
from reliability.numbers.run import compare


def test_fast_paths_equal_their_twins():
    report = compare(150, seed=1)
    assert not {name: worst for name, worst in report.paths.items() if worst.found}
    assert len(report.paths) > 10


def test_images_of_small_values_are_told_apart_on_a_device(make_store):
    """Found by comparison: proxies of floats below 0.01 were all rounded to the same level."""
    rng = np.random.default_rng(0)
    values = (1e-3 * rng.standard_normal((8, 6))).astype(np.float32)
    store = make_store(torch.from_numpy(values))
    method = golddiff.GoldDiff(golddiff.Optimal(store), golddiff.PaperSchedule(0.2, 0.5, 0.4, 0.9))
    x = torch.from_numpy(values + 0.03 * rng.standard_normal((8, 6)).astype(np.float32))
    assert (method.to(torch.device("cpu"))(x, 0.03) - method(x, 0.03)).abs().max() < 1e-6
