"""Plain data round-trip; pickles that run code, exhaust memory, hang or crash are refused."""

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
def test_plain_data_round_trip_and_the_stream_stops_at_their_end(value, protocol):
    stream = io.BytesIO(pickle.dumps(value, protocol) + b"more")
    assert read_pickle(stream, ARRAYS) == value
    assert stream.read() == b"more"


@given(
    value=st.lists(st.text() | st.integers() | st.binary(min_size=1)), protocol=st.integers(2, 3)
)
def test_plain_data_of_older_protocols_round_trip(value, protocol):
    assert read(pickle.dumps(value, protocol)) == value


def test_bytes_are_valid_keys_in_every_protocol():
    for protocol in range(6):
        assert read(pickle.dumps({b"a\xff": b"\x00\xff"}, protocol)) == {b"a\xff": b"\x00\xff"}


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "?"])
@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_arrays_and_numbers_round_trip(dtype, protocol):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    loaded = read(pickle.dumps({"a": array, "f": np.asfortranarray(array)}, protocol))
    for value in loaded.values():
        assert np.array_equal(np.asarray(value), array)
    assert read(pickle.dumps(np.float32(0.5), protocol)) == 0.5


def test_long_flat_data_are_accepted():
    assert read(pickle.dumps([(i, [i]) for i in range(2000)]))
    assert len(read(pickle.dumps(list(range(200)) * 300))) == 60_000


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
def test_damaged_and_hostile_pickles_are_refused(body, message):
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


def test_the_size_of_shared_lists_includes_later_additions():
    empty = b"".join(b"]q%c" % i for i in range(31))
    filled = b"".join(b"h%c(h%ch%ce" % (i, i + 1, i + 1) for i in range(30))
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read(b"\x80\x04" + empty + filled + b"h\0.")


def doubled(times, inner=b"]"):
    """Nested lists, each of which holds the next one twice."""
    return b"\x80\x04" + inner + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(times)) + b"."


def test_the_size_counts_shared_values_at_each_occurrence():
    """Regression: the text of a pickle of 255 bytes took 2.9 GB."""
    assert read(doubled(12))
    data = doubled(30)
    assert len(data) < 300
    started = time.process_time()
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read(data)
    assert time.process_time() - started < 1


def test_the_size_counts_a_repeated_array_each_time():
    data = {"data": [np.zeros(2_000_000, np.uint8)] * 1000}
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read(pickle.dumps(data, 2))


def test_tuples_nested_as_a_key_do_not_hang():
    """Regression: hashing shared nested tuples, in a file of 582 bytes, took exponential time."""
    inner = b")" + b"".join(b"q%c(h%ch%ct" % (i, i, i) for i in range(40))
    started = time.process_time()
    with pytest.raises(UnpicklingError):
        read(b"\x80\x04}" + inner + b"Ns.")
    assert time.process_time() - started < 1


def test_repeated_calls_with_a_large_value_are_bounded():
    calls = []
    large = b"B" + struct.pack("<I", 1_000_000) + bytes(1_000_000)
    call = b"h\0h\1\x85R0"  # a.b(large), dropped
    data = b"\x80\x04ca\nb\n\x94" + large + b"\x94" + call * 100 + b"."
    with pytest.raises(UnpicklingError, match="bytes of memory"):
        read_pickle(data, {("a", "b"): calls.append})
    assert len(calls) < 80


@pytest.mark.parametrize("opcodes", [b"\x8f", b"}", b"]\x94", b"K\1\x85\x94"])
def test_memory_is_bounded_for_any_repeated_opcode(monkeypatch, opcodes):
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
def test_allowed_callables_cannot_be_altered(name):
    for state in (b"}", b"}X\x05\0\0\0orderN}s", b"N}\x86"):
        with pytest.raises(UnpicklingError, match=r"sets the state|a key|adds"):
            read(b"\x80\x04" + name + state + b"b.")
    with pytest.raises(UnpicklingError, match="calls a str"):
        read(b"\x80\x04X\1\0\0\0a)R.")


def test_persistent_ids_are_resolved_by_the_caller():
    assert read_pickle(b"\x80\x04K\x07Q.", {}, lambda key: key + 1) == 8


def test_messages_are_one_printable_line():
    assert one_line(ValueError("a\n\x1b[31mb" + "x" * 1000)).startswith("a \\x1b[31mbxxx")
    assert len(one_line(ValueError("x" * 1000), 300)) == 300
    assert one_line(MemoryError()) == "MemoryError"
