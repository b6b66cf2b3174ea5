"""Checkpoints with unusual tensors, links or pipes are refused in one line."""

import json
import math
import os
import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file

from golddiff.oracles.load import load_oracle
from golddiff.oracles.unet import UNet, UNetConfig
from golddiff.store.opening import is_store
from golddiff.system.errors import CheckpointError
from golddiff.system.torch_files import read_torch
from golddiff_lab.training.writing import describe_network, write_weights
from reliability.fuzz.bundle import unbundle
from reliability.fuzz.networks import TINY, diffusers
from tests.oracles.edm.make import SMALLEST, make_network, pickled

CONFIG = UNetConfig(32, (1,), 1, 1)


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    return UNet(CONFIG).state_dict()


def nested(value):
    return torch.nested.nested_tensor([value.flatten(), value.flatten()[:2]])


ODD = {
    "sparse": lambda v: v.to_sparse(),
    "meta": lambda v: v.to("meta"),
    "nested": nested,
    "float8_e4m3fn": lambda v: v.to(torch.float8_e4m3fn),
    "int64": lambda v: v.long(),
    "complex64": lambda v: v.to(torch.complex64),
    "quantised": lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.quint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("wrapped", [True, False])
def test_tensor_of_an_unsupported_type_is_named(state, tmp_path, kind, wrapped):
    weights = state | {"tail.2.weight": ODD[kind](state["tail.2.weight"])}
    torch.save({"model_state_dict": weights} if wrapped else weights, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"tail\.2\.weight") as raised:
        load_oracle(tmp_path / "m.pt")
    assert kind in str(raised.value)
    assert "\n" not in str(raised.value)


def spoil_published(folder, state, value):
    spoiled = {n: v.double() for n, v in state.items()}
    spoiled["tail.2.weight"].fill_(value)
    torch.save(spoiled, folder / "m.pt")
    return folder / "m.pt", "tail.2.weight"


def spoil_own(folder, state, value):
    description = describe_network(TINY, 4, True, {"data": "noise"})
    write_weights(folder / "m.safetensors", UNet(TINY), description)
    tensors = load_file(folder / "m.safetensors")
    tensors["tail.2.weight"] = torch.full_like(tensors["tail.2.weight"], value, dtype=torch.float64)
    save_file(tensors, folder / "m.safetensors", {"golddiff": json.dumps(description)})
    return folder / "m.safetensors", "tail.2.weight"


def spoil_edm(folder, state, value):
    network = make_network(side=2, channels=1, **SMALLEST).double()
    network.model.map_layer0.weight.data.fill_(value)
    (folder / "m.pkl").write_bytes(pickled(network))
    return folder / "m.pkl", "model.map_layer0.weight"


def spoil_diffusers(folder, state, value):
    for name, body in unbundle(diffusers()[0]).items():
        (folder / name).write_bytes(body)
    path = folder / "diffusion_pytorch_model.safetensors"
    tensors = {name: tensor.double() for name, tensor in load_file(path).items()}
    tensors["conv_in.weight"].fill_(value)
    save_file(tensors, path)
    return folder, "conv_in.weight"


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("spoil", [spoil_published, spoil_own, spoil_edm, spoil_diffusers])
def test_weights_that_are_not_finite_are_named(state, tmp_path, spoil, value):
    path, name = spoil(tmp_path, state, value)
    with pytest.raises(CheckpointError, match=f"{name} holds NaN, infinity, or more than float32"):
        load_oracle(path)


def test_bytearray_in_a_checkpoint_is_refused(tmp_path):
    """torch allows bytearray, with which a file of 200 bytes takes 5.1 GB."""
    torch.save({"a": bytearray(7)}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"asks for .*bytearray"):
        read_torch(tmp_path / "m.pt")


def test_storage_of_another_size_than_declared_is_refused(tmp_path):
    torch.save({"a": torch.zeros(3)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    member = next(name for name in members if name.endswith("data.pkl"))
    for old, new in ((b"K\x03tq", b"J\xff\xff\xff\x7ftq"), (b"K\x03tq", b"K\x02tq")):
        assert old in members[member]
        with zipfile.ZipFile(tmp_path / "n.pt", "w") as archive:
            for name, body in members.items():
                archive.writestr(name, body.replace(old, new) if name == member else body)
        with pytest.raises(CheckpointError, match=r"declares a storage|beyond its"):
            read_torch(tmp_path / "n.pt")


@pytest.fixture
def unet_folder(tmp_path):
    home = tmp_path / "unet"
    home.mkdir()
    for name, body in unbundle(diffusers()[0]).items():
        (home / name).write_bytes(body)
    return home


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_weight_index_beside_valid_weights_is_ignored(unet_folder, ending):
    name = f"diffusion_pytorch_model.{ending}.index.json"
    index = {"metadata": {}, "weight_map": {"conv_in.weight": "elsewhere"}}
    (unet_folder / name).write_text(json.dumps(index))
    (unet_folder / "elsewhere").write_bytes(b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.")
    assert load_oracle(unet_folder).store.shape == (1, 4, 4)


@pytest.mark.parametrize(
    "name", ["config.json", "diffusion_pytorch_model.safetensors", "scheduler_config.json"]
)
def test_links_out_of_a_diffusers_folder_are_refused(unet_folder, tmp_path, name):
    outside = tmp_path / "outside"
    (unet_folder / name).rename(outside)
    (unet_folder / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match="symbolic link that leads out"):
        load_oracle(unet_folder)


def test_hub_cache_snapshot_is_read_through_its_links(unet_folder, tmp_path):
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for path in unet_folder.iterdir():
        path.rename(cache / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert load_oracle(snapshot).store.shape == (1, 4, 4)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are not available")
def test_named_pipes_do_not_block(tmp_path, unet_folder):
    (unet_folder / "diffusion_pytorch_model.safetensors").unlink()
    for name in ("described", "bare"):
        (tmp_path / name).mkdir()
    (tmp_path / "described" / "config.json").write_text('{"format": "golddiff-oracle"}')
    pipes = [
        *("m.pt", "described/model.safetensors", "bare/config.json"),
        "unet/diffusion_pytorch_model.bin",
    ]
    for name in pipes:
        os.mkfifo(tmp_path / name)
    code = (
        "import sys, golddiff\n"
        "for path in sys.argv[1:]:\n"
        "    try: golddiff.load_oracle(path)\n"
        "    except golddiff.CheckpointError as e: print('refused:', e)\n"
    )
    targets = [str(tmp_path / name.split("/")[0]) for name in pipes]
    done = subprocess.run(
        [sys.executable, "-c", code, *targets], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.count("refused:") == len(pipes), done.stderr
    os.mkfifo(tmp_path / "manifest.json")
    assert not is_store(tmp_path)
