"""Hostile files: whatever is planted is refused by its name, and none of it runs."""

import copyreg
import os
import pickle
import struct
import sys

import numpy as np
import pytest
import torch

from golddiff.errors import CheckpointError
from golddiff.oracles.edm import load_edm
from golddiff.oracles.edm.storages import MAGIC, read_storage
from tests.oracles.edm.make import SMALLEST, make_network, pickled
from tests.oracles.edm.watch import watched

SYSTEM = f"{os.system.__module__}.system"  # posix.system, nt.system


class Evil:
    """Pickles as a call of any function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    made = make_network(side=2, channels=1, **SMALLEST)
    path = tmp_path_factory.mktemp("plain") / "network.pkl"
    path.write_bytes(pickled(made))
    load_edm(path)  # whatever is imported on first use is imported now
    return made


@pytest.fixture
def refused(tmp_path, network, monkeypatch):
    """refused(bytes, name): the file is refused, the message gives the name, nothing runs."""
    monkeypatch.chdir(tmp_path)  # where the plants would leave PROOF
    proof, path = tmp_path / "PROOF", tmp_path / "network.pkl"

    def check(data, name, what="asks for "):
        path.write_bytes(data)
        with watched() as events, pytest.raises(CheckpointError) as caught:
            load_edm(path)
        assert f"{what}{name}" in str(caught.value)
        assert events == []
        assert not proof.exists()

    return check


TOUCH = "touch PROOF"


def test_the_plants_do_run_where_pickle_reads_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Evil(os.system, TOUCH))
    with watched() as events:
        pickle.loads(data)
    assert (tmp_path / "PROOF").exists()
    assert any(event.startswith("os.system") for event in events)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, (TOUCH,), SYSTEM),
        (eval, ("__import__('os').system('touch PROOF')",), "eval"),
        (exec, ("open('PROOF', 'w')",), "exec"),
        (getattr, ("text", "format"), "getattr"),
        (__import__, ("antigravity",), "__import__"),
        (open, ("PROOF", "w"), "io.open" if open.__module__ == "io" else "open"),
        (pickle.loads, (b"N.",), "_pickle.loads"),
        (torch.load, ("PROOF",), "torch.serialization.load"),
        (np.load, ("PROOF",), "numpy.load"),
        (sys.exit, (1,), "sys.exit"),
        (torch.nn.Linear, (10**9, 10**9), "torch.nn.modules.linear.Linear"),
        (bytearray, (2**40,), "bytearray"),
    ],
)
def test_planted_calls_are_refused_by_name(refused, network, function, arguments, name, protocol):
    evil = Evil(function, *arguments)
    name = name if "." in name else f"builtins.{name}"
    if protocol == 2:  # the names that Python 2 had for them
        name = name.replace("builtins", "__builtin__").replace("_pickle", "pickle")
    for data in (
        pickle.dumps(evil, protocol),
        pickle.dumps({"ema": evil}, protocol),
        pickled(network, protocol=protocol, extra={"hook": evil}),
        pickled(network, protocol=protocol, extra={"_init_kwargs": {"side": evil}}),
        pickled(network, protocol=protocol, whole={"loss_fn": evil}),
    ):
        refused(data, name)


def unicode(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def stack_global(module, name):
    return unicode(module) + unicode(name) + b"\x93"


ARGUMENTS = unicode(TOUCH) + b"\x85"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"cos\nsystem\n" + ARGUMENTS + b"R", "os.system"),
        (stack_global("os", "system") + ARGUMENTS + b"R", "os.system"),
        # Dotted names are walked by protocol 4.
        (stack_global("torch.serialization", "os.system") + ARGUMENTS + b"R", "torch.seriali"),
        (stack_global("torch._utils", "_rebuild_tensor_v2.__globals__"), "torch._utils._rebuild"),
        (stack_global("torch._utils", "sys.modules"), "torch._utils.sys.modules"),
        (stack_global("collections", "OrderedDict.__init__.__globals__"), "collections.Ord"),
        (stack_global("collections", "_sys.modules"), "collections._sys.modules"),
        (stack_global("torch", "storage._load_from_bytes"), "torch.storage._load_from_bytes"),
        (stack_global("torch.storage", "UntypedStorage"), "torch.storage.UntypedStorage"),
        (stack_global("torch", "FloatStorage"), "torch.FloatStorage"),
        (stack_global("numpy", "dtype.__class__"), "numpy.dtype.__class__"),
        (stack_global("collections\0", "OrderedDict"), "collections?.OrderedDict"),
        (stack_global("\x1b[31mred", "x"), "?[31mred.x"),
        (b"(" + unicode(TOUCH) + b"ios\nsystem\n", "os.system"),  # INST
        (b"(cos\nsystem\n" + unicode(TOUCH) + b"o", "os.system"),  # OBJ
        (b"(ccollections\nOrderedDict\n0cos\nsystem\n" + unicode(TOUCH) + b"o", "os.system"),
        (stack_global("subprocess", "Popen") + ARGUMENTS + b"\x81", "subprocess.Popen"),  # NEWOBJ
        (stack_global("subprocess", "Popen") + ARGUMENTS + b"}\x92", "subprocess.Popen"),
        (b"\x82\x01", "the registered extension 1"),  # EXT1
        (b"\x83\x01\x01", "the registered extension 257"),
        (b"\x84\x01\0\0\x7f", "the registered extension 2130706433"),
        (b"Pkey\n", "an object kept outside the file"),  # PERSID
        (unicode("key") + b"Q", "an object kept outside the file"),  # BINPERSID
        (b"NN\x93", "something whose name is not text"),
    ],
)
def test_every_opcode_that_names_anything_goes_through_the_gate(refused, body, name):
    refused(b"\x80\x04" + body + b".", name)


def test_registered_extensions_are_refused_too(refused):
    copyreg.add_extension("os", "system", 7)
    try:
        refused(b"\x80\x04\x82\x07" + ARGUMENTS + b"R.", "the registered extension 7")
    finally:
        copyreg.remove_extension("os", "system", 7)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (ARGUMENTS + ARGUMENTS + b"R", "calls a value of type tuple"),
        (unicode("eval") + ARGUMENTS + b"R", "calls a value of type str"),
        (unicode("eval") + ARGUMENTS + b"\x81", "calls a value of type str"),
        (b"(" + unicode("eval") + unicode("1") + b"o", "calls a value of type str"),
        (b"ccollections\nOrderedDict\n)}" + unicode("a") + b"Ns\x92", "with keyword arguments"),
        (b"ccollections\nOrderedDict\n)R}b", "sets the state of a value of type OrderedDict"),
        (b"ccollections\nOrderedDict\n}b", "sets the state of a value of type Allowed"),
        (b"]}b", "sets the state of a value of type list"),
        (b"ctorch.nn.modules.linear\nIdentity\n)\x81]b", "state of a Identity is not a dict"),
        (b"ctorch.nn.modules.linear\nIdentity\n)\x81Na", "adds values to Record"),
        (b"ctorch.nn.modules.linear\nIdentity\n)\x81NNs", "adds values to Record"),
        (b"ctorch.nn.modules.linear\nIdentity\n(K\1tR", "with wrong arguments"),
        (b"cnumpy\ndtype\n" + unicode("O8") + b"\x85R", "the NumPy type O8"),
        (b"cnumpy\ndtype\n" + unicode("V1000") + b"\x85R", "the NumPy type V1000"),
        (b"c_codecs\nencode\n" + unicode("a") + unicode("rot13") + b"\x86R", "another encoding"),
        (b"ctorch._utils\n_rebuild_parameter\n(NNNtR", "a parameter in it is made of NoneType"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n(NK\0))NNtR", "a tensor in it is made of NoneType"),
        (b"ctorch_utils.persistence\n_reconstruct_persistent_obj\n}\x85R", "an unknown form"),
    ],
)
def test_allowed_names_only_do_what_they_stand_for(refused, body, message):
    refused(b"\x80\x04" + body + b".", message, what="")


def test_the_source_text_stays_text(tmp_path, network):
    source = f"import os\nos.system('touch {tmp_path / 'ran'}')\n"
    path = tmp_path / "network.pkl"
    assert source.encode() in pickled(network, source=source)
    path.write_bytes(pickled(network, source=source))
    load_edm(path)
    with watched() as events:
        load_edm(path)
    assert events == []
    assert not (tmp_path / "ran").exists()


def array_of(thing):
    array = np.empty(1, object)
    array[0] = thing
    return array


def test_arrays_of_objects_are_refused(refused, network):
    evil = array_of(Evil(os.system, TOUCH))
    module = type(evil).__reduce__(evil)[0].__module__
    refused(pickled(network, extra={"x": evil}), f"{module}._reconstruct")


def test_numbers_of_objects_are_refused(refused):
    inner = pickle.dumps(Evil(os.system, TOUCH), 2)
    kind = b"cnumpy\ndtype\n" + unicode("O") + b"\x85R"
    body = (
        b"cnumpy.core.multiarray\nscalar\n" + kind + b"C" + bytes([len(inner)]) + inner + b"\x86R"
    )
    refused(b"\x80\x04" + body + b".", "the NumPy type O")


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
    assert torch.equal(read_storage(memoryview(as_torch_writes(values))).values, values)


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
        (legacy_storage(kind=b"ctorch\nFloatStorage\n)R"), "calls a value of type _Type"),
        (legacy_storage(magic=1), "of an unknown format"),
        (legacy_storage(version=2), "of an unknown format"),
        (legacy_storage(words={"little_endian": False}), "big-endian"),
        (legacy_storage(keys=["7", "8"]), "not one storage"),
        (legacy_storage(count=2**31 - 1), "the length of a storage"),
        (legacy_storage(count=-1), "of negative length"),
        (legacy_storage()[:-4], "declares 2 numbers and holds 1"),
        (legacy_storage() + b"x", "declares 2 numbers and holds 2"),
        (legacy_storage(kind=b"ctorch\nDoubleStorage\n"), "declares 2 numbers and holds 1"),
        (b"", "cut short"),
        (b"PK\x03\x04", "cut short"),
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
        (0, (3,), (1,), "goes beyond its 2 numbers"),
        (1, (2,), (1,), "goes beyond its 2 numbers"),
        (0, (2,), (2,), "goes beyond its 2 numbers"),
        (0, (10**6, 10**6), (0, 0), "goes beyond its 2 numbers"),
        (2, (1,), (1,), "goes beyond its 2 numbers"),
        (-1, (1,), (1,), "impossible shape"),
        (0, (-1,), (1,), "impossible shape"),
        (0, (1,), (-1,), "impossible shape"),
        (0, (1, 1), (1,), "impossible shape"),
        (0, (1.0,), (1,), "impossible shape"),
        (0, [1], (1,), "no tuple for a shape"),
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
    with pytest.raises(CheckpointError, match="share memory, and together take more than the file"):
        load_edm(path)


def test_modules_without_end_are_refused(tmp_path):
    network, loop = make_network(**SMALLEST), torch.nn.ModuleDict()
    loop._modules["again"] = loop
    network.model._modules["loop"] = loop
    path = tmp_path / "network.pkl"
    path.write_bytes(pickled(network))
    with pytest.raises(CheckpointError, match="nested without end"):
        load_edm(path)
