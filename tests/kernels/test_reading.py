"""``read_pieces``, against slices of the file's bytes."""

import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.system.residency import read_pieces

SIZE = 5000


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "bytes"
    path.write_bytes(bytes(np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)))
    with path.open("rb") as opened:
        yield opened


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 300)), max_size=30))
def test_pieces_are_concatenated_in_order(file, pieces):
    pieces = [(offset, min(length, SIZE - offset)) for offset, length in pieces]
    file.seek(0)
    whole = file.read()
    expected = b"".join(whole[offset : offset + length] for offset, length in pieces)
    offsets, lengths = np.array(pieces, np.int64).reshape(-1, 2).T
    out = np.empty(len(expected), np.uint8)
    read_pieces(file.fileno(), np.ascontiguousarray(offsets), np.ascontiguousarray(lengths), out)
    assert out.tobytes() == expected


def test_pieces_fill_an_array_of_another_dtype_and_shape(file):
    out = np.empty((2, 3), np.int16)
    read_pieces(file.fileno(), np.array([6, 0]), np.array([6, 6]), out)
    file.seek(0)
    first = np.frombuffer(file.read(12), np.int16)
    assert np.array_equal(out, [first[3:], first[:3]])


def test_a_piece_beyond_the_end_of_the_file_is_an_error(file):
    with pytest.raises(OSError, match="ends too soon") as error:
        read_pieces(
            file.fileno(), np.array([0, SIZE - 5]), np.array([4, 6]), np.empty(10, np.uint8)
        )
    assert error.value.errno == errno.EIO


def test_an_invalid_file_descriptor_is_an_error():
    with pytest.raises(OSError, match=r"\S"):
        read_pieces(1_000_000, np.array([0]), np.array([4]), np.empty(4, np.uint8))
