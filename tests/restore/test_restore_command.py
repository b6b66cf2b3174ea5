"""``golddiff restore``: its inputs, files, messages and errors."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

import golddiff
from golddiff.cli import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory, smooth_images):
    """16 x 16 pictures in photos/ and photos.store, and damaged.png, which is not among them."""
    root = tmp_path_factory.mktemp("pictures")
    (root / "photos").mkdir()
    for i, image in enumerate(smooth_images(24, (3, 16, 16)).permute(0, 2, 3, 1).numpy()):
        path = root / ("damaged.png" if i == 0 else f"photos/{i:02d}.png")
        Image.fromarray(image).save(path)
    golddiff.ImageStore.build(root / "photos", root / "photos.store")
    return root


@pytest.fixture(autouse=True)
def _in_the_folder(folder, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(folder / "cache"))
    monkeypatch.chdir(folder)


def test_restore_writes_its_files_and_refuses_bad_options(folder, capsys, fails):
    command = ["restore", str(folder / "damaged.png"), "--data", str(folder / "photos"), "--n", "2"]
    command += ["--steps", "3", "--method", "GoldDiff_PCA", "--out", str(folder / "out.png")]
    explained = ["--hole", "4,4,6,6", "--explain", str(folder / "why.html")]
    assert run([*command, *explained, "--json", str(folder / "run.json")]) == 0
    figures = json.loads((folder / "run.json").read_text())
    assert (figures["hole"], figures["mask"], figures["upscale"]) == ([4, 4, 6, 6], None, None)
    assert golddiff.ImageStore.open(figures["store"]["path"]).n == 23
    output = capsys.readouterr().out
    assert "2 restorations" in output
    assert "noise" in output
    assert "novelty" in output
    with Image.open(folder / "out.png") as picture:
        assert picture.width > 3 * picture.height
    page = (folder / "why.html").read_text()
    assert "FAIL" not in page
    assert "What is known of the picture is put back" in page
    assert "give the output within" not in page  # the weighed images alone do not
    assert "distances those of the finished picture" in page
    assert run([*command, "--upscale", "2", "--colours", "--n", "6"]) == 0
    with Image.open(folder / "out.png") as picture:  # nine, in two rows
        assert picture.width < 5 * picture.height
    for options, message in (
        ([], "got nothing to restore"),
        (["--hole", "4,4,60,6"], "--hole: got 4,4,60,6, which is not inside"),
        (["--hole", "4,4,6,60"], "--hole: got 4,4,6,60, which is not inside"),
        (["--hole", "4,4,6"], "--hole: got 4,4,6"),
        (["--upscale", "3"], "--upscale: got 3"),
        (["--hole", "0,0,16,16"], "which is all of the picture"),
        (["--deblur", "0"], "--deblur"),
        (["--colours", "--method", "wiener"], "--method: got wiener"),
        (["--colours", "--size", "64"], "picture: has 16 x 16 pixels, expected 64 x 64"),
        (["--mask", str(folder / "out.png")], "--out: "),
        (["--mask", str(folder / "out.png"), "--out", str(folder / "a.png")], "--mask: has"),
        (["--colours", "--json", str(folder / "out.png")], "is also the file of --out"),
    ):
        assert message in fails(*command, *options)
    # Refused before a store is opened.
    refused = ["--n 0", "--steps 0", "--hole 4,4,60,6", "--hole a,b", "--noise 0 --softness 0"]
    for options in refused:
        assert run([*command, "--colours", *options.split()]) == 2
        assert "using the store" not in capsys.readouterr().out
    line = fails("restore", "damaged.png", "--store", "photos.store", "--size", "8")
    assert "--size: does not apply to a store" in line
    line = fails("restore", "damaged.png", "--data", "moons", "--colours")
    assert "--data: holds points of 2 values, expected grey" in line


def test_the_minutes_of_a_wide_blur_are_told_before_they_pass(monkeypatch, capsys):
    command = ["restore", "damaged.png", "--data", "photos", "--n", "1", "--steps", "2"]
    for seconds, told in ((4e-7, False), (1e-3, True)):
        monkeypatch.setattr(sys.modules["golddiff.cli.restore"], "SECONDS", seconds)
        assert run([*command, "--deblur", "3"]) == 0
        out = capsys.readouterr().out
        assert ("minutes; a smaller --deblur, --n or --size is faster\nno" in out) == told


def test_a_grey_picture_among_colour_ones_is_told_with_the_options_for_it(capsys):
    with Image.open("damaged.png") as picture:
        picture.convert("L").save("grey.png")
    hole = ["--data", "photos", "--n", "1", "--steps", "2", "--hole", "4,4,6,6"]
    for picture, more, told in (
        ("grey.png", [], True),
        ("grey.png", ["--colours"], False),
        ("grey.png", ["--channels", "1"], False),
        ("damaged.png", [], False),
    ):
        assert run(["restore", picture, *hole, *more]) == 0
        assert ("the picture is grey: --colours" in capsys.readouterr().out) == told


def test_no_softness_is_refused_where_no_noise_is_found_before_masks_are_computed(folder, fails):
    Image.new("RGB", (16, 16)).save("plain.png")
    assert run(["index", "photos", "soft.store"]) == 0
    before = sorted(path.name for path in (folder / "soft.store").iterdir())
    line = fails("restore", "plain.png", "--store", "soft.store", "--colours", "--softness", "0")
    assert "--softness: got 0 for a picture without noise, expected more than 0" in line
    assert sorted(path.name for path in (folder / "soft.store").iterdir()) == before


def test_a_hole_is_given_in_pixels_of_a_large_file():
    with Image.open("damaged.png") as picture:
        picture.resize((2048, 2048)).save("large.png")
    command = ["restore", "large.png", "--store", "photos.store", "--n", "1", "--steps", "1"]
    assert run([*command, "--hole", "1200,1200,500,500", "--out", "large.npz"]) == 0


def test_a_mask_may_be_white_on_black_or_on_transparency(capsys):
    layer = Image.new("LA", (16, 16))
    layer.paste((255, 255), (4, 4, 10, 10))
    layer.save("layer.png")
    layer.getchannel("L").save("black.png")
    command = ["restore", "damaged.png", "--store", "photos.store", "--n", "1", "--steps", "1"]
    results = []
    for name in ("layer", "black"):
        assert run([*command, "--mask", f"{name}.png", "--out", f"{name}.npz"]) == 0
        results.append(np.load(f"{name}.npz")["images"])
    assert (results[0] == results[1]).all()


def test_transparent_pixels_of_a_picture_are_its_hole(fails):
    with Image.open("damaged.png") as picture:
        erased = picture.convert("RGBA")
    erased.save("whole.png")
    erased.paste((0, 0, 0, 0), (4, 4, 10, 10))
    erased.save("erased.png")
    options = ["--store", "photos.store", "--n", "1", "--steps", "1", "--noise", "0"]
    for name, hole in (("erased", []), ("damaged", ["--hole", "4,4,6,6"])):
        assert run(["restore", f"{name}.png", *options, *hole, "--out", f"{name}.npz"]) == 0
    results = [np.load(f"{name}.npz")["images"] for name in ("erased", "damaged")]
    assert (results[0] == results[1]).all()
    assert "--hole: got nothing to restore" in fails("restore", "whole.png", *options)


def test_a_grey_photograph_is_refused_as_a_mask(fails):
    grey = np.linspace(0, 255, 256).astype(np.uint8).reshape(16, 16)
    Image.fromarray(grey).save("photograph.png")
    message = fails("restore", "damaged.png", "--data", "photos", "--mask", "photograph.png")
    assert "--mask: 75% of it is grey" in message


@pytest.mark.parametrize("colour", ["black", "white"])
def test_a_mask_of_one_colour_is_named(fails, colour):
    Image.new("L", (16, 16), colour).save("plain-mask.png")
    message = fails("restore", "damaged.png", "--data", "photos", "--mask", "plain-mask.png")
    assert f"--mask: all of it is {colour}, expected white where" in message


def test_the_difference_told_is_that_of_two_restorations(monkeypatch, capsys):
    restored = golddiff.restore

    def black_and_white(*arguments, **options):
        samples = restored(*arguments, **options)
        samples.images[0], samples.images[1] = -1, 1
        return samples

    monkeypatch.setattr(golddiff, "restore", black_and_white)
    options = ["--data", "photos", "--n", "2", "--steps", "1", "--hole", "4,4,6,6"]
    assert run(["restore", "damaged.png", *options]) == 0
    assert "differ by up to 2.00 (white to black is 2)" in capsys.readouterr().out


def test_a_picture_that_is_sharper_than_its_blur_allows_is_told(capsys):
    squares = (np.indices((16, 16)) // 2).sum(axis=0) % 2 * 255
    Image.fromarray(squares.astype(np.uint8)).save("sharp.png")
    Image.new("L", (16, 16), 128).save("flat.png")
    options = ["--data", "photos", "--deblur", "2", "--noise", "0.01", "--n", "1", "--steps", "3"]
    for picture, told in (("sharp.png", True), ("flat.png", False)):
        assert run(["restore", picture, *options]) == 0
        assert ("no picture fits yours" in capsys.readouterr().out) == told
