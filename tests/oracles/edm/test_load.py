"""Loading EDM networks: outputs, labels, limits of sigma, and errors for other files."""

import gzip
import math
import pickle

import numpy as np
import pytest
import torch

from golddiff import load_oracle as load_edm
from golddiff.system.errors import CheckpointError
from tests.oracles.edm.make import ADM, SMALLEST, TINY, VE, VP, make_network, pickled

PLAIN = make_network(**VP | TINY)


@pytest.fixture
def write(tmp_path):
    """write(data): the path of a new file with these bytes."""

    def make(data, name="network.pkl"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return make


@pytest.fixture
def opened(write):
    """opened(**arguments): a network, and the oracle loaded from its file."""

    def make(precond="EDMPrecond", **arguments):
        network = make_network(precond, **arguments)
        return network, load_edm(write(pickled(network)))

    return make


def noisy(b=3, shape=(3, 8, 8), seed=5):
    return torch.randn((b, *shape), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("protocol", [2, 3, 5])
@pytest.mark.parametrize("design", [VP, VE], ids=["DDPM++", "NCSN++"])
def test_loaded_network_gives_identical_outputs(write, design, protocol):
    network = make_network(augment_dim=9, **design | TINY)
    D = load_edm(write(pickled(network, protocol=protocol)))
    x, sigma = noisy(), torch.tensor([0.002, 0.5, 80.0])
    assert torch.equal(D(x, sigma), network(x, sigma, None))
    assert D.shape == (3, 8, 8)
    assert D.num_classes == 0


def test_kind_names_preconditioning_and_architecture(opened):
    small = ADM | {"model_channels": 8, "channel_mult": [1], "num_blocks": 1}
    for precond, design, kind in (
        ("EDMPrecond", VP | TINY, "EDM (SongUNet, DDPM++)"),
        ("VEPrecond", VE | TINY, "VE (SongUNet, NCSN++)"),
        ("VPPrecond", TINY, "VP (SongUNet, DDPM++)"),
        ("EDMPrecond", VE | {"embedding_type": "positional"} | TINY, "EDM (SongUNet, mixed)"),
        ("iDDPMPrecond", small, "iDDPM (DhariwalUNet, ADM)"),
    ):
        assert opened(precond, **design)[1].kind == kind


@pytest.mark.parametrize("precond", ["EDMPrecond", "VPPrecond", "VEPrecond", "iDDPMPrecond"])
def test_an_oracle_is_the_same_after_pickling(opened, precond):
    _, D = opened(precond, **VP | TINY)
    assert torch.equal(pickle.loads(pickle.dumps(D))(noisy(), 0.7), D(noisy(), 0.7))


def test_sigma_limits_come_from_the_file(opened):
    _, D = opened(sigma_min=0.01, sigma_max=50.0, **VP | TINY)
    assert (D.sigma_min, D.sigma_max) == (0.01, 50.0)
    _, D = opened(**VP | TINY)
    assert (D.sigma_min, D.sigma_max) == (0, math.inf)


def test_positional_constructor_arguments_are_accepted(write):
    network = make_network(**VP | TINY)
    positional = {"_init_args": (8, 3, 0, True), "_init_kwargs": VP | TINY}
    D = load_edm(write(pickled(network, extra=positional)))
    assert torch.equal(D(noisy(), 1.0), network(noisy(), torch.ones(3), None))


def test_half_precision_tensors_become_float32(write):
    network = make_network(**VP | TINY)
    D = load_edm(write(pickled(network.half())))
    assert {p.dtype for p in D.network.parameters()} == {torch.float32}
    assert torch.equal(D(noisy(), 1.0), network.float()(noisy(), torch.ones(3), None))


def test_oracle_is_in_eval_mode_without_gradients(opened):
    _, D = opened(dropout=0.9, **VP | TINY)
    x = noisy().requires_grad_()
    assert not D(x, 1.0).requires_grad
    assert torch.equal(D(x, 1.0), D(x, 1.0))
    assert not D.network.training


def test_labels_select_the_class(opened):
    network, D = opened(classes=4, **VP | TINY)
    x = noisy(2)
    labels = torch.tensor([3, 1])
    assert torch.equal(D(x, 1.0, labels), network(x, torch.ones(2), labels))
    assert torch.equal(D(x, 1.0, [3, 1]), D(x, 1.0, torch.tensor([3, 1])))
    assert torch.equal(D(x, 1.0, 2), D(x, 1.0, [2, 2]))
    assert not torch.equal(D(x, 1.0, 2), D(x, 1.0, 1))
    assert D.num_classes == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"hello", "it begins with b'hello'"),
        (b"(dp0\n.", "it begins with"),
        (gzip.compress(b"hello"), "compressed with gzip"),
        (b"<!DOCTYPE html>", "page of text"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"\x80\x04", "cut short"),
        (b"\x80\x63N.", "pickle protocol: 99"),
        (pickle.dumps([1, 2]), "it holds a list, expected a dict with 'ema'"),
        (pickle.dumps({"G": 1, "D": 2}), "it has no 'ema', the averaged network; it has G, D"),
        (pickle.dumps({}), "it has nothing"),
        (pickle.dumps({"ema": 3}), "its 'ema' is a int, expected a network"),
    ],
)
def test_files_of_other_formats_are_refused(write, data, message):
    path = write(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_edm(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.pkl does not exist"):
        load_edm(tmp_path / "none.pkl")
    with pytest.raises(CheckpointError, match="is no folder of a known network"):
        load_edm(tmp_path)


def test_truncated_files_are_refused(write):
    data = pickled(make_network(**SMALLEST))
    for length in [*range(2, 400, 3), *range(400, len(data), 997), len(data) - 1]:
        with pytest.raises(CheckpointError, match="cut short"):
            load_edm(write(data[:length]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_init_kwargs": VP | TINY | {"magic": 1}}, "takes an unknown argument magic"),
        ({"_init_kwargs": VP | {"model_type": "Transformer"}}, "holds a Transformer, expected"),
        ({"_init_kwargs": VP | {"model_type": "SongUNet\x1b[2J"}}, r"holds a SongUNet\\x1b\[2J, "),
        ({"_init_kwargs": VP | TINY}, "was made without img_resolution"),
        ({"_init_kwargs": None}, "does not say what its EDMPrecond was made with"),
        ({"_init_args": None}, "does not say what its EDMPrecond was made with"),
        ({"_init_args": (8, 3, 0, False, 0.0, 9.0, 0.5, "SongUNet", 1)}, "9 arguments in order"),
        ({"_init_args": (8,)}, "two values for img_resolution"),
        ({"num_blocks": 10**9}, "SongUNet's num_blocks is 1000000000"),
        ({"num_blocks": 1.0}, "SongUNet is impossible"),
        ({"num_blocks": 2}, "lacks 56 names: model.dec.4x4_block2"),
        ({"channel_mult": []}, "SongUNet is impossible"),
        ({"channel_mult": [1] * 99}, "SongUNet's channel_mult is "),
        ({"model_channels": {"a": 1}}, "SongUNet's model_channels is dict"),
        ({"channel_mult": [1, 2, 2, 2, 2]}, "side 8 cannot be halved 4 times"),
        ({"model_channels": 2}, "SongUNet is impossible"),
        ({"model_channels": 5}, "SongUNet cannot run"),
        ({"model_channels": 16}, r"has wrong shapes: .* instead of"),
        ({"resample_filter": [math.nan]}, r"resample_filter is \[nan\]"),
        ({"resample_filter": [1]}, "SongUNet cannot run"),
        ({"encoder_type": "odd"}, "SongUNet is impossible: 'odd'"),
        ({"embedding_type": [1]}, "SongUNet is impossible"),
        ({"model_type": "DhariwalUNet"}, "unknown argument"),
        ({"sigma_data": -1.0}, "has a setting that is not allowed: sigma_data: got -1.0, expected"),
        ({"sigma_data": 0.0}, "has a setting that is not allowed: sigma_data: got 0.0, expected"),
        ({"sigma_min": "x"}, "has a setting that is not allowed: sigma_range: got"),
        ({"label_dim": 3}, "lacks model.map_label.bias, model.map_label.weight"),
        ({"attn_resolutions": [8]}, "lacks 12 names: model.dec.8x8_block1.norm2.bias"),
        ({"attn_resolutions": []}, "has unexpected 12 names: model.dec.4x4_block1"),
    ],
)
def test_bad_constructor_arguments_or_weights_are_refused(write, change, message):
    network = PLAIN
    if not any(name.startswith("_") for name in change):
        change = {"_init_kwargs": network.init_kwargs | change}
    with pytest.raises(CheckpointError, match=message):
        load_edm(write(pickled(network, extra=change)))


def test_unknown_network_class_is_named(write):
    data = pickled(make_network(**VP | TINY), class_name="Precond")
    with pytest.raises(CheckpointError, match="its network is a Precond, expected one of EDMPrec"):
        load_edm(write(data))


def test_inner_network_must_be_of_the_declared_type(write):
    network = make_network(**VP | TINY)
    network.model = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="made with a SongUNet, but holds Linear"):
        load_edm(write(pickled(network)))


def test_numpy_scalars_are_accepted_as_arguments(write):
    network = make_network(**VP | TINY)
    kwargs = network.init_kwargs | {"img_resolution": np.int64(8), "sigma_data": np.float64(0.25)}
    D = load_edm(write(pickled(network, extra={"_init_kwargs": kwargs})))
    one = torch.ones(1, dtype=torch.float64)
    assert D.parameterisation(one, one, 0 * one) == 0.25**2 / (1 + 0.25**2)
