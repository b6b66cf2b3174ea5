"""deepinv's demo over a small store: both sides draw the same, and what is known is kept."""

import torch

from golddiff_lab.flow_matching import DRAWN, GIVEN, INPAINTED, compared
from tests.deepinv_for_tests import deepinv  # noqa: F401  skips without it


def test_sides_draw_the_same_and_the_measurement_decides(make_store, smooth_images):
    store = make_store(smooth_images(60, (1, 28, 28)))
    (truth, y), found = compared(store, 1)
    for task in (DRAWN, INPAINTED):
        assert torch.allclose(found[task]["MMSE"].out, found[task]["Optimal"].out, atol=1e-4)
    images = (store.images() + 1) / 2
    # One image alone agrees with what is seen, so the posterior is that image.
    assert (found[GIVEN]["Optimal"].out[0] - truth).abs().max() < 1e-3
    assert (found[DRAWN]["Optimal"].out - images).abs().amax((1, 2, 3)).min() < 1e-3
    assert y[:, 10:20, 10:20].abs().max() == 0
