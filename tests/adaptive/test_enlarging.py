"""How many images each tile is worth."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from golddiff.supports.enlarging import best_counts
from golddiff.supports.rule import GROWTH

P = np.log2(GROWTH)


@given(st.integers(1, 8), st.floats(1e-6, 1e2), st.integers(0, 999))
def test_the_best_counts_have_the_error_asked_for_and_no_others_need_less(tiles, square, seed):
    generator = np.random.default_rng(seed)
    squares, sizes = generator.exponential(1, tiles) ** 2, generator.integers(1, 50, tiles)
    counts = 64 * 2 ** generator.integers(0, 6, tiles)
    shares = sizes / sizes.sum()

    def error(other):
        return shares @ (squares * (other / counts) ** -P)

    best = best_counts(squares, counts, sizes, square)
    assert np.isclose(error(best), square)
    for _ in range(20):
        other = best * np.exp(generator.normal(0, 0.3, tiles))
        other *= (error(other) / square) ** (1 / P)  # the same error
        assert shares @ other >= shares @ best * (1 - 1e-9)


def test_a_tile_without_an_error_asks_for_none():
    best = best_counts(np.array([0.0, 1.0]), np.array([64, 64]), np.array([1, 1]), 0.5)
    assert best[0] == 0
    assert np.isclose(best[1], 64)
