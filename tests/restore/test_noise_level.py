"""The noise of a measurement, judged from its picture."""

import io

import pytest
import torch
from PIL import Image

import golddiff
from golddiff import ArgumentError
from golddiff.estimators import operators
from golddiff.estimators.noise_level import estimated_noise, noise_of_file
from tests.restore.operators_for_tests import KNOWN, OPERATORS


@pytest.mark.parametrize("name", OPERATORS)
def test_the_noise_is_estimated_from_the_picture(make_store, smooth_images, name):
    shape = (3, 32, 32)
    store, other = make_store(smooth_images(60, shape)), smooth_images(4, shape, seed=9)
    operator = OPERATORS[name] if name != "hole" else operators.kept(KNOWN.repeat(4, 4))
    y = operator(other.float() / 127.5 - 1)
    noise, smallest = estimated_noise(store, operator, y)
    assert noise <= 1.5 * smallest
    assert estimated_noise(store, operator, operator(store.images([0, 1, 2])))[0] == 0
    noisy = y + 0.3 * torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    assert estimated_noise(store, operator, noisy)[0] == pytest.approx(
        0.3, rel=0.2 if y[0].numel() > 64 else 0.5
    )


def test_the_noise_is_estimated_in_units_of_y_and_missing_values_have_none(
    make_store, smooth_images
):
    shape = (1, 32, 32)
    store, images = make_store(smooth_images(60, shape)), smooth_images(4, shape, seed=9)
    known = (torch.rand(32, 32, generator=torch.Generator().manual_seed(3)) < 0.6).float()
    noise = 0.3 * torch.randn(4, *shape, generator=torch.Generator().manual_seed(2))
    noisy = images.float() / 127.5 - 1 + noise
    block = torch.ones(32, 32)
    block[:, :15] = 0
    for mask in (known, block):
        for y in (noisy * mask, noisy * mask + noise * (1 - mask)):  # with noise in holes, too
            found, _ = estimated_noise(store, lambda x, m=mask: x * m, y)
            assert found == pytest.approx(0.3, rel=0.2)
    level, _ = estimated_noise(store, lambda x: x * known, noisy * known)
    for scale in (1e-3, 255.0):
        scaled, _ = estimated_noise(store, lambda x, s=scale: s * x * known, scale * noisy * known)
        assert scaled == pytest.approx(scale * level, rel=1e-4)


def test_stripes_are_not_noise(make_store, smooth_images):
    store = make_store(smooth_images(60, (1, 32, 32)))
    striped = store.images([0, 1, 2]) + 0.5 * (torch.arange(32) % 2)
    assert estimated_noise(store, lambda x: x, striped)[0] == 0


def test_the_noise_of_a_tiny_picture_cannot_be_estimated(store):
    with pytest.raises(ArgumentError, match="noise: cannot be judged"):
        golddiff.restore(golddiff.PCA(store), torch.zeros(1, 3, 2, 2), operators.smaller(4))


def test_the_encoding_of_a_jpeg_counts_as_noise_where_it_is_deblurred(make_store, smooth_images):
    store = make_store(smooth_images(60, (1, 32, 32)))
    picture, file = smooth_images(1, (1, 32, 32), seed=9)[0, 0], io.BytesIO()
    Image.fromarray(picture.byte().numpy()).save(file, "JPEG", quality=20)
    plain, blurred = (
        noise_of_file(
            store, lambda x: x, store.images([0])[0], upscale=1, blur=blur, data=file.getvalue()
        )[0]
        for blur in (0, 1)
    )
    assert plain == 0
    assert blurred > 0.01
