"""Checkpoints that crash torch's reader: each is refused, however it is wrapped."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch

from golddiff.oracles.load import load_oracle
from golddiff.system.errors import CheckpointError
from golddiff.system.torch_files import read_torch
from reliability.fuzz.bundle import unbundle
from reliability.fuzz.images import packed

# A key of 200,000 nested tuples: its hash overflows the C stack.
NEST = b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001


def members_of(checkpoint):
    with zipfile.ZipFile(io.BytesIO(checkpoint)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def saved(values, zipped=True):
    out = io.BytesIO()
    torch.save(values, out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


def nested(checkpoint, name="data.pkl"):
    """The archive with NEST as its values, stored under ``name``."""
    members = members_of(checkpoint)
    member = next(n for n in members if n.endswith("data.pkl"))
    del members[member]
    return packed({member.replace("data.pkl", name): NEST, **members})


def older_format(values=NEST, names=None):
    """A checkpoint in torch's older format: consecutive pickles."""
    head = [MAGIC, VERSION, {"protocol_version": VERSION, "little_endian": True, "type_sizes": {}}]
    names = pickle.dumps([], 2) if names is None else names
    return b"".join(pickle.dumps(part, 2) for part in head) + values + names


@pytest.mark.parametrize(
    ("name", "message"),
    [("data.pkl", "a key that is a tuple"), ("DATA.PKL", "0 members"), ("Data.pkl", "0 members")],
)
def test_values_are_checked_whatever_the_case_of_their_name(tmp_path, name, message):
    """torch's own archive reader ignores the case of member names."""
    (tmp_path / "m.pt").write_bytes(nested(saved({"a": torch.zeros(1)}), name))
    with pytest.raises(CheckpointError, match=message):
        load_oracle(tmp_path / "m.pt")


def test_pickles_before_an_archive_are_checked(tmp_path):
    """Python recognises the archive by its end, torch the pickles by their beginning."""
    (tmp_path / "m.pt").write_bytes(older_format() + saved({"a": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match="a key that is a tuple"):
        load_oracle(tmp_path / "m.pt")


def test_storage_names_are_checked(tmp_path):
    (tmp_path / "m.pt").write_bytes(older_format(pickle.dumps({}, 2), NEST))
    with pytest.raises(CheckpointError, match="a key that is a tuple"):
        read_torch(tmp_path / "m.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoints_saved_by_torch_are_read(tmp_path, zipped):
    state = {"a": torch.zeros(3), "b": {"c": [1, 2.5, "x"]}, "d": torch.arange(4)}
    (tmp_path / "m.pt").write_bytes(saved(state, zipped))
    read = read_torch(tmp_path / "m.pt")
    assert (read["b"], read["d"].tolist()) == (state["b"], [0, 1, 2, 3])


def test_archive_with_a_huge_compression_ratio_is_refused(tmp_path):
    members = members_of(saved({"a": torch.zeros(1)}))
    member = next(name for name in members if name.endswith("data/0"))
    members[member] = bytes(70_000_000)
    (tmp_path / "m.pt").write_bytes(packed(members, zipfile.ZIP_DEFLATED))
    with pytest.raises(CheckpointError, match="more than 200 times"):
        read_torch(tmp_path / "m.pt")


def test_diffusers_bin_file_is_checked(tmp_path):
    from reliability.fuzz.networks import diffusers

    files = unbundle(diffusers()[1])
    name = "diffusion_pytorch_model.bin"
    for file, body in files.items():
        (tmp_path / file).write_bytes(nested(body) if file == name else body)
    with pytest.raises(CheckpointError, match="a key that is a tuple"):
        load_oracle(tmp_path)


def test_training_state_is_checked(tmp_path):
    from golddiff_lab.training.run import STATE
    from reliability.fuzz.networks import _state, states

    (tmp_path / STATE).write_bytes(nested(states()[0]))
    with pytest.raises(CheckpointError, match="not the state of a training run"):
        _state((tmp_path / STATE).read_bytes(), tmp_path)


def test_invalid_schedule_is_reported_in_one_line(tmp_path):
    from reliability.fuzz.networks import diffusers

    files = unbundle(diffusers()[0])
    name = "scheduler_config.json"
    files[name] = files[name].replace(b'"beta_end": 0.02', b'"beta_end": "x"')
    for file, body in files.items():
        (tmp_path / file).write_bytes(body)
    with pytest.raises(CheckpointError, match="no VP schedule") as raised:
        load_oracle(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        {"store": 5},
        {"denoiser": {"method": "pca", "mask_threshold": []}},
        {"denoiser": {"method": "golddiff", "base": {"method": "optimal"}, "schedule": 3}},
        {"schedule": {"num_train_timesteps": 2**31}},
        {"schedule": {"num_train_timesteps": 10, "beta_start": "x"}},
        {"log_spaced": None},
    ],
    ids=str,
)
def test_forged_pipeline_configuration_is_refused(tmp_path, make_store, change):
    import json

    from golddiff import PCA
    from golddiff.diffusers import AnalyticUNet
    from golddiff.system.errors import GoldDiffError

    store = make_store(
        torch.from_numpy(np.linspace(-1, 1, 320, dtype=np.float32)).reshape(5, 1, 8, 8)
    )
    AnalyticUNet(PCA(store)).save_pretrained(tmp_path)
    path = tmp_path / AnalyticUNet.config_name
    body = json.loads(path.read_text())
    AnalyticUNet.from_pretrained(tmp_path)
    schedule = body["schedule"] | change.get("schedule", {})
    path.write_text(json.dumps(body | change | {"schedule": schedule}))
    with pytest.raises(GoldDiffError):
        AnalyticUNet.from_pretrained(tmp_path)
