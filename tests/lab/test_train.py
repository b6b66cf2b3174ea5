import csv
import itertools
import json
import os
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch

from golddiff import CheckpointError, ImageStore, load_oracle
from golddiff.oracles.parameterisations import Steps, ddpm_alphas
from golddiff.oracles.unet import UNet, UNetConfig
from golddiff.system.errors import ArgumentError
from golddiff_lab.training import train as training
from golddiff_lab.training.run import initialise
from golddiff_lab.training.settings import TrainSettings
from golddiff_lab.training.train import Examples, learning_rate, train, update_ema

SMALL = {"channels": 32, "multipliers": (1,), "blocks": 1, "batch": 8, "minutes": None}


def small(steps=6, **changes):
    return TrainSettings(**{**SMALL, "steps": steps, "precision": "float32", **changes})


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return ImageStore.build("digits", tmp_path_factory.mktemp("digits") / "store", limit=200)


def weights(folder):
    return load_oracle(folder).network.state_dict()


def test_an_untrained_network_predicts_almost_zero():
    torch.manual_seed(0)
    network = UNet(UNetConfig(32, (1, 2), image_channels=1)).eval()
    initialise(network)
    out = network(torch.randn(2, 1, 8, 8), torch.tensor([1, 999]))
    assert out.abs().max() < 1e-3


def test_training_lowers_the_loss(digits, tmp_path):
    losses = []
    settings = small(40, learning_rate=5e-3, warm_up=5, prediction="epsilon")
    train(digits, tmp_path / "run", settings, on_step=lambda run, loss: losses.append(loss))
    assert len(losses) == 40
    assert losses[0] == pytest.approx(1, abs=0.15)  # the variance of eps: the prediction is 0
    assert sum(losses[-10:]) / 10 < 0.6


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_the_oracle_converts_the_networks_prediction_to_x0(digits, tmp_path, prediction):
    train(digits, tmp_path / "run", small(3, prediction=prediction))
    oracle = load_oracle(tmp_path / "run")
    x, sigma = 10 * torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), 9.0
    t = oracle.schedule(torch.full((2,), sigma, dtype=torch.float64))[1].float()
    a = 1 / (1 + sigma**2)
    with torch.no_grad():
        out = oracle.network(a**0.5 * x, t, None)
    expected = x - sigma * out if prediction == "epsilon" else a * x - (1 - a) ** 0.5 * out
    assert (oracle(x, sigma) - expected).abs().max() < 1e-3


@pytest.mark.parametrize(("conditional", "channels"), [(True, 32), (False, 64)])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    digits, tmp_path, conditional, channels
):
    settings = small(6, conditional=conditional, channels=channels, flip=True, dropout=0.1)
    whole = train(digits, tmp_path / "whole", settings)
    steps = itertools.count(1)
    train(digits, tmp_path / "parts", settings, stop=lambda: next(steps) > 3)
    torch.manual_seed(99)  # the global generator has no effect
    assert not same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    parts = train(digits, tmp_path / "parts", settings)
    assert parts.step == whole.step == 6
    assert parts.recent == whole.recent
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    # A finished run takes no further steps.
    assert train(digits, tmp_path / "parts", settings).step == 6


def test_a_run_starts_from_the_weights_of_another_and_counts_its_images(digits, tmp_path):
    train(digits, tmp_path / "first", small(4))
    start = str(tmp_path / "first")
    second = train(digits, tmp_path / "second", small(2, weights=start, average=0.0))
    assert second.seen == 4 * 8
    third = train(digits, tmp_path / "third", small(1, weights=str(tmp_path / "second")))
    assert third.seen == (4 + 2) * 8
    change = difference(weights(tmp_path / "first"), weights(tmp_path / "second"))
    assert 0 < change < 1e-3  # two steps of Adam during warm-up


