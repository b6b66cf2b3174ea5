"""Hostile files: planted code is refused by its name and never runs."""

import copyreg
import os
import pickle
import sys

import numpy as np
import pytest
import torch

from golddiff import load_oracle as load_edm
from golddiff.system.errors import CheckpointError
from reliability.fuzz.watch import watched
from tests.oracles.edm.conftest import NOTHING
from tests.oracles.edm.hostile import SYSTEM, TOUCH, Evil, unicode
from tests.oracles.edm.make import SMALLEST, make_network, pickled


def test_planted_code_runs_under_plain_pickle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Evil(os.system, TOUCH))
    with watched(tmp_path, NOTHING) as events:
        pickle.loads(data)
    assert (tmp_path / "PROOF").exists()
    assert any(event.startswith("os.system") for event in events)


@pytest.mark.parametrize("protocol", [2, 3, 5])
@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, (TOUCH,), SYSTEM),
        (eval, ("__import__('os').system('touch PROOF')",), "eval"),
        (exec, ("open('PROOF', 'w')",), "exec"),
        (getattr, ("text", "format"), "getattr"),
        (__import__, ("antigravity",), "__import__"),
        (open, ("PROOF", "w"), f"{open.__module__}.open"),
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
    if protocol == 2:  # protocol 2 uses the names of Python 2
        name = name.replace("builtins", "__builtin__").replace("_pickle", "pickle")
    for data in (
        pickle.dumps(evil, protocol),
        pickle.dumps({"ema": evil}, protocol),
        pickled(network, protocol=protocol, extra={"hook": evil}),
        pickled(network, protocol=protocol, extra={"_init_kwargs": {"side": evil}}),
        pickled(network, protocol=protocol, whole={"loss_fn": evil}),
    ):
        refused(data, name)


def stack_global(module, name):
    return unicode(module) + unicode(name) + b"\x93"


ARGUMENTS = unicode(TOUCH) + b"\x85"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"cos\nsystem\n" + ARGUMENTS + b"R", "os.system"),
        (stack_global("os", "system") + ARGUMENTS + b"R", "os.system"),
        # Protocol 4 resolves dotted names.
        (stack_global("torch.serialization", "os.system") + ARGUMENTS + b"R", "torch.seriali"),
        (stack_global("torch._utils", "_rebuild_tensor_v2.__globals__"), "torch._utils._rebuild"),
        (stack_global("torch._utils", "sys.modules"), "torch._utils.sys.modules"),
        (stack_global("collections", "OrderedDict.__init__.__globals__"), "collections.Ord"),
        (stack_global("collections", "_sys.modules"), "collections._sys.modules"),
        (stack_global("torch", "storage._load_from_bytes"), "torch.storage._load_from_bytes"),
        (stack_global("torch.storage", "UntypedStorage"), "torch.storage.UntypedStorage"),
        (stack_global("torch", "FloatStorage"), "torch.FloatStorage"),
        (stack_global("numpy", "dtype.__class__"), "numpy.dtype.__class__"),
        (stack_global("collections\0", "OrderedDict"), "collections\\x00.OrderedDict"),
        (stack_global("\x1b[31mred", "x"), "\\x1b[31mred.x"),
        (b"(" + unicode(TOUCH) + b"ios\nsystem\n", "os.system"),  # INST
        (b"(cos\nsystem\n" + unicode(TOUCH) + b"o", "os.system"),  # OBJ
        (b"(ccollections\nOrderedDict\n0cos\nsystem\n" + unicode(TOUCH) + b"o", "os.system"),
        (stack_global("subprocess", "Popen") + ARGUMENTS + b"\x81", "subprocess.Popen"),  # NEWOBJ
        (stack_global("subprocess", "Popen") + ARGUMENTS + b"}\x92", "subprocess.Popen"),
        (b"\x82\x01", "the opcode"),  # EXT1
        (b"\x83\x01\x01", "the opcode"),
        (b"\x84\x01\0\0\x7f", "the opcode"),
        (b"Pkey\n", "an object kept outside the file"),  # PERSID
        (unicode("key") + b"Q", "an object kept outside the file"),  # BINPERSID
    ],
)
def test_every_opcode_that_names_an_object_is_checked(refused, body, name):
    refused(b"\x80\x04" + body + b".", name)


