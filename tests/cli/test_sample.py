"""``golddiff sample``: its pictures, files and reports."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import golddiff
from golddiff.cli import run
from golddiff.cli.options import ReadingOptions, TrainingImages
from golddiff.cli.sample_run import SampleJob, SampleRun
from golddiff.estimators.dial import Dial
from golddiff.estimators.registry import METHODS
from golddiff.samplers import noise_levels
from golddiff.system.pictures import to_pixels

from .conftest import read_json


@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_a_grid_at_least_512_pixels_wide(method, capsys):
    few = ["--data", "digits", "--limit", "200"]
    assert run(["sample", *few, "--method", method, "--n", "2", "--steps", "2"]) == 0
    with Image.open("grid.png") as picture:
        assert picture.mode == "L"
        assert picture.width >= 512
    assert f"grid.png: 2 images by {method}" in capsys.readouterr().out


def test_equal_seeds_give_equal_files_and_other_seeds_other_files():
    for out, seed in (("a.png", 3), ("b.png", 3), ("c.png", 4)):
        options = ["--n", "4", "--steps", "3", "--seed", str(seed), "--out", out]
        assert run(["sample", *options, "--trajectory", f"t-{out}"]) == 0
    a, b, c = (Path(name).read_bytes() for name in ("a.png", "b.png", "c.png"))
    assert a == b != c
    assert Path("t-a.png").read_bytes() == Path("t-b.png").read_bytes()


def test_json_holds_settings_golden_subsets_and_seconds_of_the_run():
    options = ["--n", "3", "--steps", "4", "--seed", "5", "--labels", "0,1", "--k-min", "5"]
    options += ["--method", "golddiff-pca"]
    assert run(["sample", *options, "--json", "run.json", "--sampler", "heun"]) == 0
    figures = read_json("run.json")
    assert figures["golddiff"] == golddiff.__version__
    assert figures["method"] == "golddiff-pca"
    assert figures["settings"] == {"k_min": 5}
    assert (figures["n"], figures["steps"], figures["seed"]) == (3, 4, 5)
    assert figures["sampler"] == "heun"
    assert figures["labels"] == [0, 1, 0]
    assert figures["sigmas"] == noise_levels(4, "heun")
    assert figures["out"] == "grid.png"
    assert figures["store"]["n"] == 1797
    assert os.path.isdir(figures["store"]["path"])
    store = golddiff.ImageStore.open(figures["store"]["path"])
    schedule = golddiff.PaperSchedule(k_min=5, variant="released")
    for subset, label in zip(figures["golden_subsets"], (0, 1), strict=True):
        count = len(store.rows_of(label))
        assert (subset["label"], subset["images"]) == (label, count)
        expected = [schedule.budgets(s, count) for s in figures["sigmas"]]
        assert list(zip(subset["m"], subset["k"], strict=True)) == expected
    seconds = figures["seconds"]
    assert sum(seconds["per_step"]) == pytest.approx(seconds["total"])
    assert figures["denoiser"].startswith("GoldDiff(PCA(store")
    assert seconds["per_image_and_step"] == pytest.approx(seconds["total"] / 12)


def test_records_tell_which_training_images_were_used_and_how_they_were_read():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
    records = []
    for _ in range(2):
        np.save("training.npy", pixels)
        options = ["--limit", "8", "--channels", "1", "--method", "optimal", "--n", "2"]
        written = ["--json", "run.json", "--explain", "why.html"]
        assert run(["sample", "--data", "training.npy", *options, *written]) == 0
        figures = read_json("run.json")
        assert figures["data"] == "training.npy"
        assert figures["reading"] == {"limit": 8, "channels": 1}
        records.append(figures["store"]["checksum"])
        with Image.open("grid.png") as picture:
            assert picture.text["images_checksum"] == records[-1]
        assert records[-1] in Path("why.html").read_text()
        pixels[0, 0, 0, 0] ^= 128
    assert records[0] != records[1]


def test_the_page_lists_the_class_of_every_output_and_its_check_is_printed(capsys):
    options = ["--labels", "0,0,1", "--method", "golddiff-pca", "--n", "3", "--steps", "2"]
    assert run(["sample", *options, "--explain", "why.html"]) == 0
    assert "<dd>0, 0, 1</dd>" in Path("why.html").read_text()
    assert "within" in capsys.readouterr().out


def test_an_option_without_data_keeps_the_number_of_default_images(monkeypatch):
    default = TrainingImages("digits", reading=ReadingOptions(limit=30))
    monkeypatch.setattr("golddiff.cli.sample_run.DEFAULT", default)
    for option, n in ((["--channels", "1"], 30), (["--size", "8"], 30), (["--limit", "20"], 20)):
        options = ["--method", "optimal", "--n", "1", "--json", "run.json"]
        assert run(["sample", *option, *options]) == 0
        assert read_json("run.json")["store"]["n"] == n


def test_recommended_is_the_default_and_reports_novelty(capsys):
    assert (
        run(["sample", "--data", "digits", "--n", "2", "--steps", "3", "--json", "run.json"]) == 0
    )
    out = capsys.readouterr().out
    assert "by recommended" in out
    assert "novelty " in out
    figures = read_json("run.json")
    assert figures["method"] == "recommended"
    assert figures["settings"] == {"novelty": 0.7}
    assert len(figures["novelty"]["each"]) == len(figures["novelty"]["nearest"]) == 2


def test_copies_are_reported_with_advice(capsys):
    assert run(["sample", "--data", "digits", "--n", "3", "--steps", "3", "--novelty", "0"]) == 0
    out = capsys.readouterr().out
    assert "copies: 3 of 3" in out
    assert "copies are expected with 1,797 images and novelty 0; try --novelty 0.7" in out


def test_more_novelty_is_not_advised_at_the_end_of_the_dial(capsys, monkeypatch):
    end = Dial(np.array([1e-5, 2e-5]), np.array([0.0, 0.1]))
    monkeypatch.setattr("golddiff.estimators.dial.dial", lambda *_: end)
    assert run(["sample", "--data", "digits", "--n", "3", "--steps", "3"]) == 0
    assert "and novelty 0.7; more training images help" in capsys.readouterr().out


def test_copies_of_a_class_are_reported_with_the_number_of_its_images(photos, capsys):
    options = ["--size", "8", "--labels", "cat", "--n", "2", "--steps", "3", "--novelty", "0"]
    assert run(["sample", "--data", str(photos), *options]) == 0
    assert "expected with 6 images and novelty 0" in capsys.readouterr().out


def test_outputs_that_are_alike_are_reported(make_store, smooth_images):
    denoiser = golddiff.Optimal(make_store(smooth_images(5)))
    samples = golddiff.sample(denoiser, 4, steps=2)
    mean = samples.images.mean(dim=0)
    alike = replace(samples, images=mean + 0.1 * (samples.images - mean))
    for shown, n, said in ((alike, 4, True), (alike, 1, False), (samples, 4, False)):
        lines = SampleRun(SampleJob(n=n), denoiser, None, shown, [0.0, 1.0, 2.0]).lines()
        assert ("as much as the 5 training images do" in lines[-1]) == said


def test_golden_subsets_in_json_are_null_for_a_method_without_them():
    assert run(["sample", "--method", "wiener", "--n", "1", "--json", "run.json"]) == 0
    assert read_json("run.json")["golden_subsets"] is None


def test_samples_of_a_class_equal_those_of_the_package():
    assert (
        run(["sample", "--method", "optimal", "--n", "2", "--labels", "4", "--json", "r.json"]) == 0
    )
    store = golddiff.ImageStore.open(read_json("r.json")["store"]["path"])
    images = golddiff.sample(golddiff.Optimal(store), 2, labels=4).images
    expected = ((images[0, 0].clamp(-1, 1) + 1) * 127.5).round().numpy()
    grid = np.asarray(Image.open("grid.png"))
    factor = (grid.shape[1] - 6) // 16
    first = grid[2 : 2 + 8 * factor : factor, 2 : 2 + 8 * factor : factor]
    np.testing.assert_array_equal(first, expected)


def test_points_are_drawn_as_a_scatter_plot():
    options = ["--data", "moons", "--method", "golddiff-optimal", "--n", "20", "--steps", "3"]
    assert run(["sample", *options, "--out", "moons.png", "--trajectory", "paths.png"]) == 0
    with Image.open("moons.png") as scatter, Image.open("paths.png") as paths:
        assert scatter.size == paths.size
        assert scatter.width >= 512


@pytest.mark.parametrize("name", ["GoldDiff-PCA", "golddiff_pca", " golddiff-pca"])
def test_method_names_ignore_case_spaces_and_underscores(name, capsys):
    assert run(["sample", "--method", name, "--n", "1", "--steps", "1"]) == 0
    assert "by golddiff-pca" in capsys.readouterr().out


def test_out_is_a_folder_of_images_and_a_grid_or_an_npz_file():
    options = ["--method", "optimal", "--n", "3", "--steps", "2", "--seed", "4"]
    assert run(["sample", *options, "--out", "pictures"]) == 0
    assert run(["sample", *options]) == 0
    names = ["0000.png", "0001.png", "0002.png", "grid.png"]
    assert sorted(os.listdir("pictures")) == names
    with Image.open("pictures/grid.png") as grid, Image.open("grid.png") as expected:
        assert np.array_equal(np.asarray(grid), np.asarray(expected))
    with Image.open("pictures/0001.png") as picture:
        assert picture.size == (8, 8)
        assert picture.text["seed"] == "seed 4"
    assert run(["novelty", "pictures", "digits", "--json", "new.json"]) == 0
    assert json.loads(Path("new.json").read_text())["pictures"] == 3  # not the grid
    assert run(["novelty", "pictures/0001.png", "digits", "--json", "new.json"]) == 0
    assert json.loads(Path("new.json").read_text())["pictures"] == 1
    assert run(["novelty", "pictures/none.png", "digits"]) == 2
    assert run(["sample", *options, "--out", "run.npz"]) == 0
    assert np.load("run.npz")["images"].shape == (3, 1, 8, 8)


def test_strength_sets_the_first_noise_level_of_a_run_from_a_picture():
    Image.linear_gradient("L").save("start.png")
    options = ["sample", "--method", "optimal", "--n", "2", "--steps", "5", "--json", "run.json"]
    assert run([*options, "--start", "start.png", "--strength", "0.5"]) == 0
    figures = read_json("run.json")
    assert figures["start"] == {"path": "start.png", "strength": 0.5}
    assert figures["sigmas"][0] == noise_levels(1000, "ddim")[500]
    assert len(figures["sigmas"]) == 5


def test_a_run_from_a_training_image_with_little_noise_returns_it(
    make_store, smooth_images, capsys
):
    store = make_store(smooth_images(20, (3, 8, 8)))
    first = to_pixels(store.images([4]))[0]
    Image.fromarray(first).resize((64, 64), Image.Resampling.NEAREST).save("start.png")
    options = ["--store", str(store.path), "--method", "optimal", "--n", "1", "--out", "pictures"]
    assert run(["sample", *options, "--start", "start.png", "--strength", "0.05"]) == 0
    assert "strength 0.05; a higher --strength keeps less of the picture" in capsys.readouterr().out
    with Image.open("pictures/0000.png") as picture:
        assert np.array_equal(np.asarray(picture), first)
