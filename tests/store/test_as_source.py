"""A store as the source of another."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.store.opening import open_source
from golddiff.system.errors import ArgumentError, SourceError
from tests.sources.make import read


@pytest.fixture(scope="module")
def originals(make_store, smooth_images):
    return make_store(smooth_images(300, (3, 12, 12)), torch.arange(300) % 7)


class TestStoreAsSource:
    def test_pixels_and_labels_are_read_back(self, originals):
        source = open_source(originals.path)
        pixels, labels = read(source, 77)
        assert np.array_equal(pixels.reshape(300, -1), originals.flat)
        assert np.array_equal(labels, originals.labels)
        assert source.total == 300

    def test_limit_reads_the_first_images(self, originals):
        pixels, labels = read(open_source(originals.path, limit=10))
        assert np.array_equal(pixels.reshape(10, -1), originals.flat[:10])
        assert len(labels) == 10

    def test_floats_of_a_known_range_stay_pixels(self, tmp_path):
        images = np.where(np.random.default_rng(0).random((9, 1, 8, 8)) > 0.5, 1000.0, -1000.0)
        store = golddiff.ImageStore.build(images, tmp_path / "a", value_range=(-1000, 1000))
        assert golddiff.ImageStore.build(store.path, tmp_path / "b").is_pixels
        latents = golddiff.ImageStore.build(images, tmp_path / "c")
        assert not golddiff.ImageStore.build(latents.path, tmp_path / "d").is_pixels

    def test_its_own_size_and_channels_are_accepted(self, originals):
        channels, size, _ = originals.shape
        assert open_source(originals.path, size=size, channels=channels).total == originals.n

    @pytest.mark.parametrize(
        "option", [{"size": 8}, {"channels": 1}, {"column": "image"}, {"seed": 7}]
    )
    def test_options_that_do_not_apply_are_refused(self, originals, option):
        with pytest.raises(ArgumentError, match="does not apply to a store"):
            open_source(originals.path, **option)

    def test_an_unknown_format_version_is_refused(self, originals, tmp_path):
        (tmp_path / "manifest.json").write_text('{"format": "golddiff-store", "version": 99}')
        with pytest.raises(SourceError, match="format version 99"):
            open_source(tmp_path)
