import base64
import struct
import zlib

import pytest
import torch
from PIL import Image

from golddiff.sources.picture import MAX_BYTES, fit_to_shape, read_picture
from golddiff.studio.inputs import SIDE, drawn
from golddiff.system.errors import ArgumentError
from tests.sources.make import encoded, pixels


def saved(tmp_path, image, name="image.png"):
    image.save(tmp_path / name)
    return tmp_path / name


def test_an_upload_is_scaled_and_cropped_to_the_store(tmp_path, make_store):
    store = make_store(torch.zeros(3, 3, 8, 6, dtype=torch.uint8))
    wide = Image.new("RGB", (400, 80), (255, 0, 0))
    image = fit_to_shape(read_picture("upload", saved(tmp_path, wide)), store.shape)
    assert image.shape == store.shape
    assert torch.allclose(image, torch.tensor([1.0, -1, -1])[:, None, None].expand(3, 8, 6))


@pytest.mark.parametrize(
    ("size", "read"), [((3000, 1500), (2048, 1024)), ((5000, 300),) * 2, ((300, 5000),) * 2]
)
def test_large_pictures_are_reduced_to_1024_pixels_of_the_shorter_side(tmp_path, size, read):
    assert read_picture("upload", saved(tmp_path, Image.new("L", size))).size == read


def test_colours_become_grey_for_a_grey_store(tmp_path, make_store):
    store = make_store(torch.zeros(3, 1, 4, 4, dtype=torch.uint8))
    image = fit_to_shape(
        read_picture("upload", saved(tmp_path, Image.new("RGB", (20, 20), "white"))), store.shape
    )
    assert torch.equal(image, torch.ones(1, 4, 4))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_100_megapixels_are_refused_from_the_header_alone(tmp_path):
    header = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
    data += struct.pack(">I", zlib.crc32(chunk)) + struct.pack(">I", 1) + b"IDAT" + b"\0" * 5
    data += bytes(400_000)  # fewer than 256 pixels a byte: no bomb
    (tmp_path / "large.png").write_bytes(data)
    with pytest.raises(ArgumentError, match=r"^upload: the image.*100 megapixels.*at most 40"):
        read_picture("upload", tmp_path / "large.png")


def test_too_many_bytes_are_refused_unread(tmp_path):
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ArgumentError, match=r"^upload: the file has 40 MB, expected at most 40 MB"):
        read_picture("upload", tmp_path / "large.png")


@pytest.mark.parametrize(
    "contents",
    [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"<svg/>", encoded(pixels(0, 64, 64), "JPEG")[:900]],
)
def test_files_that_are_no_image_and_cut_ones_are_refused(tmp_path, contents):
    (tmp_path / "file.png").write_bytes(contents)
    with pytest.raises(ArgumentError, match=r"^upload: the file cannot be read as an image"):
        read_picture("upload", tmp_path / "file.png")


def as_url(image):
    return "data:image/png;base64," + base64.b64encode(encoded(image)).decode()


def sheet():
    return Image.new("RGBA", (SIDE, SIDE), "black")


def test_an_empty_sheet_gives_none_and_drawn_pixels_are_kept():
    assert drawn(as_url(sheet())) is None
    inked = sheet()
    inked.putpixel((3, 3), (255, 255, 255))
    assert drawn(as_url(inked)).getpixel((3, 3)) == (255, 255, 255)


@pytest.mark.parametrize(
    "url",
    [
        None,
        {},
        "",
        "http://images.example/cat.png",
        "data:image/png;base64,=",
        "data:image/png;base64,é",
        "file:///etc/passwd",
    ],
)
def test_a_drawing_must_be_a_png_data_url(url):
    with pytest.raises(ArgumentError, match="no drawing of this page"):
        drawn(url)


def test_a_drawing_is_refused_from_its_header_before_it_is_decoded(monkeypatch):
    """A 20 kB file can decode to 100 megapixels, and one with layers to gigabytes."""

    def never(data):
        raise AssertionError("decoded")

    monkeypatch.setattr("golddiff.sources.picture.decode", never)
    with pytest.raises(ArgumentError, match="drawing: the image has 2,000 x 2,000 pixels"):
        drawn(as_url(Image.new("L", (2000, 2000))))
    with pytest.raises(ArgumentError, match="no drawing of this page"):
        drawn("data:image/png;base64," + "A" * 2_000_000)


def test_an_image_cannot_start_a_run_of_latents(make_store):
    store = make_store(torch.zeros(3, 4, 4, 4))
    with pytest.raises(ArgumentError, match="latents of 4 channels"):
        fit_to_shape(Image.new("RGB", (8, 8)), store.shape)
