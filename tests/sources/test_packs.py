"""The data packs of real images, where they are present."""

import numpy as np
import pytest

from golddiff.sources import open_source


@pytest.fixture
def pack(data_packs):
    """pack(name): the folder of a data pack."""

    def folder(name):
        if not (data_packs / name).is_dir():
            pytest.skip(f"the data pack {name} is not in {data_packs}")
        return data_packs / name

    return folder


@pytest.mark.parametrize(
    ("name", "shape", "count", "classes"),
    [
        ("mnist", (1, 28, 28), 60_000, 10),
        ("cifar10", (3, 32, 32), 50_000, 10),
        ("imagenet64-100", (3, 64, 64), 50_000, 100),
    ],
)
def test_packs_have_their_shapes_counts_and_classes(pack, name, shape, count, classes):
    source = open_source(pack(name))
    assert (source.info.shape, source.info.count) == (shape, count)
    assert len(source.info.class_names) == classes
    batch = next(source.batches(1000))
    assert batch.pixels.shape == (1000, *shape)


def test_cifar10_has_5000_images_of_each_class(pack):
    counts = np.zeros(10, np.int64)
    for batch in open_source(pack("cifar10")).batches(4096):
        counts += np.bincount(batch.labels, minlength=10)
    assert counts.tolist() == [5000] * 10


def test_grey_photographs_of_imagenet_become_rgb(pack):
    greys = 0
    for batch in open_source(pack("imagenet64-100"), limit=5000).batches(1000):
        greys += (batch.pixels[:, 0] == batch.pixels[:, 1]).all((1, 2)).sum()
    assert greys > 0
