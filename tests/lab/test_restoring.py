"""Restorations against what they are compared with: a known picture comes back, others do not."""

import torch

from golddiff_lab.restoring import compared


def test_pictures_of_the_store_are_found_and_their_neighbours_pasted(make_store, smooth_images):
    store = make_store(smooth_images(60, (1, 16, 16)))
    upscaled, filled = compared(store, store.images([3, 5]))
    assert filled["compared"] == 0  # the nearest around the hole is the picture itself
    assert filled["error"] < 0.02
    assert upscaled["error"] < upscaled["compared"]
    assert max(upscaled["missed"], filled["missed"]) < 0.01
    other = torch.from_numpy(smooth_images(2, (1, 16, 16), seed=9).numpy() / 127.5 - 1).float()
    assert compared(store, other)[1]["compared"] > 0.01
