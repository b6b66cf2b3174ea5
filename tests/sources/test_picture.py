"""Pictures of a user: their crop, and the error of JPEG's encoding, which leaves no roughness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from golddiff.sources.decode import decode, middle
from golddiff.sources.picture import fit_to_shape, jpeg_error

from .make import encoded

SIDE = 64


@pytest.fixture(scope="module")
def blurred(smooth_images):
    """A blurred picture of 256 x 256 pixels, with weak colours as photographs have."""
    pixels = smooth_images(1, (3, 32, 32), seed=3)[0].permute(1, 2, 0).float()
    pixels = 0.2 * pixels + 0.8 * pixels.mean(dim=2, keepdim=True)
    picture = Image.fromarray(pixels.byte().numpy()).resize((256, 256), Image.Resampling.NEAREST)
    return picture.filter(ImageFilter.GaussianBlur(4))


@pytest.mark.parametrize("size", [(33, 32), (70, 91), (20, 35)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_cropped_as_the_training_image_that_it_became(blurred, size, channels):
    picture = blurred.crop((20, 30, 20 + size[0], 30 + size[1]))
    trained = np.asarray(decode(encoded(picture), channels=channels, size=32), np.float32)
    fitted = fit_to_shape(picture, (channels, 32, 32)).permute(1, 2, 0).squeeze().numpy()
    assert np.abs(trained / 127.5 - 1 - fitted).max() < 1e-6


@given(*[st.integers(1, 60)] * 4)
def test_the_middle_has_the_wanted_proportions_and_begins_at_a_whole_pixel(w, h, across, down):
    left, top, right, bottom = middle(w, h, across, down)
    assert (right - left) * down == pytest.approx((bottom - top) * across)
    assert right - left == w or bottom - top == h
    assert 0 <= left <= w - right < left + 2
    assert 0 <= top <= h - bottom < top + 2
    assert (left % 1, top % 1) == (0, 0)


@pytest.mark.parametrize("quality", [30, 60, 90])
@pytest.mark.parametrize("side", [SIDE, 256])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_the_error_is_estimated_within_a_half(blurred, tmp_path, quality, side, subsampling):
    picture = blurred.resize((side, side), Image.Resampling.LANCZOS)
    file = tmp_path / "photo.jpg"
    picture.save(file, quality=quality, subsampling=subsampling)
    shape = (3, SIDE, SIDE)
    change = fit_to_shape(Image.open(file), shape) - fit_to_shape(picture, shape)
    error = float(change.square().mean().sqrt())
    assert error / 1.5 < jpeg_error(file.read_bytes(), SIDE, SIDE) < 1.5 * error


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_every_kind_of_jpeg_has_an_error(blurred, tmp_path, mode):
    blurred.convert(mode).save(tmp_path / "photo.jpg", quality=50, progressive=True)
    assert 0 < jpeg_error((tmp_path / "photo.jpg").read_bytes(), SIDE, SIDE) < 0.1


@pytest.mark.parametrize("extension", ["png", "webp", "bmp"])
def test_other_files_have_none(blurred, tmp_path, extension):
    blurred.save(tmp_path / f"photo.{extension}")
    assert jpeg_error((tmp_path / f"photo.{extension}").read_bytes(), SIDE, SIDE) == 0


@pytest.mark.parametrize("side", [1, 4, 5, 8])
def test_tiny_pictures_are_no_error(tmp_path, side):
    Image.new("RGB", (side, side), "red").save(tmp_path / "dot.jpg")
    assert 0 <= jpeg_error((tmp_path / "dot.jpg").read_bytes(), side, side) < 0.01
