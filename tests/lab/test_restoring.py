"""Restorations and pasting the nearest image, for pictures in the store and others."""

import torch

from golddiff_lab.restoring import compared


def test_pasting_the_nearest_image_is_exact_only_for_stored_images(make_store, smooth_images):
    store = make_store(smooth_images(60, (1, 16, 16)))
    upscaled, filled = compared(store, store.images([3, 5]))
    assert filled["compared"] == 0  # the nearest training image is the picture itself
    assert filled["error"] < 0.02
    assert upscaled["error"] < upscaled["compared"]
    assert max(upscaled["missed"], filled["missed"]) < 0.01
    other = torch.from_numpy(smooth_images(2, (1, 16, 16), seed=9).numpy() / 127.5 - 1).float()
    assert compared(store, other)[1]["compared"] > 0.01
