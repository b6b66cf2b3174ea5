"""Plain data come back as they were; what runs, swells, hangs or crashes is refused in one line."""

import contextlib
import io
import pickle
import struct
import time
import tracemalloc
from pickle import UnpicklingError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.system.errors import one_line
from golddiff.system.pickles import ARRAYS, read_pickle

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(min_size=1, max_size=300)
)
DATA = st.recursive(
    SCALARS | st.frozensets(st.text(max_size=3)),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=30,
)


def read(data):
    return read_pickle(data, ARRAYS)


@given(value=DATA, protocol=st.integers(4, 5))
def test_plain_data_come_back_and_the_stream_stands_behind_them(value, protocol):
    stream = io.BytesIO(pickle.dumps(value, protocol) + b"more")
    assert read_pickle(stream, ARRAYS) == value
    assert stream.read() == b"more"


@given(
    value=st.lists(st.text() | st.integers() | st.binary(min_size=1)), protocol=st.integers(2, 3)
)
def test_so_do_those_of_older_protocols(value, protocol):
    assert read(pickle.dumps(value, protocol)) == value


def test_bytes_are_keys_in_every_protocol():
    for protocol in range(6):
        assert read(pickle.dumps({b"a\xff": b"\x00\xff"}, protocol)) == {b"a\xff": b"\x00\xff"}


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "?"])
@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_arrays_and_numbers_come_back(dtype, protocol):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    made = read(pickle.dumps({"a": array, "f": np.asfortranarray(array)}, protocol))
    for value in made.values():
        assert np.array_equal(np.asarray(value), array)
    assert read(pickle.dumps(np.float32(0.5), protocol)) == 0.5


def test_flat_data_of_any_length_is_not_deep_and_numbers_are_cheap():
    assert read(pickle.dumps([(i, [i]) for i in range(2000)]))
    assert len(read(pickle.dumps(list(range(200)) * 3000))) == 600_000


LONG = struct.pack("<Q", 2**62)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x8e" + LONG, "cut short"),  # BINBYTES8
        (b"\x8d" + LONG, "cut short"),  # BINUNICODE8
        (b"B\xff\xff\xff\xff", "cut short"),
        (b"\x8b\xff\xff\xff\xff", "negative"),  # LONG4
        (b"\x96" + LONG, "the opcode"),  # BYTEARRAY8
        (b"\x96" + bytes(8), "the opcode"),
        (b"h\0", "index 0"),
        (b"j\xff\xff\xff\xff", "index 4294967295"),
        (b"\x94", "out of range"),
        (b"0", "empty list"),
        (b"t", "empty list"),
        (b"(\x86", "out of range"),
        (b"})Ns", "a key that is a tuple"),
        (b"}\x8a\x0a" + bytes([255] * 9) + b"\1Ns", "a key that is a int"),
        (b"\x8f()\x90", "a key that is a tuple"),
        (b"}(NNNu", "out of range"),
        (b")Na", "adds values to a tuple"),
        (b"]Nb", "sets the state of a list"),
        (b"\x97", "the opcode"),  # NEXT_BUFFER
        (b"\x82\x01", "the opcode"),  # EXT1
        (b"\xff", "the opcode"),
        (b"NNR", "calls a NoneType"),
        (b"cnumpy\ndtype\n)R", "dtype|argument"),
        (b"cos\nsystem\n)R", "asks for os.system"),
        (b"c\x1b[31mred\nx\n", r"asks for \\x1b\[31mred.x"),
        (b"Pkey\n", "an object kept outside the file"),
        (b"K\1Q", "an object kept outside the file"),
        (b"c_codecs\nencode\n}b", "sets the state of a function"),
    ],
)
def test_damage_and_hostile_requests_are_told(body, message):
    with pytest.raises(UnpicklingError, match=message) as raised:
        read(b"\x80\x04" + body + b".")
    assert str(raised.value).isprintable()


def deep(count):
    return b"\x80\x04)" + b"\x85" * count + b"."


