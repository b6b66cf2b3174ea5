"""``golddiff novelty``: the pictures that it reads, and its report."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from golddiff.cli import run

from .conftest import read_json, store_of


def test_novelty_of_an_array_of_pictures_is_reported(capsys):
    copies = store_of(capsys, "digits").images(range(5))
    noise = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    pixels = ((torch.cat([copies, noise]) + 1) * 127.5).round().to(torch.uint8)
    np.save("pictures.npy", pixels.numpy())
    options = ["--json", "novelty.json", "--out", "novelty.html"]
    assert run(["novelty", "pictures.npy", "digits", *options]) == 0
    assert (
        "copies: 5 of 10 pictures, compared with 1,797 training images" in capsys.readouterr().out
    )
    figures = read_json("novelty.json")
    assert figures["copies"] == 5
    assert figures["nearest"][:5] == [0, 1, 2, 3, 4]
    assert figures["novelty"][:5] == [0] * 5
    page = Path("novelty.html").read_text()
    assert page.count("a copy</b>") == 5
    assert 'class="verdict fail"' in page
    assert "$" not in page


def test_pictures_in_other_units_are_refused_with_the_option_that_maps_them(make_store, fails):
    images = np.random.default_rng(0).uniform(-1000, 1000, (9, 1, 8, 8)).astype(np.float32)
    np.save("run.npy", images)
    store = str(make_store(images, value_range=(-1000, 1000)).path)
    assert "to which --value-range LEAST,LARGEST maps" in fails("novelty", "run.npy", store)
    assert run(["novelty", "run.npy", store, "--value-range", "-1000,1000"]) == 0


def test_larger_pictures_are_scaled_to_the_training_images(capsys):
    pixels = ((store_of(capsys, "digits").images(range(5)) + 1) * 127.5).round().to(torch.uint8)
    np.save("large.npy", pixels.repeat_interleave(2, 2).repeat_interleave(2, 3).numpy())
    assert run(["novelty", "large.npy", "digits", "--json", "novelty.json"]) == 0
    assert read_json("novelty.json")["nearest"] == [0, 1, 2, 3, 4]


def test_novelty_takes_arrays_of_as_many_channels_as_the_training_images(make_store, capsys):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 5, 8, 8), dtype=np.uint8)
    np.save("five.npy", pixels[:4])
    assert run(["novelty", "five.npy", str(make_store(pixels).path)]) == 0
    assert "copies: 4 of 4 pictures" in capsys.readouterr().out


def test_pictures_of_another_size_than_training_images_that_are_no_squares_are_refused(fails):
    np.save("pictures.npy", np.zeros((2, 3, 8, 8), np.uint8))
    training = np.arange(3 * 3 * 8 * 9, dtype=np.uint8).reshape(3, 3, 8, 9)
    np.save("training.npy", training)
    expected = "are 8 x 8 RGB, expected the training images' 9 x 8 RGB"
    assert expected in fails("novelty", "pictures.npy", "training.npy")
    np.save("grey.npy", training[:, :1])
    assert run(["novelty", "grey.npy", "training.npy"]) == 0  # as with squares


def test_pictures_in_folders_are_named_with_their_folders(make_store):
    store = make_store(torch.randint(256, (9, 3, 8, 8)).byte())
    for folder in ("a", "b"):
        Path("pictures", folder).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(f"pictures/{folder}/1.png")
    assert run(["novelty", "pictures", str(store.path), "--json", "n.json"]) == 0
    assert read_json("n.json")["files"] == ["a/1.png", "b/1.png"]


def test_speckle_that_straight_edges_leave_undefined_is_left_out(make_store, capsys):
    edges = torch.zeros(9, 1, 8, 8, dtype=torch.uint8)
    for i in range(9):
        edges[i, 0, :, 1 + i % 6 :] = 20 * i + 30  # a median keeps it: no speckle to compare with
    store = str(make_store(edges).path)
    assert run(["novelty", store, store, "--json", "n.json"]) == 0
    assert "sharpness 1.00 (training images: 1)" in capsys.readouterr().out
    assert read_json("n.json")["speckle"] is None


def test_a_store_of_the_wanted_size_is_opened_and_not_copied(make_store, capsys):
    store = make_store(torch.randint(256, (9, 3, 8, 8)).byte())
    assert run(["novelty", str(store.path), str(store.path), "--size", "8"]) == 0
    assert "building" not in capsys.readouterr().out


def test_novelty_reads_the_pictures_of_a_store(capsys):
    assert run(["index", "digits", "few.store", "--limit", "20"]) == 0
    assert run(["novelty", "few.store", "digits"]) == 0
    assert "copies: 20 of 20 pictures" in capsys.readouterr().out


def test_only_the_grid_of_golddiff_is_left_out_of_a_folder(capsys):
    options = ["--method", "optimal", "--n", "2", "--steps", "1", "--limit", "20"]
    assert run(["sample", "--data", "digits", *options, "--out", "pictures"]) == 0
    Path("pictures/sub").mkdir()
    with Image.open("pictures/0001.png") as picture:
        picture.save("pictures/e.bmp")
        picture.save("pictures/sub/e.png")
        Path("pictures/broken.png").write_text("no picture")
        written = ["--json", "n.json", "--out", "n.html"]
        assert run(["novelty", "pictures", "digits", *written]) == 0
        assert "copies: 4 of 4 pictures" in capsys.readouterr().out
        figures = read_json("n.json")
        assert len(figures["skipped"]) == 1
        assert [len(both) for both in figures["distances"]] == [2] * 4
        page = Path("n.html").read_text()
        assert "unreadable: 1." in page
        assert f"to the second nearest {figures['distances'][0][1]:.4f}" in page
        Path("pictures/broken.png").unlink()
        picture.save("pictures/grid.png")  # not golddiff's
    assert run(["novelty", "pictures", "digits", "--json", "n.json"]) == 0
    assert read_json("n.json")["files"] == [
        *("0000.png", "0001.png", "e.bmp", "grid.png", "sub/e.png")
    ]


def test_a_grid_is_refused_by_novelty_and_its_single_pictures_are_read(capsys):
    options = ["--method", "optimal", "--n", "2", "--steps", "1", "--limit", "20"]
    for out in ("grid.png", "pictures"):
        assert run(["sample", "--data", "digits", *options, "--out", out]) == 0
    capsys.readouterr()
    assert run(["novelty", "grid.png", "moons"]) == 2
    out, err = capsys.readouterr()
    assert "grid.png is a grid of pictures, expected single ones" in err
    assert not out  # refused before a store is built
    for path in ("pictures", "pictures/0001.png"):
        assert run(["novelty", path, "digits"]) == 0
