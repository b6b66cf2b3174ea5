import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.partial import Partial
from golddiff.posterior import Posterior


def random_parts(parts, locations, channels, empty, seed):
    generator = np.random.default_rng(seed)
    log_max = generator.normal(0, 30, (parts, 2, locations))
    total = generator.uniform(0.5, 2, log_max.shape)
    weighted = generator.normal(0, 1, (parts, 2, locations * channels))
    if empty:
        log_max[0], total[0], weighted[0] = -np.inf, 0, 0
    return log_max, total, weighted


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_merges_like_the_accumulator_of_the_cpu(parts, locations, channels, empty, seed):
    arrays = random_parts(parts, locations, channels, empty, seed)
    merged = Partial(*map(torch.from_numpy, arrays)).merged()
    expected = Posterior.empty(2, locations, locations * channels)
    pairwise = Partial(*(torch.from_numpy(a[0]) for a in arrays))
    for i in range(parts):
        expected = expected.merge(Posterior(*(a[i] for a in arrays)))
        if i:
            pairwise = pairwise.merge(Partial(*(torch.from_numpy(a[i]) for a in arrays)))
    np.testing.assert_allclose(merged.mean().numpy(), expected.mean())
    np.testing.assert_allclose(pairwise.mean().numpy(), expected.mean())
    np.testing.assert_allclose(merged.log_max.numpy(), expected.log_max)
