import pytest
import torch

from golddiff.supports.index.image_index import Index


@pytest.fixture(scope="session")
def indexed(make_store, smooth_images):
    """A store of 3,000 images of 3 x 15 x 15 with two classes, and its index."""
    store = make_store(smooth_images(3000, (3, 15, 15)), torch.arange(3000) % 2)
    return Index.build(store)
