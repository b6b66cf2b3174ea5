import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.gather import BLOCK, EMPTY_SLOT, gather, padded_weights, positions_in, runs
from golddiff.kernels.lanes import LANES
from golddiff.support import Support


@given(st.integers(1, 200), st.data())
def test_runs_cover_the_wanted_columns_with_neighbouring_ones(d, data):
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, d - 1), min_size=1))))
    columns = runs(wanted, d)
    assert set(wanted) <= set(columns)
    assert columns.min() >= 0
    assert columns.max() < d
    if d >= LANES:
        assert (np.diff(columns.reshape(-1, LANES), axis=1) == 1).all()
        assert len(columns) <= LANES * len(wanted)
    assert np.array_equal(columns[positions_in(columns, wanted)], wanted)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("d", [1, 15, 16, 17, 100])
def test_a_block_is_the_transpose_of_its_rows_and_missing_rows_are_absent(dtype, d):
    generator = np.random.default_rng(0)
    flat = generator.integers(0, 256, (300, d)).astype(dtype)
    rows = generator.integers(0, 300, BLOCK + 7)
    columns = runs(np.unique(generator.integers(0, d, 1 + d // 3)), d)
    out = np.empty(len(columns) * BLOCK, dtype)
    for first in (0, BLOCK):  # a full block, and one of seven rows
        gather(flat, rows, first, columns, out)
        block_rows = rows[np.minimum(np.arange(first, first + BLOCK), len(rows) - 1)]
        assert np.array_equal(out.reshape(-1, BLOCK), flat[block_rows][:, columns].T)
    weights = generator.normal(size=BLOCK + 7).astype(np.float32)
    padded = padded_weights(Support(rows, weights.astype(np.float64)))
    assert np.array_equal(padded, np.append(weights, np.full(BLOCK - 7, EMPTY_SLOT)))