def test_registered_extensions_are_refused(refused):
    copyreg.add_extension("os", "system", 7)
    try:
        refused(b"\x80\x04\x82\x07" + ARGUMENTS + b"R.", "the opcode")
    finally:
        copyreg.remove_extension("os", "system", 7)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (ARGUMENTS + ARGUMENTS + b"R", "calls a tuple"),
        (unicode("eval") + ARGUMENTS + b"R", "calls a str"),
        (unicode("eval") + ARGUMENTS + b"\x81", "calls a str"),
        (b"(" + unicode("eval") + unicode("1") + b"o", "calls a str"),
        (b"ccollections\nOrderedDict\n)}" + unicode("a") + b"Ns\x92", "calls a function"),
        (b"ccollections\nOrderedDict\n}b", "sets the state of a function"),
        (b"ctorch.nn.modules.linear\nIdentity\n}b", "sets the state of a type"),
        (b"cdnnlib.util\nEasyDict\n)\x81}b", "sets the state of a dict"),
        (b"]}b", "sets the state of a list"),
        (b"ctorch.nn.modules.linear\nIdentity\n)\x81]b", "a module whose state is not a dict"),
        (b"ctorch.nn.modules.linear\nIdentity\n)\x81Na", "adds values to a Record"),
        (b"ctorch.nn.modules.linear\nIdentity\n)\x81NNs", "adds values to a Record"),
        (b"ctorch.nn.modules.linear\nIdentity\n(K\1tR", "takes 1 positional argument"),
        (b"ctorch\nfloat32\n)R", "calls a dtype"),
        (b"cnumpy\ndtype\n" + unicode("O8") + b"\x85R", "the NumPy type O8"),
        (b"cnumpy\ndtype\n" + unicode("V1000") + b"\x85R", "the NumPy type V1000"),
        (
            b"c_codecs\nencode\n" + unicode("a") + unicode("rot13") + b"\x86R",
            "encoding 'rot13'",
        ),
        (b"ctorch._utils\n_rebuild_parameter\n(NNNtR", "a parameter made of NoneType"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n(NK\0))NNtR", "a tensor made of NoneType"),
        (b"ctorch_utils.persistence\n_reconstruct_persistent_obj\n}\x85R", "of an unknown form"),
    ],
)
def test_allowed_names_are_refused_in_any_other_use(refused, body, message):
    refused(b"\x80\x04" + body + b".", message, prefix="")


def test_source_text_in_the_file_is_not_run(tmp_path, network):
    source = f"import os\nos.system('touch {tmp_path / 'ran'}')\n"
    path = tmp_path / "network.pkl"
    assert source.encode() in pickled(network, source=source)
    path.write_bytes(pickled(network, source=source))
    load_edm(path)
    with watched(tmp_path, NOTHING) as events:
        load_edm(path)
    assert events == []
    assert not (tmp_path / "ran").exists()


def array_of(value):
    array = np.empty(1, object)
    array[0] = value
    return array


def test_object_arrays_are_refused(refused, network):
    evil = array_of(Evil(os.system, TOUCH))
    refused(pickled(network, extra={"x": evil}), "the NumPy type O8")


def test_object_scalars_are_refused(refused):
    inner = pickle.dumps(Evil(os.system, TOUCH), 2)
    kind = b"cnumpy\ndtype\n" + unicode("O") + b"\x85R"
    body = (
        b"cnumpy.core.multiarray\nscalar\n" + kind + b"C" + bytes([len(inner)]) + inner + b"\x86R"
    )
    refused(b"\x80\x04" + body + b".", "the NumPy type O")


@pytest.mark.parametrize("depth", [0, 40])
def test_modules_that_occur_twice_are_refused(tmp_path, depth):
    """Depth 0: a module that holds itself. Depth 40: shared modules with 2^40 names."""
    network, loop = make_network(**SMALLEST), torch.nn.ModuleDict()
    if depth == 0:
        loop._modules["again"] = loop
    for _ in range(depth):
        loop, inner = torch.nn.ModuleDict(), loop
        loop._modules |= {"a": inner, "b": inner}
    network.model._modules["loop"] = loop
    path = tmp_path / "network.pkl"
    path.write_bytes(pickled(network))
    with pytest.raises(CheckpointError, match=r"loop\..* is a module that stands elsewhere too"):
        load_edm(path)