def test_deep_nests_are_refused():
    assert read(deep(150))
    with pytest.raises(UnpicklingError, match="nested deeper"):
        read(deep(200_000))


def test_a_value_that_holds_itself_is_refused():
    endless = [1]
    endless.append(endless)
    with pytest.raises(UnpicklingError, match="nested deeper"):
        read(pickle.dumps(endless))


def test_a_value_that_grows_while_others_hold_it_is_as_large_as_it_ends():
    empty = b"".join(b"]q%c" % i for i in range(31))
    filled = b"".join(b"h%c(h%ch%ce" % (i, i + 1, i + 1) for i in range(30))
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read(b"\x80\x04" + empty + filled + b"h\0.")


def doubled(times, inner=b"]"):
    """A list of the same list twice, of the same list twice, ..."""
    return b"\x80\x04" + inner + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(times)) + b"."


def test_a_value_is_as_large_as_it_is_unfolded():
    """255 bytes of names whose text took 2.9 GB."""
    assert read(doubled(12))
    data = doubled(30)
    assert len(data) < 300
    started = time.process_time()
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read(data)
    assert time.process_time() - started < 1


def test_one_array_many_times_is_as_large_as_all_of_them():
    whole = {"data": [np.zeros(2_000_000, np.uint8)] * 1000}
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read(pickle.dumps(whole, 2))


def test_tuples_nested_as_a_key_do_not_hang():
    """A 582-byte file: the hash of nested tuples is taken anew for each place."""
    inner = b")" + b"".join(b"q%c(h%ch%ct" % (i, i, i) for i in range(40))
    started = time.process_time()
    with pytest.raises(UnpicklingError):
        read(b"\x80\x04}" + inner + b"Ns.")
    assert time.process_time() - started < 1


def test_a_large_value_cannot_be_handed_over_again_and_again():
    calls = []
    large = b"B" + struct.pack("<I", 1_000_000) + bytes(1_000_000)
    again = b"h\0h\1\x85R0"  # a.b(large), dropped
    data = b"\x80\x04ca\nb\n\x94" + large + b"\x94" + again * 100 + b"."
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read_pickle(data, {("a", "b"): calls.append})
    assert len(calls) < 80


@pytest.mark.parametrize("opcodes", [b"\x8f", b"}", b"]\x94", b"K\1\x85\x94"])
def test_what_a_file_makes_is_bounded_whatever_it_is_made_of(monkeypatch, opcodes):
    monkeypatch.setattr("golddiff.system.pickles.SLACK", 2**19)
    data = b"\x80\x04(" + opcodes * (20_000 // len(opcodes)) + b"t."
    tracemalloc.start()
    try:
        with contextlib.suppress(UnpicklingError):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_opcodes_cost_memory(monkeypatch):
    monkeypatch.setattr("golddiff.system.pickles.SLACK", 10_000)
    assert len(read(b"\x80\x04](" + b"N" * 150 + b"e.")) == 150
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read(b"\x80\x04](" + b"N" * 500 + b"e.")


@pytest.mark.parametrize("name", [b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"cnumpy\nndarray\n"])
def test_what_a_pickle_may_call_cannot_be_altered(name):
    for state in (b"}", b"}X\x05\0\0\0orderN}s", b"N}\x86"):
        with pytest.raises(UnpicklingError, match=r"sets the state|a key|adds"):
            read(b"\x80\x04" + name + state + b"b.")
    with pytest.raises(UnpicklingError, match="calls a str"):
        read(b"\x80\x04X\1\0\0\0a)R.")


def test_persistent_ids_are_the_caller_s():
    assert read_pickle(b"\x80\x04K\x07Q.", {}, lambda key: key + 1) == 8


def test_messages_are_one_printable_line():
    assert one_line(ValueError("a\n\x1b[31mb" + "x" * 1000)).startswith("a \\x1b[31mbxxx")
    assert len(one_line(ValueError("x" * 1000), 300)) == 300
    assert one_line(MemoryError()) == "MemoryError"
