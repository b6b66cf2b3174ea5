"""Arrays kept beside a training set."""

import numpy as np

from golddiff.store.artifacts import Artifacts


def test_the_same_arrays_are_the_same_bytes_and_are_read_again(tmp_path):
    tensors = {name: np.arange(i + 1.0) for i, name in enumerate("abcd")}
    inputs = {f"part {i}": f"value {i}, \u00e9" for i in range(6)}
    kept = Artifacts(tmp_path, "these images")
    bodies = {kept.body(tensors, inputs) for _ in range(20)}
    assert len(bodies) == 1
    kept.save("x", tensors, inputs)
    found = kept.load("x", inputs)
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
    assert kept.load("x", {"part 0": "another"}) is None
