"""The oracle's runs, cached on disk."""

from types import SimpleNamespace

import pytest
import torch

import golddiff
from golddiff.evaluation.references import OracleFile, reference_run, weights_checksum
from golddiff.evaluation.runs import RunSettings
from golddiff.system.errors import ArgumentError
from tests.oracles_for_tests import Shrinking


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(20, (1, 6, 6)))


@pytest.fixture
def oracle(store, tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"one")
    network = OracleFile(path)
    network.call = Shrinking(store.images().mean(0), store.shape)
    return network


def test_a_run_is_computed_once_and_read_back_exactly(store, oracle, tmp_path):
    settings = RunSettings(3, 4)
    first = reference_run(oracle, store, settings, tmp_path)
    calls = oracle.call.calls
    saved = reference_run(oracle, store, RunSettings(3, 4, batch=2), tmp_path)
    assert oracle.call.calls == calls
    for name in ("images", "states", "predictions"):
        torch.testing.assert_close(getattr(first, name), getattr(saved, name), rtol=0, atol=0)
    assert (saved.sigmas, saved.seconds) == (first.sigmas, first.seconds)


@pytest.mark.parametrize(
    "other",
    [RunSettings(2, 4), RunSettings(3, 5), RunSettings(3, 4, "heun"), RunSettings(3, 4, seed=1)],
)
def test_other_settings_need_another_run(store, oracle, tmp_path, other):
    reference_run(oracle, store, RunSettings(3, 4), tmp_path)
    calls = oracle.call.calls
    reference_run(oracle, store, other, tmp_path)
    assert oracle.call.calls > calls


def test_another_shape_or_range_needs_another_run(store, oracle, tmp_path):
    reference_run(oracle, store, RunSettings(3, 4), tmp_path)
    calls = oracle.call.calls
    unclipped = SimpleNamespace(shape=store.shape, is_pixels=False)
    reference_run(oracle, unclipped, RunSettings(3, 4), tmp_path)
    assert oracle.call.calls > calls
    with pytest.raises(ArgumentError, match="oracle: is for images of shape"):
        reference_run(
            oracle, SimpleNamespace(shape=(1, 6, 7), is_pixels=True), RunSettings(3, 4), tmp_path
        )


def test_classes_of_other_names_are_refused_also_where_the_run_is_saved(store, oracle, tmp_path):
    cats, dogs = (
        SimpleNamespace(shape=store.shape, is_pixels=True, class_names=[name])
        for name in ("cat", "dog")
    )
    oracle.call = lambda x, sigma, labels: x
    oracle.call.class_names = ["cat"]
    reference_run(oracle, cats, RunSettings(1, 1, labels=(0,)), tmp_path)
    with pytest.raises(ArgumentError, match="class 0 of the oracle is 'cat'"):
        reference_run(oracle, dogs, RunSettings(1, 1, labels=(0,)), tmp_path)


def test_other_weights_need_another_run(store, oracle, tmp_path):
    settings = RunSettings(2, 2)
    reference_run(oracle, store, settings, tmp_path)
    oracle.path.write_bytes(b"two")
    other = OracleFile(oracle.path)
    assert other.checksum != oracle.checksum
    other.call = Shrinking(0.0, store.shape)
    reference_run(other, store, settings, tmp_path)
    assert other.call.calls > 0


def test_a_damaged_file_is_recomputed(store, oracle, tmp_path):
    settings = RunSettings(2, 2)
    first = reference_run(oracle, store, settings, tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:40])
    recomputed = reference_run(oracle, store, settings, tmp_path)
    torch.testing.assert_close(first.images, recomputed.images)


def test_the_checksum_of_a_folder_covers_weights_config_and_scheduler_but_no_log(tmp_path):
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    before = weights_checksum(folder)
    (folder / "log.csv").write_text("loss")
    assert weights_checksum(folder) == before
    (folder / "config.json").write_text("{}")
    assert weights_checksum(folder) != before
    before = weights_checksum(folder)
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text("{}")
    assert weights_checksum(folder) != before
    with pytest.raises(ArgumentError, match="does not exist"):
        weights_checksum(tmp_path / "none")


def test_the_network_is_loaded_once_when_first_needed(monkeypatch, tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"one")
    loaded = []
    monkeypatch.setattr(
        golddiff, "load_oracle", lambda p, device: loaded.append(p) or Shrinking(0.0, (1, 6, 6)),
        raising=False,
    )  # fmt: skip
    oracle = OracleFile(path)
    assert loaded == []
    assert oracle.call is oracle.call
    assert loaded == [path]
