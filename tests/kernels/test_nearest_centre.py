"""The fused search for the nearest centre finds what all distances say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.nearest_centre import nearest_centre
from golddiff.kernels.products import padded


@given(st.integers(1, 150), st.integers(1, 70), st.integers(1, 20), st.integers(0, 99))
def test_no_other_centre_is_nearer(n, count, r, seed):
    generator = np.random.default_rng(seed)
    points = np.zeros((r, padded(n)), np.float32)
    points[:, :n] = generator.standard_normal((r, n))
    centres = generator.standard_normal((count, r)).astype(np.float32)
    centres[generator.integers(count)] = centres[0]  # ties
    found = nearest_centre(points, centres)
    gaps = points.T.astype(np.float64)[:, None] - centres.astype(np.float64)
    distances = np.square(gaps).sum(axis=2)
    assert np.all((found >= 0) & (found < count))
    assert np.all(distances[np.arange(len(found)), found] <= distances.min(axis=1) + 1e-4)
