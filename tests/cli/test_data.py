"""Training images of the commands: folders, stores, and the cache between runs."""

import os
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

import golddiff
from golddiff.cli import run

from .conftest import read_json, store_of


def test_indexing_large_pictures_gives_no_warning(monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow warns above this
    Path("photos").mkdir()
    Image.new("RGB", (16, 12)).save("photos/wide.png")
    assert run(["index", "photos", "photos.store"]) == 0
    assert not recwarn.list


def test_value_range_says_where_the_floats_of_a_file_lie(capsys, fails):
    images = (store_of(capsys, "digits").images() + 1) * 127.5
    np.save("f.npy", images.numpy())
    message = "--value-range: not given, and the floats of array file f.npy lie in 0 to 255, not "
    for arguments in (["sample", "--data", "f.npy"], ["novelty", "f.npy", "digits"]):
        line = fails(*arguments)
        assert message in line
        assert 'say --value-range 0,255 if they are pixels, or --value-range "any" to' in line
    assert "such as --value-range 0,255" in fails("index", "f.npy", "f", "--value-range", "3")
    assert run(["index", "f.npy", "f.store", "--value-range", "0,255"]) == 0
    assert run(["novelty", "f.npy", "digits", "--value-range", "0,255"]) == 0
    assert "copies: 1,797 of 1,797 pictures" in capsys.readouterr().out
    line = fails("sample", "--store", "f.store", "--value-range", "0,1")
    assert "--value-range: does not apply to a store" in line
    assert golddiff.ImageStore.open("f.store").images().min() == -1
    assert run(["sample", "--data", "f.npy", "--value-range", "any", "--method", "wiener"]) == 0
    assert run(["index", "f.npy", "any.store", "--value-range", "any"]) == 0
    assert not golddiff.ImageStore.open("any.store").is_pixels


def test_arrays_of_unknown_names_are_listed_for_the_option_that_chooses(fails):
    np.savez("two.npz", left=np.zeros((3, 4, 4), np.uint8), right=np.ones((3, 4, 4), np.uint8))
    assert "name one with --column NAME: left, right" in fails("index", "two.npz", "a.store")


def test_home_is_meant_by_a_tilde_that_the_shell_left(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "my home"))
    assert run(["index", "moons", "~/moons.store", "--limit", "20"]) == 0
    assert run(["info", "~/moons.store", "--json=~/info.json"]) == 0
    assert sorted(p.name for p in (tmp_path / "my home").iterdir()) == ["info.json", "moons.store"]
    assert not (tmp_path / "~").exists()


def test_what_a_disk_refuses_is_told_without_a_number(monkeypatch, fails):
    for error, line in (
        (FileNotFoundError(2, "No such file or directory", "a.store"), "a.store: No such file"),
        (OSError(28, "No space left on device"), "golddiff: No space left"),
        (OSError("the address does not answer"), "golddiff: the address does not answer"),
    ):
        monkeypatch.setattr("golddiff.store.cache.entries", mock.Mock(side_effect=error))
        assert line in fails("cache")


def test_index_describes_a_store_of_points(capsys):
    assert run(["index", "moons", "moons.store", "--limit", "20"]) == 0
    assert "moons.store: 20 points of 2 values, 2 classes" in capsys.readouterr().out


def test_a_folder_is_indexed_once_and_again_after_a_change(photos, capsys):
    sample = ["sample", "--data", str(photos), "--size", "8", "--method", "optimal", "--n", "1"]
    assert run(sample) == 0
    assert "building a store" in capsys.readouterr().out
    assert run(sample) == 0
    assert "using the store" in capsys.readouterr().out
    (photos / "cat" / "1.png").unlink()
    assert run(sample) == 0
    assert "building a store" in capsys.readouterr().out


def test_a_folder_with_undecodable_names_and_other_files_is_indexed_once(photos, capsys):
    photos = photos.rename(photos.parent / os.fsdecode(b"alb\xfcm"))  # names in old archives
    (photos / "cat" / "1.png").rename(photos / "cat" / os.fsdecode(b"gr\xfcn\n.png"))
    sample = ["sample", "--data", str(photos), "--size", "8", "--method", "optimal", "--n", "1"]
    assert run(sample) == 0
    assert "alb\\udcfcm" in capsys.readouterr().out
    (photos / ".DS_Store").write_text("left by a file browser")
    assert run(sample) == 0
    assert "using the store" in capsys.readouterr().out


def test_sampling_from_a_folder_names_unreadable_images_it_left_out(photos, capsys):
    (photos / "cat" / "broken.png").write_bytes((photos / "cat" / "1.png").read_bytes()[:40])
    (photos / "cat" / "fake.jpg").write_bytes(b"no image")
    sample = ["sample", "--data", str(photos), "--size", "8", "--method", "optimal", "--n", "1"]
    assert run(sample) == 0
    out = capsys.readouterr().out
    assert "left out 2 that could not be read" in out
    assert "broken.png" in out
    assert "fake.jpg" in out
    assert run(sample) == 0
    assert "(2 unreadable images left out), in" in capsys.readouterr().out
    assert run([*sample, "--no-skip-bad"]) == 2


def test_a_damaged_cached_store_is_rebuilt(photos, capsys):
    sample = ["sample", "--data", str(photos), "--size", "9", "--method", "optimal", "--n", "1"]
    assert run([*sample, "--json", "r.json"]) == 0
    path = read_json("r.json")["store"]["path"]
    with open(f"{path}/pixels.bin", "r+b") as file:
        file.truncate(10)
    capsys.readouterr()
    assert run(sample) == 0
    assert "building a store" in capsys.readouterr().out


def test_index_info_and_sample_work_on_one_store(photos, capsys):
    (photos / "cat" / "broken.png").write_bytes(b"no image")
    options = ["--size", "8", "--skip-bad", "--json", "i.json"]
    assert run(["index", str(photos), "photos.store", *options]) == 0
    out = capsys.readouterr().out
    assert "12 images, 8 x 8 RGB, 2 classes" in out
    assert "left out 1" in out
    assert "broken.png" in out
    figures = read_json("i.json")
    assert (figures["n"], figures["shape"], figures["skipped"]) == (12, [3, 8, 8], 1)
    assert "broken.png" in figures["skipped_images"][0]["name"]
    assert run(["info", "photos.store", "--verify", "--json", "info.json"]) == 0
    out = capsys.readouterr().out
    assert "'cat' 6" in out
    assert "checksums: all" in out
    assert read_json("info.json")["classes"] == {"0": 6, "1": 6}
    options = ["--labels", "dog", "--n", "1", "--method", "optimal", "--json", "s.json"]
    assert run(["sample", "--store", "photos.store", *options]) == 0
    assert read_json("s.json")["labels"] == [1]


def test_demo_draws_its_pictures_from_a_folder_of_images(photos, capsys):
    assert run(["demo", "--data", str(photos), "--size", "8", "--out", "pictures"]) == 0
    assert sorted(os.listdir("pictures")) == ["dial.png", "methods.png"]
    out = capsys.readouterr().out
    assert all(f"pictures/{name}.png: " in out for name in ("dial", "methods"))


def test_demo_refuses_a_large_size_before_it_reads_the_images(fails):
    line = fails("demo", "--data", "nowhere/", "--size", "128")
    assert "--size: got 128, expected at most 4,096 values in a picture" in line
