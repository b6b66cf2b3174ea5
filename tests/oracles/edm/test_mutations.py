"""Damaged files, by chance: each one loads or raises CheckpointError, and none runs anything."""

import os
import pickle
import pickletools

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from golddiff import load_oracle as load_edm
from golddiff.system.errors import CheckpointError
from tests.oracles.edm.make import SMALLEST, make_network, pickled
from tests.oracles.edm.watch import watched


class Planted:
    def __reduce__(self):
        return os.system, ("touch PROOF",)


def whole_and_hostile():
    """A file that loads, and one whose names are a byte or two away from something harmful."""
    network = make_network(side=2, channels=1, **SMALLEST)
    return [
        pickled(network),
        pickled(network, protocol=2),
        pickled(network, extra={"hook": Planted()}),
    ]


FILES = whole_and_hostile()


def telling_places(data):
    """Where opcodes begin, outside and in the storages: most bytes are numbers of tensors."""
    for known, argument, place in pickletools.genops(data):
        yield place
        if known.name == "BINBYTES":
            yield from range(place + 5, place + 5 + min(len(argument), 300), 12)


PLACES = [list(telling_places(data)) for data in FILES]
CODES = sorted(ord(known.code) for known in pickletools.opcodes)

BYTES = st.integers(0, 255) | st.sampled_from(CODES) | st.sampled_from([0, 0x7F, 0x80, 0xFF])


@st.composite
def damaged(draw):
    """A file with some bytes changed, put in, taken out or moved, or cut short."""
    index = draw(st.integers(0, len(FILES) - 1))
    data = bytearray(FILES[index])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.sampled_from(PLACES[index])) + draw(st.integers(0, 12))
        at = min(max(at, 2), len(data) - 1)
        way = draw(
            st.sampled_from(["change", "change", "insert", "remove", "copy", "cut", "swell"])
        )
        if way == "change":
            data[at] = draw(BYTES)
        elif way == "insert":
            data[at:at] = bytes(draw(st.lists(BYTES, min_size=1, max_size=9)))
        elif way == "remove":
            del data[at : at + draw(st.integers(1, 40))]
        elif way == "copy":
            other = draw(st.sampled_from(PLACES[index]))
            data[at:at] = data[other : other + draw(st.integers(1, 200))]
        elif way == "swell":
            data[at : at + 4] = b"\xff\xff\xff\x7f"
        else:
            del data[at:]
        if len(data) < 4:
            break
    return bytes(data)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "network.pkl"
    path.write_bytes(FILES[0])
    load_edm(path)(torch.zeros(1, 1, 2, 2), 1.0)  # imports what is imported on first use
    before = os.getcwd()
    os.chdir(folder)
    yield path
    os.chdir(before)


@settings(max_examples=150)
@given(data=damaged())
def test_a_damaged_file_loads_or_is_refused_and_runs_nothing(place, data):
    place.write_bytes(data)
    with watched() as events:
        try:
            oracle = load_edm(place)
        except CheckpointError as error:
            oracle, message = None, str(error)
    event("refused" if oracle is None else "loaded")
    if oracle is None:
        assert message.isprintable()  # one line, without what would drive a terminal
    else:
        assert all(p.dtype == torch.float32 for p in oracle.network.parameters())
    assert events == []
    assert not place.with_name("PROOF").exists()


@settings(max_examples=100)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused(place, data):
    place.write_bytes(b"\x80\x04" + data)
    with watched() as events, pytest.raises(CheckpointError):
        load_edm(place)
    assert events == []


def test_the_hostile_file_is_hostile(place):
    with watched() as events, pytest.raises(Exception, match=r"torch_utils|source text|function"):
        pickle.loads(FILES[2])
    assert any(entry.startswith("import") for entry in events)
