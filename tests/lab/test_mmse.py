"""The race against deepinv's closed form: both sides compute the same mean."""

import torch

from golddiff_lab.mmse import THEIRS, compared
from tests.deepinv_for_tests import deepinv  # noqa: F401  skips without it


def test_sides_agree_and_are_timed(make_store, smooth_images):
    store = make_store(smooth_images(200, (3, 16, 16)), torch.arange(200) % 2)
    rows = compared(store, 2, 1, (3.0, 0.5))
    assert [row["sigma"] for row in rows] == [3.0] * 3 + [0.5] * 3
    assert [row["side"] for row in rows[:3]] == [THEIRS, "Optimal", "adaptive, 0.01"]
    for row in rows:
        assert row["apart"] < (0.005 if row["side"].startswith("adaptive") else 1e-4)
        assert row["seconds"] > 0
        assert row["with_gradient"] > 0
