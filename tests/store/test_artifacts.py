"""Arrays stored beside a training set."""

import numpy as np

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
