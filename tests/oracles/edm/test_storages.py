"""Tensors and the bytes of their storages, valid and forged."""

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


def legacy_storage(*, magic=MAGIC, version=1001, sys_info=None, keys=("7",), kind=None, count=2):
    """A storage of 2 numbers in torch's older format; arguments replace its parts."""
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
    sys_info = {"little_endian": True} if sys_info is None else sys_info
    parts = [pickle.dumps(part, 2) for part in (magic, version, sys_info)]
    parts += [b"\x80\x02" + identifier + b"Q.", pickle.dumps(list(keys), 2)]
    return b"".join(parts) + struct.pack("<q2f", 2, 1.0, -3.5)


def pickle_of(storage):
    body = b"ctorch.storage\n_load_from_bytes\nB" + struct.pack("<I", len(storage)) + storage
    return b"\x80\x04" + body + b"\x85R."


def torch_storage(values):
    """The bytes that torch writes for a tensor's storage."""
    load, (data,) = values._typed_storage().__reduce__()
    assert load is torch.storage._load_from_bytes
    return data


def test_valid_storages_are_read(refused):
    # The storages are read; the file is refused because it holds nothing else.
    refused(pickle_of(legacy_storage()), "it holds a Storage", prefix="")
    refused(pickle_of(torch_storage(torch.tensor([1.0, -3.5]))), "it holds a Storage", prefix="")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_storage_values_round_trip(dtype):
    values = torch.tensor([1, -3, 250, 0]).to(dtype)
    assert torch.equal(_storage(torch_storage(values)).values, values)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (pickle.dumps(Evil(os.system, TOUCH), 2), f"asks for {SYSTEM}"),
        (legacy_storage(sys_info=Evil(os.system, TOUCH)), f"asks for {SYSTEM}"),
        (legacy_storage(keys=[Evil(eval, "1")]), "asks for __builtin__.eval"),
        (legacy_storage(kind=b"cos\nsystem\n"), "asks for os.system"),
        (
            legacy_storage(kind=b"ctorch.storage\n_load_from_bytes\n"),
            "asks for torch.storage._load",
        ),
        (legacy_storage(kind=b"ctorch\nFloatStorage\n)R"), "calls a dtype"),
        (legacy_storage(magic=1), "of an unknown format"),
        (legacy_storage(version=2), "of an unknown format"),
        (legacy_storage(sys_info={"little_endian": False}), "big-endian"),
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
def test_forged_storages_are_refused(refused, storage, message):
    refused(pickle_of(storage), message, prefix="")


def tensor_of(offset, size, stride):
    """The pickle of a tensor over a storage of 2 numbers."""
    storage = pickle_of(legacy_storage())[2:-1]
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
    refused(tensor_of(offset, size, stride), message, prefix="")


def test_network_larger_than_its_file_is_refused(tmp_path):
    # All parameters share one storage, so the network is larger than its file.
    config = SMALLEST | {"model_channels": 64}
    plain, shared = pickled(make_network(**config)), make_network(**config)
    largest = max(parameter.numel() for parameter in shared.parameters())
    storage = Evil(torch.storage._load_from_bytes, torch_storage(torch.zeros(largest)))
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
