"""Randomly damaged files either load or raise CheckpointError, and never run code."""

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


def sound_and_hostile():
    """Two files that load, and one with a planted call of ``os.system``."""
    network = make_network(side=2, channels=1, **SMALLEST)
    return [
        pickled(network),
        pickled(network, protocol=2),
        pickled(network, extra={"hook": Planted()}),
    ]


FILES = sound_and_hostile()


def opcode_offsets(data):
    """Offsets of opcodes, and some inside storages; most other bytes are tensor values."""
    for opcode, argument, offset in pickletools.genops(data):
        yield offset
        if opcode.name == "BINBYTES":
            yield from range(offset + 5, offset + 5 + min(len(argument), 300), 12)


OFFSETS = [list(opcode_offsets(data)) for data in FILES]
CODES = sorted(ord(opcode.code) for opcode in pickletools.opcodes)

BYTES = st.integers(0, 255) | st.sampled_from(CODES) | st.sampled_from([0, 0x7F, 0x80, 0xFF])


@st.composite
def damaged(draw):
    """A file with bytes changed, inserted, removed or copied, or cut short."""
    index = draw(st.integers(0, len(FILES) - 1))
    data = bytearray(FILES[index])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.sampled_from(OFFSETS[index])) + draw(st.integers(0, 12))
        at = min(max(at, 2), len(data) - 1)
        edit = draw(
            st.sampled_from(["change", "change", "insert", "remove", "copy", "cut", "swell"])
        )
        if edit == "change":
            data[at] = draw(BYTES)
        elif edit == "insert":
            data[at:at] = bytes(draw(st.lists(BYTES, min_size=1, max_size=9)))
        elif edit == "remove":
            del data[at : at + draw(st.integers(1, 40))]
        elif edit == "copy":
            other = draw(st.sampled_from(OFFSETS[index]))
            data[at:at] = data[other : other + draw(st.integers(1, 200))]
        elif edit == "swell":
            data[at : at + 4] = b"\xff\xff\xff\x7f"
        else:
            del data[at:]
        if len(data) < 4:
            break
    return bytes(data)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "network.pkl"
    path.write_bytes(FILES[0])
    load_edm(path)(torch.zeros(1, 1, 2, 2), 1.0)  # triggers the imports of the first use
    before = os.getcwd()
    os.chdir(folder)
    yield path
    os.chdir(before)


@settings(max_examples=150)
@given(data=damaged())
def test_damaged_file_loads_or_is_refused_and_runs_no_code(checkpoint, data):
    checkpoint.write_bytes(data)
    with watched() as events:
        try:
            oracle = load_edm(checkpoint)
        except CheckpointError as error:
            oracle, message = None, str(error)
    event("refused" if oracle is None else "loaded")
    if oracle is None:
        assert message.isprintable()  # one line, without terminal control codes
    else:
        assert all(p.dtype == torch.float32 for p in oracle.network.parameters())
    assert events == []
    assert not checkpoint.with_name("PROOF").exists()


@settings(max_examples=100)
@given(data=st.binary(max_size=300))
def test_random_bytes_are_refused(checkpoint, data):
    checkpoint.write_bytes(b"\x80\x04" + data)
    with watched() as events, pytest.raises(CheckpointError):
        load_edm(checkpoint)
    assert events == []


def test_plain_pickle_imports_what_the_hostile_file_names(checkpoint):
    with watched() as events, pytest.raises(Exception, match=r"torch_utils|source text|function"):
        pickle.loads(FILES[2])
    assert any(entry.startswith("import") for entry in events)
