"""deepinv's demo over a small store: its closed form and ``Optimal`` draw the same images."""

import torch

from golddiff_lab.flow_matching import DRAWN, GIVEN, INPAINTED, compared
from tests.deepinv_for_tests import deepinv  # noqa: F401  skips without it


def test_both_sides_draw_the_same_and_the_measurement_fixes_the_image(make_store, smooth_images):
    store = make_store(smooth_images(60, (1, 28, 28)))
    (truth, y), results = compared(store, 1)
    for task in (DRAWN, INPAINTED):
        assert torch.allclose(results[task]["MMSE"].out, results[task]["Optimal"].out, atol=1e-4)
    images = (store.images() + 1) / 2
    # A single image agrees with the visible pixels, so the posterior is that image.
    assert (results[GIVEN]["Optimal"].out[0] - truth).abs().max() < 1e-3
    assert (results[DRAWN]["Optimal"].out - images).abs().amax((1, 2, 3)).min() < 1e-3
    assert y[:, 10:20, 10:20].abs().max() == 0
