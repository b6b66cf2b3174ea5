"""Tensors and the bytes of their storages: as torch writes them, and as it never would."""

import os
import pickle
import struct

import pytest
import torch

from golddiff import load_oracle as load_edm
from golddiff.oracles.edm.pickled import _storage
from golddiff.system.errors import CheckpointError
from golddiff.system.torch_files import MAGIC
from tests.oracles.edm.hostile import SYSTEM, TOUCH, Evil, unicode
from tests.oracles.edm.make import SMALLEST, make_network, pickled


def legacy_storage(*, magic=MAGIC, version=1001, words=None, keys=("7",), kind=None, count=2):
    """The parts of a storage of torch's older format, one of them replaced."""
    kind = b"ctorch\nFloatStorage\n" if kind is None else kind
    identifier = (
        b"("
        + unicode("storage")
        + kind
        + unicode("7")
        + unicode("cpu")
        + b"J"
        + struct.pack("<i", count)
        + b"Nt"
    )
    words = {"little_endian": True} if words is None else words
    parts = [pickle.dumps(part, 2) for part in (magic, version, words)]
    parts += [b"\x80\x02" + identifier + b"Q.", pickle.dumps(list(keys), 2)]
    return b"".join(parts) + struct.pack("<q2f", 2, 1.0, -3.5)


def loads(storage):
    body = b"ctorch.storage\n_load_from_bytes\nB" + struct.pack("<I", len(storage)) + storage
    return b"\x80\x04" + body + b"\x85R."


def as_torch_writes(values):
    """A tensor's storage, by torch itself."""
    load, (data,) = values._typed_storage().__reduce__()
    assert load is torch.storage._load_from_bytes
    return data


def test_the_storage_as_it_should_be_is_as_torch_writes_it(refused):
    # Refused only because the file holds nothing else.
    refused(loads(legacy_storage()), "it holds a Storage", what="")
    refused(loads(as_torch_writes(torch.tensor([1.0, -3.5]))), "it holds a Storage", what="")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_storages_hold_their_numbers(dtype):
    values = torch.tensor([1, -3, 250, 0]).to(dtype)
    assert torch.equal(_storage(as_torch_writes(values)).values, values)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (pickle.dumps(Evil(os.system, TOUCH), 2), f"asks for {SYSTEM}"),
        (legacy_storage(words=Evil(os.system, TOUCH)), f"asks for {SYSTEM}"),
        (legacy_storage(keys=[Evil(eval, "1")]), "asks for __builtin__.eval"),
        (legacy_storage(kind=b"cos\nsystem\n"), "asks for os.system"),
        (
            legacy_storage(kind=b"ctorch.storage\n_load_from_bytes\n"),
            "asks for torch.storage._load",
        ),
        (legacy_storage(kind=b"ctorch\nFloatStorage\n)R"), "calls a dtype"),
        (legacy_storage(magic=1), "of an unknown format"),
        (legacy_storage(version=2), "of an unknown format"),
        (legacy_storage(words={"little_endian": False}), "big-endian"),
        (legacy_storage(keys=["7", "8"]), "the storages that it declares"),
        (legacy_storage(count=2**31 - 1), "of 2,147,483,647 numbers and holds"),
        (legacy_storage(count=-1), "a storage of another form"),
        (legacy_storage()[:-4], "of 2 numbers and holds 1"),
        (legacy_storage() + b"x", "continues after its last storage"),
        (
            legacy_storage(kind=b"ctorch\nDoubleStorage\n"),
            "of 2 numbers and holds 1",
        ),
        (b"", "cut short"),
        (b"PK\x03\x04", "an object kept outside"),
    ],
)
def test_what_is_inside_a_storage_goes_through_a_gate_too(refused, storage, message):
    refused(loads(storage), message, what="")


def tensor_of(offset, size, stride):
    """A tensor over a storage of 2 numbers."""
    storage = loads(legacy_storage())[2:-1]
    numbers = b"".join(pickle.dumps(part, 3)[2:-1] for part in (offset, size, stride))
    return b"\x80\x04ctorch._utils\n_rebuild_tensor_v2\n(" + storage + numbers + b"NNtR."


@pytest.mark.parametrize(
    ("offset", "size", "stride", "message"),
    [
        (0, (2,), (1,), "it holds a Tensor"),
        (1, (1,), (1,), "it holds a Tensor"),
        (0, (3,), (1,), "beyond its 2 numbers"),
        (1, (2,), (1,), "beyond its 2 numbers"),
        (0, (2,), (2,), "beyond its 2 numbers"),
        (0, (10**6, 10**6), (0, 0), "beyond its 2 numbers"),
        (2, (1,), (1,), "beyond its 2 numbers"),
        (-1, (1,), (1,), "an impossible shape"),
        (0, (-1,), (1,), "an impossible shape"),
        (0, (1,), (-1,), "an impossible shape"),
        (0, (1, 1), (1,), "an impossible shape"),
        (0, (1.0,), (1,), "an impossible shape"),
        (0, [1], (1,), "an impossible shape"),
    ],
)
def test_tensors_stay_inside_their_storage(refused, offset, size, stride, message):
    refused(tensor_of(offset, size, stride), message, what="")


def test_tensors_that_share_memory_do_not_swell(tmp_path):
    # One storage stands for all: the network may not become larger than the file.
    config = SMALLEST | {"model_channels": 64}
    plain, shared = pickled(make_network(**config)), make_network(**config)
    largest = max(parameter.numel() for parameter in shared.parameters())
    storage = Evil(torch.storage._load_from_bytes, as_torch_writes(torch.zeros(largest)))
    for module in shared.modules():
        module.__dict__["_parameters"] = {
            name: Evil(
                torch._utils._rebuild_tensor_v2, storage, 0, tuple(p.shape), p.stride(), False, None
            )
            for name, p in module._parameters.items()
        }
    path = tmp_path / "network.pkl"
    path.write_bytes(pickled(shared))
    assert path.stat().st_size < len(plain) / 3
    with pytest.raises(CheckpointError, match="share memory, and together are larger"):
        load_edm(path)
