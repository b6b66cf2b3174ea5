import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from golddiff.sources import decode as module
from golddiff.sources.decode import UnreadableImageError, read_header, to_pixels

from .make import encoded, first, pixels, png


def decode(data, **options):
    return to_pixels(module.decode(data, **options))


def test_png_pixels_come_back_exactly():
    assert np.array_equal(decode(png(3, 5, 7)), first(pixels(3, 5, 7)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA"])
def test_usual_formats_are_read(kind):
    image = Image.new("RGB", (9, 6), (200, 40, 90))
    values = decode(encoded(image, kind), channels=3)
    assert values.shape == (3, 6, 9)
    assert np.abs(values.mean((1, 2)) - [200, 40, 90]).max() < 4


def test_exif_rotation_is_applied():
    image = Image.fromarray(pixels(0, 4, 6))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(image, "PNG", exif=exif)
    assert read_header(data)[:2] == (4, 6)
    assert np.array_equal(decode(data), first(np.rot90(pixels(0, 4, 6), -1)))


def test_exif_rotation_is_applied_to_jpegs_before_cropping():
    image = Image.new("RGB", (80, 40))
    image.paste((255, 255, 255), (0, 0, 40, 40))
    exif = Image.Exif()
    exif[0x0112] = 6
    values = decode(encoded(image, "JPEG", exif=exif, quality=95), size=20)
    assert values[:, :6].mean() > 240
    assert values[:, 14:].mean() < 15


def test_the_header_of_a_rotated_image_gives_the_size_of_its_pixels():
    """Regression: Pillow rotates a TIFF itself, so its sides were exchanged twice."""
    exif = Image.Exif()
    exif[0x112] = 6
    for kind in ("TIFF", "JPEG", "PNG"):
        data = encoded(pixels(height=4, width=6), kind, exif=exif)
        header = read_header(data)
        assert decode(data).shape == (3, header.height, header.width) == (3, 6, 4)


def test_damaged_exif_does_not_lose_the_image():
    data = encoded(pixels(), "PNG", exif=b"Exif\0\0nonsense")
    assert decode(data).shape == (3, 8, 8)


@pytest.mark.parametrize("channels", [1, 3, None])
def test_transparency_is_composited_on_white(channels):
    image = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    image.putpixel((1, 2), (10, 10, 10, 255))
    values = decode(encoded(image), channels=channels)
    assert (values[:, 2, 1] == 10).all()
    assert (values[:, 0] == 255).all()


def test_grey_with_transparency_is_composited_on_white():
    values = decode(encoded(Image.new("LA", (4, 4), (7, 0))), channels=1)
    assert (values == 255).all()


def test_a_palette_is_resolved():
    image = Image.new("RGB", (4, 4), (250, 10, 20)).quantize(4)
    assert image.mode == "P"
    assert decode(encoded(image))[:, 0, 0].tolist() == [250, 10, 20]


def test_a_palette_of_greys_is_grey():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 77, 77, 77])
    assert read_header(encoded(image)).grey
    assert decode(encoded(image)).tolist() == [[[77] * 4] * 4]


def test_a_transparent_palette_colour_is_composited_on_white():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 9, 99, 199])
    assert (decode(encoded(image, transparency=1)) == 255).all()


def test_cmyk_becomes_rgb():
    data = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95)
    red, green, blue = decode(data)[:, 4, 4]
    assert red > 220
    assert max(green, blue) < 60


