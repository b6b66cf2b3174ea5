"""Enlarged sets: the originals, then changed copies; smaller sets are prefixes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff.cli import run
from golddiff.sources.source_options import SourceOptions
from golddiff.store.images import ImageStore
from golddiff.store.opening import open_store
from golddiff.system.errors import SourceError
from golddiff_lab.augment import NUMBERS, augmented
from golddiff_lab.enlarged import enlarged_source
from tests.sources.make import read


@pytest.fixture(scope="module")
def originals(make_store, smooth_images):
    return make_store(smooth_images(300, (3, 12, 12)), torch.arange(300) % 7)


def enlarged(store, limit, seed=0, size=64):
    return read(enlarged_source(open_store(store.path, SourceOptions()), limit, seed), size)


class TestEnlarged:
    def test_the_originals_come_first_and_copies_keep_their_labels(self, originals):
        pixels, labels = enlarged(originals, 700)
        assert len(pixels) == 700
        assert np.array_equal(pixels[:300].reshape(300, -1), originals.flat)
        assert np.array_equal(labels, np.arange(700) % 300 % 7)

    @given(limit=st.integers(1, 800), size=st.integers(1, 300))
    def test_the_first_images_do_not_depend_on_the_limit(self, originals, limit, size):
        most = enlarged(originals, 800)[0]
        assert np.array_equal(enlarged(originals, limit, size=size)[0], most[:limit])

    def test_the_seed_determines_the_changes(self, originals):
        one, same, other = (enlarged(originals, 400, seed=seed)[0] for seed in (1, 1, 2))
        assert np.array_equal(one, same)
        assert np.array_equal(one[:300], other[:300])
        assert not (one[300:] == other[300:]).reshape(100, -1).all(axis=1).any()

    def test_grey_images_without_labels_are_enlarged(self, make_store, smooth_images):
        pixels, labels = enlarged(make_store(smooth_images(20, (1, 8, 8))), 50)
        assert pixels.shape == (50, 1, 8, 8)
        assert labels is None

    def test_float_images_are_refused(self, make_store):
        floats = make_store(torch.rand(20, 3, 8, 8) - 0.5)
        with pytest.raises(SourceError, match="only uint8 images of 1 or 3 channels"):
            enlarged(floats, 50)

    def test_the_command_writes_the_enlarged_store(self, originals, tmp_path, fails):
        out = tmp_path / "large"
        command = ["bench", "enlarge", str(originals.path), str(out), "--limit"]
        assert run([*command, "700"]) == 0
        store = ImageStore.open(out)
        assert "enlarged" in store.manifest.source
        assert np.array_equal(store.flat, enlarged(originals, 700)[0].reshape(700, -1))
        for limit, message in (("0", "limit: got 0"), ("700", "exists already")):
            assert message in fails(*command, limit)


class TestAugmented:
    def neutral(self, b, **changes):
        """Random numbers that leave images unchanged, except for ``changes``."""
        uniform = np.full((b, NUMBERS), 0.5)
        uniform[:, 0], uniform[:, 3] = 1.0, 0.9  # no crop, no mirroring
        for name, value in changes.items():
            uniform[:, int(name[1:])] = value
        return uniform

    def test_neutral_numbers_change_nothing(self, smooth_images):
        images = smooth_images(5, (3, 9, 9)).numpy()
        assert np.abs(augmented(images, self.neutral(5)).astype(int) - images).max() <= 1

    def test_images_are_mirrored(self, smooth_images):
        images = smooth_images(5, (1, 9, 9)).numpy()
        assert np.array_equal(augmented(images, self.neutral(5, _3=0.1)), images[..., ::-1])

    def test_a_crop_fills_the_image(self):
        images = np.zeros((1, 1, 20, 20), np.uint8)
        images[:, :, :14, :14] = 200  # 70 % of each side
        cropped = augmented(images, self.neutral(1, _0=0.0, _1=0.0, _2=0.0))
        assert (cropped[:, :, :-1, :-1] == 200).all()

    def test_brightness_scales_and_contrast_keeps_the_mean(self, smooth_images):
        images = smooth_images(4, (1, 8, 8)).numpy() // 2 + 40
        brighter = augmented(images, self.neutral(4, _4=1.0)).astype(float)
        assert np.abs(brighter - 1.2 * images).max() <= 0.51
        flatter = augmented(images, self.neutral(4, _5=0.0)).astype(float)
        mean = images.mean(axis=(1, 2, 3), keepdims=True)
        assert np.abs(flatter - (mean + 0.8 * (images - mean))).max() <= 0.51

    @pytest.mark.parametrize("place", ["_6", "_7"])
    def test_saturation_and_hue_keep_the_luminance_and_greys(self, smooth_images, place):
        images = smooth_images(4, (3, 8, 8)).numpy() // 3 + 80
        numbers = self.neutral(4, **{place: 1.0})
        changed = augmented(images, numbers).astype(float)
        weights = np.array([0.299, 0.587, 0.114])[:, None, None]
        assert np.abs((changed * weights).sum(1) - (images * weights).sum(1)).max() < 1
        assert np.abs(changed - images).max() > 3
        grey = np.repeat(images[:, :1], 3, axis=1)
        assert np.abs(augmented(grey, numbers) - grey.astype(int)).max() <= 1

    def test_an_image_depends_only_on_its_own_numbers(self, smooth_images):
        images = smooth_images(33, (3, 16, 16)).numpy()
        uniform = np.random.default_rng(0).random((33, NUMBERS))
        whole = augmented(images, uniform)
        for i in (0, 17, 32):
            assert np.array_equal(augmented(images[i : i + 1], uniform[i : i + 1])[0], whole[i])