def test_weights_of_another_network_are_refused_and_the_difference_named(digits, tmp_path):
    train(digits, tmp_path / "first", small(1, dropout=0.1))
    first = str(tmp_path / "first")
    with pytest.raises(ArgumentError, match=r"channels 32 \(here 16\), groups 8 \(here 4\)$"):
        train(digits, tmp_path / "run", small(1, channels=16, weights=first))
    with pytest.raises(ArgumentError, match=r"prediction v_prediction \(here epsilon\)$"):
        train(digits, tmp_path / "run", small(1, prediction="epsilon", weights=first))
    assert train(digits, tmp_path / "run", small(1, weights=first)).seen == 8


def test_a_run_whose_weights_cannot_be_written_goes_on(digits, tmp_path):
    """Regression: the disk filled after the state was written, and the run counted as finished."""
    train(digits, tmp_path, small(1))
    full = mock.patch("golddiff_lab.training.run.write_folder", side_effect=OSError("full"))
    with full, pytest.raises(OSError, match="full"):
        train(digits, tmp_path, small(3))
    assert train(digits, tmp_path, small(3)).step == 3
    assert json.loads((tmp_path / "config.json").read_text())["training"]["steps"] == 3


def test_a_network_without_the_state_of_its_run_is_not_replaced(digits, tmp_path):
    train(digits, tmp_path, small(1))
    (tmp_path / "state.pt").unlink()
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ArgumentError, match=r"has config\.json but no state\.pt to continue from"):
        train(digits, tmp_path, small(2))
    assert (tmp_path / "model.safetensors").read_bytes() == before
    with pytest.raises(ArgumentError, match=r"has manifest\.json but no state\.pt"):
        train(digits, digits.path, small(1))


def difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_images_kept_on_a_device_equal_the_stores_images(digits):
    rows = torch.tensor([3, 199, 0])
    examples = Examples(digits, "cpu:0")  # takes the path of devices, on the CPU
    torch.testing.assert_close(examples.images(rows), digits.images(rows), rtol=0, atol=0)
    assert examples.labels is not None
    assert torch.equal(examples.labels, digits.labels)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_run_continues_on_another_device(digits, tmp_path):
    first = train(digits, tmp_path / "run", small(3, device="cuda"))
    run = train(digits, tmp_path / "run", small(6))
    assert (first.step, run.step) == (3, 6)