def test_the_first_frame_of_an_animation_is_read():
    frames = [Image.new("RGB", (6, 6), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data, channels=3)[:, 3, 3].tolist() == [255, 0, 0]


def test_sixteen_bits_are_rounded_to_eight():
    wide = np.array([[0, 257, 65535, 32896]], np.uint16)
    assert decode(encoded(Image.fromarray(wide))).tolist() == [[[0, 1, 255, 128]]]


@pytest.mark.parametrize("orientation", [1, 6])
def test_sixteen_bits_with_white_as_zero_are_inverted(orientation):
    """Pillow inverts only pixels of up to 8 bits."""
    wide = np.array([[0, 257, 65535, 32896]], np.uint16)
    upright = decode(encoded(Image.fromarray(wide), "TIFF", tiffinfo={274: orientation}))
    tags = {262: 0, 274: orientation}
    inverted = decode(encoded(Image.fromarray(wide), "TIFF", tiffinfo=tags))
    assert np.array_equal(inverted, 255 - upright)
    assert sorted(inverted.ravel().tolist()) == [0, 127, 254, 255]


def test_a_transparent_value_of_sixteen_bits_is_composited_on_white():
    wide = Image.fromarray(np.array([[0, 257, 65535, 32896]], np.uint16))
    data = encoded(wide, "PNG", transparency=257)
    with Image.open(io.BytesIO(data)) as image:
        assert image.info["transparency"] == 257
    assert decode(data, channels=1).tolist() == [[[0, 255, 255, 128]]]


def test_black_and_white_becomes_grey():
    assert decode(encoded(Image.new("1", (3, 3), 1))).tolist() == [[[255] * 3] * 3]


@pytest.mark.parametrize(("kind", "named"), [(np.float32, "floating-point"), (np.int32, "32-bit")])
def test_pixels_of_unknown_range_are_refused(kind, named):
    image = Image.fromarray(np.full((3, 3), 200, kind))
    for data in (image, encoded(image, "TIFF")):
        with pytest.raises(UnreadableImageError, match=f"{named}.* numbers, whose range"):
            read_header(data)


def test_a_pgm_of_sixteen_bits_is_read():
    wide = Image.fromarray(np.full((3, 3), 32896, np.uint16))
    assert (decode(encoded(wide, "PPM")) == 128).all()


def test_grey_is_repeated_for_three_channels():
    values = decode(png(1, channels=1), channels=3)
    assert np.array_equal(values, np.repeat(pixels(1, channels=1)[None], 3, 0))


def test_size_scales_the_shorter_side_and_crops_the_middle():
    image = np.zeros((20, 60, 3), np.uint8)
    image[:, 20:40] = 200
    values = decode(encoded(image), size=10)
    assert values.shape == (3, 10, 10)
    # Scaling precedes cropping, so the filter mixes in pixels from beyond the crop.
    assert np.abs(values.astype(int) - 200).max() < 16


def test_size_only_crops_if_the_shorter_side_has_that_size():
    image = pixels(0, 8, 13)
    assert np.array_equal(decode(encoded(image), size=8), first(image[:, 2:10]))


def test_scaling_down_is_antialiased():
    image = np.zeros((64, 64), np.uint8)
    image[::2] = 255
    values = decode(encoded(image), size=8)
    assert np.abs(values.astype(int) - 128).max() < 8


def test_size_scales_small_images_up():
    assert decode(png(0, 3, 4), size=32).shape == (3, 32, 32)


def test_a_large_jpeg_keeps_its_brightness_when_scaled():
    y, x = np.mgrid[:512, :512]
    image = ((x + y) // 4).astype(np.uint8)
    small = decode(encoded(image, "JPEG", quality=95), size=16)[0].astype(float)
    mean = image.reshape(16, 32, 16, 32).mean((1, 3))
    assert np.abs(small - mean).max() < 4
    stripes = np.repeat(255 * (x // 8 % 2)[..., None], 3, 2).astype(np.uint8)
    drawn = decode(encoded(stripes, "JPEG", quality=95), size=128)[0].astype(float)
    assert np.abs(drawn - 255 * (np.arange(128) // 2 % 2)).mean() < 25  # no detail is lost


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.8])
def test_a_truncated_image_is_unreadable(kind, part):
    data = encoded(pixels(0, 64, 64), kind)
    with pytest.raises(UnreadableImageError):
        decode(data[: int(part * len(data))], channels=3)


@pytest.mark.parametrize("data", [b"", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%EOF"])
def test_bytes_that_are_no_image_are_unreadable(data):
    with pytest.raises(UnreadableImageError):
        decode(data)
    with pytest.raises(UnreadableImageError):
        read_header(data)


@pytest.mark.parametrize("size", [(145, 133), (131, 140), (267, 400)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_is_cropped_where_the_same_picture_without_loss_is(smooth_images, size, orientation):
    """A JPEG is decoded at a fraction of its size, whose pixels do not begin where others do."""
    small = smooth_images(1, (3, 16, 16), seed=5)[0].permute(1, 2, 0).byte().numpy()
    image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    loss, plain = (
        decode(encoded(image, kind, exif=exif, **options), size=32).astype(float)
        for kind, options in (("JPEG", {"quality": 98, "subsampling": 0}), ("PNG", {}))
    )
    assert np.abs(loss - plain).mean() < 0.6


def test_an_image_of_too_many_pixels_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_PIXELS", 63)
    for function in (decode, read_header):
        with pytest.raises(UnreadableImageError, match="8 x 8"):
            function(png())


def test_a_decompression_bomb_is_refused():
    bomb = bytearray(png(channels=1))
    bomb[16:24] = (50_000).to_bytes(4, "big") * 2
    # With a valid header checksum, only the size can stop it.
    bomb[29:33] = zlib.crc32(bytes(bomb[12:29])).to_bytes(4, "big")
    with pytest.raises(UnreadableImageError, match="pixels"):
        decode(bytes(bomb))


def test_what_is_no_file_is_told_from_what_is_missing(tmp_path):
    with pytest.raises(OSError, match="it is not a file"):
        module.read_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        module.read_file(tmp_path / "a.png")


def test_a_tiff_whose_tile_is_far_larger_than_the_image_is_refused():
    tags = {256: 16, 257: 16, 258: 8, 259: 32773, 262: 1, 277: 1, 322: 12000, 323: 12000, 324: 8}
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in {**tags, 325: 4}.items()]
    directory = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    with pytest.raises(UnreadableImageError, match="it claims 12000 x 12000 pixels"):
        decode(b"II*\0" + struct.pack("<I", 12) + bytes(4) + directory)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_random_damage_raises_only_unreadable_image_error():
    noise = np.random.default_rng(0)
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        image = encoded(pixels(0, 24, 24), kind)
        for _ in range(60):
            data = bytearray(image)
            for index in noise.integers(0, len(data), 6):
                data[index] = noise.integers(256)
            with contextlib.suppress(UnreadableImageError):
                assert decode(bytes(data), channels=3).dtype == np.uint8
