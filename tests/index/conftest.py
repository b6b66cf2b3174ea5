import pytest
import torch

from golddiff.supports.index.image_index import Index


@pytest.fixture(scope="session")
def indexed(make_store, smooth_images):
    """A store of 3,000 images of 3 x 20 x 20 with two classes, and its index."""
    store = make_store(smooth_images(3000, (3, 20, 20)), torch.arange(3000) % 2)
    return Index.build(store)
