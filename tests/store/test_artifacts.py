"""Arrays stored beside a training set."""

import tracemalloc
from pathlib import Path

import numpy as np

from golddiff.store import artifacts as module
from golddiff.store.artifacts import Artifacts


def test_artifact_bytes_are_deterministic_and_loads_check_the_inputs(tmp_path):
    tensors = {name: np.arange(i + 1.0) for i, name in enumerate("abcd")}
    inputs = {f"part {i}": f"value {i}, \u00e9" for i in range(6)}
    artifacts = Artifacts(tmp_path, "these images")
    bodies = {artifacts.body(tensors, inputs) for _ in range(20)}
    assert len(bodies) == 1
    artifacts.save("x", tensors, inputs)
    loaded = artifacts.load("x", inputs)
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)
    assert artifacts.load("x", {"part 0": "another"}) is None


def test_the_files_are_within_the_limit_and_are_not_counted_at_every_save(tmp_path, monkeypatch):
    """Regression: a call at a new noise level took 0.1 s where 10,000 masks were saved."""
    artifacts, counted, trim = Artifacts(tmp_path, "these images"), [], module.trim
    monkeypatch.setattr(module, "trim", lambda *args: counted.append(args) or trim(*args))
    size = len(artifacts.body({"a": np.zeros(2)}))
    for i in range(200):
        artifacts.save(f"masks/{i}", {"a": np.zeros(2)}, max_bytes=100 * size)
        files = list((tmp_path / "masks").iterdir())
        assert min(i + 1, 90) * size <= sum(f.stat().st_size for f in files) <= 100 * size
    assert len(counted) < 50


def test_the_bytes_of_an_artifact_take_twice_its_size_while_they_are_made():
    """The covariance factor of 64 x 64 RGB has 1.2 GB."""
    array = np.zeros(1 << 18)
    tracemalloc.start()
    try:
        Artifacts(Path(), "these images").body({"a": array})
        assert tracemalloc.get_traced_memory()[1] < 2.5 * array.nbytes
    finally:
        tracemalloc.stop()
