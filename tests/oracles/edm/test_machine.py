"""Plain data come back as they were; what makes ``pickle`` crash or swell is refused at once."""

import pickle
import struct
from pickle import UnpicklingError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.oracles.edm.machine import Machine, read_pickle
from golddiff.oracles.edm.records import Allowed
from golddiff.oracles.edm.standins import ALLOWED

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
)
DATA = st.recursive(
    SCALARS | st.binary(max_size=300) | st.sets(st.text(max_size=3)),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=30,
)


def read(data):
    return read_pickle(memoryview(data), ALLOWED)[0]


def frozen(value):
    """Data with bytes in place of views."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list | tuple):
        return type(value)(map(frozen, value))
    return {k: frozen(v) for k, v in value.items()} if isinstance(value, dict) else value


@given(value=DATA, protocol=st.integers(3, 5))
def test_plain_data_come_back(value, protocol):
    data = pickle.dumps(value, protocol)
    made, rest = read_pickle(memoryview(data + b"more"), ALLOWED)
    assert frozen(made) == value
    assert bytes(rest) == b"more"


@given(value=st.lists(st.text() | st.integers() | st.binary(min_size=1)))
def test_protocol_2_writes_bytes_as_text(value):
    assert frozen(read(pickle.dumps(value, 2))) == value


def test_frozen_sets_become_sets():
    assert read(pickle.dumps(frozenset({"a", "b"}), 4)) == {"a", "b"}


def test_shared_and_endless_values_are_kept():
    a = [1]
    a += [a, (a,)]
    made = read(pickle.dumps(a, 4))
    assert made[1] is made
    assert made[2][0] is made


LONG = 2**62


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x8e" + struct.pack("<Q", LONG), "cut short"),  # BINBYTES8
        (b"\x96" + struct.pack("<Q", LONG), "cut short"),  # BYTEARRAY8
        (b"\x8d" + struct.pack("<Q", LONG), "cut short"),  # BINUNICODE8
        (b"\x95" + struct.pack("<Q", LONG), "cut short"),  # FRAME
        (b"B\xff\xff\xff\xff", "cut short"),
        (b"\x8b\xff\xff\xff\xff", "cut short"),  # LONG4
        (b"\x8b\xc8\0\0\0" + b"\1" * 200, "a number of 200 bytes"),
        (b"ctorch" + b"x" * 5000 + b"\n", "overlong line"),
        (b"h\0", "recalls value 0"),
        (b"j\xff\xff\xff\xff", "recalls value 4294967295"),
        (b"\x94", "stack is empty"),
        (b"0", "no mark"),
        (b"t", "no mark"),
        (b"\x86", "stack is empty"),
        (b"}Ns", "stack is empty"),
        (b"})Ns", "a key in it is of type tuple"),
        (b"\x8f(\x85" + b"\x90", "stack is empty"),
        (b"\x8f()\x90", "a key in it is of type tuple"),
        (b"}(NNNu", "a key without a value"),
        (b")Na", "adds values to tuple"),
        (b"]}Na" + b"b", "adds values to dict"),
        (b"V\n", "opcode UNICODE"),
        (b"I1\n", "opcode INT"),
        (b"\x97", "opcode NEXT_BUFFER"),
        (b"\xff", "opcode 0xff"),
        (b"\x80\x06", "protocol 6"),
        (b"NNR", "calls a value of type NoneType"),
        (b"NNb", "sets the state of a value of type NoneType"),
        (b"cnumpy\ndtype\nNR", "calls numpy.dtype without a list of arguments"),
        (b"cnumpy\ndtype\n)R", "calls numpy.dtype with wrong arguments"),
    ],
)
def test_damage_is_told(body, message):
    with pytest.raises(UnpicklingError, match=message):
        read(b"\x80\x04" + body + b"." if "cut" not in message else b"\x80\x04" + body)


def test_a_huge_memo_index_takes_no_memory():
    assert read(b"\x80\x02]r\xff\xff\xff\xffj\xff\xff\xff\xff.") == []


def test_a_deep_nest_is_read_and_let_go():
    depth = 200_000
    made = read(b"\x80\x04)" + b"\x85" * depth + b".")
    assert type(made) is tuple
    # As a key it would be hashed, which pickle does not survive.
    with pytest.raises(UnpicklingError, match="a key in it is of type tuple"):
        read(b"\x80\x04})" + b"\x85" * depth + b"Ns.")


def test_opcodes_are_counted(monkeypatch):
    monkeypatch.setattr("golddiff.oracles.edm.machine.MOST_OPCODES", 100)
    assert len(read(b"\x80\x04](" + b"N" * 90 + b"e.")) == 90
    with pytest.raises(UnpicklingError, match="more than 100 opcodes"):
        read(b"\x80\x04](" + b"N" * 100 + b"e.")


def test_a_large_value_cannot_be_handed_over_again_and_again():
    calls = []
    table = {("a", "b"): Allowed("a.b", calls.append)}
    large = b"B" + struct.pack("<I", 100_000) + bytes(100_000)
    again = b"(h\0h\1\x85R1"  # a.b(large), dropped
    data = b"\x80\x04ca\nb\n\x94" + large + b"\x94" + again * 50 + b"."
    with pytest.raises(UnpicklingError, match="hands the same large values over"):
        read_pickle(memoryview(data), table)
    assert len(calls) <= 2


def test_only_the_callers_names_are_found():
    machine = Machine(memoryview(b""), ALLOWED, None)
    assert machine.find_class("collections", "OrderedDict").name == "collections.OrderedDict"
    with pytest.raises(UnpicklingError, match=r"asks for collections\.OrderedDict\.fromkeys"):
        machine.find_class("collections", "OrderedDict.fromkeys")
    with pytest.raises(UnpicklingError, match="whose name is not text"):
        machine.find_class("collections", ["OrderedDict"])
