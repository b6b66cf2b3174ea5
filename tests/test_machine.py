"""The model of the machine: measured once, kept, overridable, and never in the way."""

import json

import pytest
import torch

from golddiff import (
    PCA,
    AdaptiveSchedule,
    GoldDiff,
    ImageStore,
    Kamb,
    Optimal,
    machine,
    machine_measure,
)
from golddiff.adaptive.plan import FULL, Kind, Plan
from golddiff.errors import ArgumentError
from golddiff.kernels.kamb_counts import offset_operations

MADE = {name: 2 * value for name, value in machine.CONSTANTS.items()}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "_used", {})


@pytest.fixture
def measures(monkeypatch):
    """A machine that is measured; the number of times that it was."""
    monkeypatch.delenv(machine.OVERRIDE)
    times = []
    monkeypatch.setattr(machine_measure, "measured", lambda: (times.append(1), MADE)[1])
    return times


def test_the_tests_use_constants():
    assert machine.costs() == machine.CONSTANTS


def test_measured_once_and_kept(measures, monkeypatch):
    assert machine.costs() == MADE
    assert machine.seconds("addition") == MADE["addition"]
    monkeypatch.setattr(machine, "_used", {})
    assert machine.costs() == MADE
    assert len(measures) == 1


def test_another_number_of_threads_is_another_machine(measures, monkeypatch):
    machine.costs()
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    machine.costs()
    assert len(measures) == 2
    kept = json.loads((machine.cache_folder() / machine.NAME).read_text())
    assert len(kept) == 2


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{", '"text"', "null", "entry:null", 'entry:{"addition": 1e-11}', "entry:negative"],
)
def test_a_damaged_file_is_measured_again(measures, damage):
    path = machine.cache_folder() / machine.NAME
    path.parent.mkdir(parents=True)
    entry = json.dumps({**MADE, "value": -1.0}) if damage == "entry:negative" else damage[6:]
    path.write_text(
        f"{{{json.dumps(machine._key())}: {entry}}}" if damage.startswith("entry") else damage
    )
    assert machine.costs() == MADE
    assert len(measures) == 1


@pytest.mark.parametrize("value", [0.0, -1e-11, float("nan"), float("inf"), 1.0])
def test_what_cannot_be_is_replaced_by_constants(measures, monkeypatch, value):
    monkeypatch.setattr(machine_measure, "measured", lambda: {**MADE, "value": value})
    assert machine.costs() == machine.CONSTANTS
    assert not (machine.cache_folder() / machine.NAME).exists()


def test_a_failure_is_replaced_by_constants(measures, monkeypatch):
    def fail():
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(machine_measure, "measured", fail)
    assert machine.costs() == machine.CONSTANTS


def test_a_cache_that_cannot_be_written_is_no_error(measures, tmp_path):
    (tmp_path / "cache").write_text("a file in its place")
    assert machine.costs() == MADE


def test_a_file_overrides(monkeypatch, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"drawn": 1e-8}')
    monkeypatch.setenv(machine.OVERRIDE, str(path))
    assert machine.costs() == {**machine.CONSTANTS, "drawn": 1e-8}


@pytest.mark.parametrize("body", ["", "[1]", '{"speed": 1e-9}', '{"drawn": "1"}', '{"drawn": 0.0}'])
def test_a_bad_file_is_named(monkeypatch, tmp_path, body):
    path = tmp_path / "mine.json"
    path.write_text(body)
    monkeypatch.setenv(machine.OVERRIDE, str(path))
    with pytest.raises(ArgumentError, match=r"GOLDDIFF_MACHINE: .*mine.json"):
        machine.costs()


def test_no_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(machine.OVERRIDE, str(tmp_path / "none.json"))
    with pytest.raises(ArgumentError, match="cannot be read"):
        machine.costs()


def test_measuring_tells_seconds_of_every_operation():
    made = machine_measure.measured()
    assert made.keys() == machine.CONSTANTS.keys()
    # Choosing goes by differences of measured times, which a busy machine may turn round.
    assert all(isinstance(value, float) and abs(value) < machine.SLOWEST for value in made.values())


class TestPredictions:
    @pytest.fixture
    def store(self, make_store, smooth_images):
        return make_store(smooth_images(300, (3, 12, 12)))

    def test_they_are_sums_of_the_model(self, store):
        model = machine.CONSTANTS
        assert Optimal(store).cost(1.0) == pytest.approx(2 * model["distance"] * store.d)
        read = Optimal(ImageStore.open(store.path, memory_limit=1000)).cost(1.0)
        assert read == pytest.approx((2 * model["distance"] + model["byte"]) * store.d)
        pca = PCA(store, 0.05)
        for side, trees in ((None, [pca.tree(1.0)]), (4, pca.tiles(1.0, 4))):
            expected = model["softmax"] * store.d
            for tree in trees:
                expected += model["addition"] * len(tree.inputs)
                expected += model["value"] * len(tree.columns)
            assert pca.cost(1.0, side) == pytest.approx(expected)
        kamb = Kamb(store, 3)
        operations = offset_operations(*kamb._axes(1.0), 3)
        assert kamb.cost(1.0) == pytest.approx(model["addition"] * operations)

    @pytest.mark.parametrize(
        "kind", [FULL, Kind("drawn"), Kind("nearest", 4), Kind("drawn", 4, by_blocks=True)]
    )
    def test_a_plan_s_are_weighing_and_choosing(self, store, kind):
        golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05))
        plan = Plan(kind, 50, 0.01)
        golden.schedule.plan = lambda sigma, label=None: plan
        expected = 50 * golden.base.cost(1.0, kind.side)
        if kind != FULL:
            tiles = 9 if kind.side else 1
            comparing = golden.schedule.looker(1.0, None, kind).ranking.comparing
            if kind.by_blocks:
                one = machine.seconds("square") * store.d
                one += machine.seconds("product") * tiles * 27
            else:
                one = tiles * comparing.number * machine.seconds("coordinate")
            expected += 300 * (one + tiles * machine.seconds(kind.name))
        assert golden.schedule.predicted(1.0) == pytest.approx(expected)
        assert str(plan) in golden.describe_step(1.0)
        assert "predicted" in golden.describe_step(1.0)

    def test_a_plan_that_is_kept_does_not_depend_on_the_machine(self, store, monkeypatch, tmp_path):
        first = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1)).schedule.plan(1.0)
        path = tmp_path / "mine.json"
        path.write_text('{"drawn": 9e-4, "nearest": 9e-4}')
        monkeypatch.setenv(machine.OVERRIDE, str(path))
        assert GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1)).schedule.plan(1.0) == first

    def test_where_choosing_is_dear_all_are_weighed(
        self, make_store, smooth_images, monkeypatch, tmp_path
    ):
        path = tmp_path / "mine.json"
        path.write_text('{"drawn": 9e-4, "nearest": 9e-4}')
        monkeypatch.setenv(machine.OVERRIDE, str(path))
        store = make_store(smooth_images(300, (3, 12, 12), seed=3))
        golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))
        assert golden.schedule.plan(1.0).kind == FULL
