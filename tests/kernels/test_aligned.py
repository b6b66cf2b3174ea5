"""Arrays that begin where a line of memory does."""

from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.aligned import LINE, empty, zeros


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple))
def test_they_begin_at_a_line_of_memory(shape):
    for made in (empty(shape), zeros(shape)):
        assert made.shape == shape
        assert made.flags.c_contiguous
        assert made.ctypes.data % LINE == 0 or made.size == 0
    assert not zeros(shape).any()