def test_training_leaves_torchs_global_generator_unchanged(digits, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(digits, tmp_path / "run", small(1))
    assert torch.equal(torch.rand(3), expected)


def test_a_run_cannot_continue_with_other_settings(digits, tmp_path):
    train(digits, tmp_path, small(1))
    for name, value in (("batch", 4), ("seed", 1), ("flip", True), ("multipliers", (1, 2))):
        with pytest.raises(ArgumentError, match=f"^{name}: got .* but the run in"):
            train(digits, tmp_path, small(2, **{name: value}))
    assert train(digits, tmp_path, small(2)).step == 2


def test_a_run_cannot_continue_with_other_images(digits, tmp_path, make_store):
    train(digits, tmp_path, small(1))
    other = make_store(torch.zeros(4, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="data: "):
        train(other, tmp_path, small(2))


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_a_damaged_state_is_an_error(digits, tmp_path, keep):
    train(digits, tmp_path, small(1))
    path = tmp_path / "state.pt"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError, match=r"state\.pt"):
        train(digits, tmp_path, small(2))


@pytest.mark.parametrize("name", ["state.pt", "model.safetensors", "loss.csv"])
def test_a_failed_write_leaves_the_previous_files_intact(digits, tmp_path, monkeypatch, name):
    train(digits, tmp_path, small(1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    replace = os.replace

    def fail_for_name(source, target):
        if Path(target).name == name:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("golddiff.system.files.os.replace", fail_for_name)
    with pytest.raises(ArgumentError, match=f"{name} cannot be written"):
        train(digits, tmp_path, small(2))
    monkeypatch.undo()
    assert {path.name for path in tmp_path.iterdir()} == before.keys()
    assert (tmp_path / name).read_bytes() == before[name]
    load_oracle(tmp_path)
    assert train(digits, tmp_path, small(3)).step == 3


def test_a_run_writes_its_settings_and_losses(digits, tmp_path):
    train(digits, tmp_path, small(50, batch=2), command="golddiff oracle train")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["training"]["steps"] == 50
    assert config["training"]["command"] == "golddiff oracle train"
    assert config["resolution"] == 8
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
    rows = list(csv.DictReader((tmp_path / "loss.csv").open()))
    assert [int(row["step"]) for row in rows] == [25, 50]
    assert all(float(row["loss"]) > 0 for row in rows)
    assert float(rows[0]["seconds"]) <= float(rows[1]["seconds"])


def test_a_nan_loss_ends_the_run_and_keeps_the_saved_state(digits, tmp_path):
    train(digits, tmp_path, small(1))
    before = (tmp_path / "state.pt").read_bytes()
    broken = NaNs(digits, torch.full((1, 1, 8, 8), float("nan")))
    with pytest.raises(ArgumentError, match="learning_rate: the loss is"):
        train(broken, tmp_path, small(2))
    assert (tmp_path / "state.pt").read_bytes() == before


class NaNs:
    """A store whose images are replaced by NaNs."""

    def __init__(self, store, pixels):
        self._store, self._pixels = store, pixels

    def __getattr__(self, name):
        return getattr(self._store, name)

    def images(self, rows):
        return self._pixels[torch.zeros(len(rows), dtype=torch.int64)]


def test_training_in_bfloat16_lowers_the_loss(digits, tmp_path):
    losses = []
    settings = small(15, learning_rate=3e-3, warm_up=5, precision="bfloat16")
    train(digits, tmp_path, settings, on_step=lambda run, loss: losses.append(loss))
    assert sum(losses[-5:]) < sum(losses[:5])


def test_levels_are_weighted_by_a_power_of_1_plus_sigma_squared():
    assert torch.equal(training.level_weights(0.0), torch.ones(1000))
    weights = training.level_weights(0.25).double()
    sigmas = Steps(ddpm_alphas()).sigmas
    ratio = ((1 + sigmas[900] ** 2) / (1 + sigmas[100] ** 2)) ** 0.25
    assert float(weights[900] / weights[100]) == pytest.approx(float(ratio), rel=1e-5)
    assert float(weights.mean()) == pytest.approx(1, rel=1e-5)


def test_the_number_of_groups_follows_from_the_channels(digits):
    assert TrainSettings(channels=32).network(digits).groups == 8
    assert TrainSettings(channels=128).network(digits).groups == 32
    assert TrainSettings(channels=30).network(digits).groups == 6
    assert TrainSettings(channels=256).network(digits).groups == 32


def test_the_learning_rate_warms_up_and_falls_to_zero():
    settings = TrainSettings(learning_rate=1e-3, warm_up=10)
    assert learning_rate(settings, 1, 0.0) == pytest.approx(1e-4)
    assert learning_rate(settings, 10, 0.0) == pytest.approx(1e-3)
    assert learning_rate(settings, 500, 0.5) == pytest.approx(5e-4)
    assert learning_rate(settings, 999, 1.0) == pytest.approx(0)


def test_falling_is_the_final_share_of_a_run_with_a_falling_rate():
    settings = TrainSettings(learning_rate=1e-3, warm_up=1, falling=0.2)
    assert learning_rate(settings, 500, 0.5) == pytest.approx(1e-3)
    assert learning_rate(settings, 800, 0.8) == pytest.approx(1e-3)
    assert learning_rate(settings, 900, 0.9) == pytest.approx(5e-4)
    assert learning_rate(settings, 999, 1.0) == pytest.approx(0)
    always = TrainSettings(learning_rate=1e-3, warm_up=1, falling=0.0)
    assert learning_rate(always, 999, 0.99) == pytest.approx(1e-3)


def test_a_state_saved_without_newer_settings_can_be_resumed(digits, tmp_path):
    train(digits, tmp_path, small(1))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    for name in ("falling", "average"):
        del state["settings"][name]
    torch.save(state, tmp_path / "state.pt")
    assert train(digits, tmp_path, small(2, falling=0.5, average=0.9999)).step == 2


def test_the_record_has_every_command_and_a_finished_run_keeps_it(digits, tmp_path):
    def record():
        return json.loads((tmp_path / "config.json").read_text())["training"]

    train(digits, tmp_path, small(2), command="golddiff --steps 2")
    train(digits, tmp_path, small(4), command="golddiff --steps 4")
    assert (record()["steps"], record()["command"]) == (
        4,
        "golddiff --steps 2 && golddiff --steps 4",
    )
    assert train(digits, tmp_path, small(3), command="golddiff --steps 3").step == 4
    assert record()["settings"]["steps"] == 4
    assert "--steps 3" not in record()["command"]


def test_the_average_of_weights_follows_its_formula():
    network, average = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    expected = average.weight.detach().clone().double()
    for step in range(1, 8):
        with torch.no_grad():
            network.weight.add_(step)
        update_ema(average, network, step, decay=0.4)
        d = min(0.4, (1 + step) / (10 + step))
        expected = d * expected + (1 - d) * network.weight.detach().double()
    torch.testing.assert_close(average.weight.double(), expected, atol=1e-5, rtol=1e-6)


def test_the_time_of_a_run_excludes_on_step(digits, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.thread_time", lambda: now[0])

    def on_step(run, loss):
        now[0] += 60

    assert train(digits, tmp_path, small(3), on_step=on_step).elapsed == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"multipliers": ()}, "multipliers: got 0 levels"),
        ({"steps": 0}, "steps: got 0"),
        ({"minutes": float("nan")}, "minutes: got nan"),
        ({"batch": 0}, "batch: got 0"),
        ({"learning_rate": -1.0}, "learning_rate: got -1.0"),
        ({"noise_weight": 1.5}, "noise_weight: got 1.5"),
        ({"falling": -0.1}, "falling: got -0.1"),
        ({"average": 2.0}, "average: got 2.0"),
        ({"label_dropout": 1.5}, "label_dropout: got 1.5"),
        ({"label_dropout": 0.0, "conditional": True}, "label_dropout: got 0, expected above 0"),
        ({"seed": -1}, "seed: got -1"),
        ({"precision": "float16"}, "precision: got 'float16', expected bfloat16 or float32"),
        ({"device": "nowhere"}, "device: got 'nowhere'"),
        ({"prediction": "noise"}, "prediction: got 'noise'"),
        ({"multipliers": (1,) * 5}, "multipliers: got 5 levels, .* multiple of 16, and it is 8"),
        ({"channels": 0}, "channels: got 0"),
        ({"channels": 5, "groups": 1}, "channels: got 5, expected an even number"),
        ({"groups": 5}, "channels: got 32, expected a multiple of 5 groups"),
    ],
)
def test_bad_settings_are_refused_before_a_folder_is_made(digits, tmp_path, settings, message):
    with pytest.raises(ArgumentError, match=message):
        train(digits, tmp_path / "run", small(**settings))
    assert not (tmp_path / "run").exists()


def test_unsuitable_images_are_refused(tmp_path, make_store):
    cases = (
        (torch.zeros(4, 3), {}, "data: got examples of shape"),
        (torch.zeros(4, 1, 8, 4, dtype=torch.uint8), {}, "expected square images"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), {"conditional": True}, "conditional: the"),
    )
    for pixels, settings, message in cases:
        with pytest.raises(ArgumentError, match=message):
            train(make_store(pixels), tmp_path / "run", small(**settings))


def test_a_run_can_be_read_while_it_is_written(digits, tmp_path):
    train(digits, tmp_path, small(1))
    finished, errors = threading.Event(), []

    def read():
        while not finished.is_set():
            try:
                load_oracle(tmp_path)
            except CheckpointError as error:
                errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    train(digits, tmp_path, small(8), save_every=0.0)
    finished.set()
    reader.join()
    assert errors == []
