import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.products import less_twice_the_products, padded


@pytest.mark.kernels
@given(
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 40),
    st.integers(1, 400),
    st.integers(0, 99),
)
def test_products_are_those_of_float64(queries, tiles, coordinates, images, seed):
    generator = np.random.default_rng(seed)
    n = padded(images)
    own, rows, vectors = (
        generator.standard_normal(shape).astype(np.float32)
        for shape in ((tiles, n), (coordinates, n), (queries, tiles, coordinates))
    )
    expected = own - 2 * vectors.astype(np.float64) @ rows
    made = less_twice_the_products(own, rows, vectors)
    assert np.abs(made - expected).max() < 1e-4
    for q in range(queries):
        for t in range(tiles):  # they do not depend on other tiles, nor on other queries
            alone = less_twice_the_products(own[t : t + 1], rows, vectors[q : q + 1, t : t + 1])
            assert np.array_equal(alone[0, 0], made[q, t])
