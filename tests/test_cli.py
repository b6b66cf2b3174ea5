import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import golddiff
from golddiff.cli import run
from golddiff.cli.options import ReadingOptions, TrainingImages
from golddiff.cli.sample_run import SampleJob, SampleRun
from golddiff.estimators.registry import METHODS
from golddiff.samplers import noise_levels
from golddiff.system.pictures import to_pixels

PROGRAM = [sys.executable, "-c", "from golddiff.cli import main; main()"]


@pytest.fixture(autouse=True)
def _digits_by_default(monkeypatch, tmp_path):
    # The default data set of these tests is small and has labels.
    monkeypatch.setattr("golddiff.cli.sample_run.DEFAULT", TrainingImages("digits"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos(tmp_path):
    """A folder of 12 small colour images in two classes."""
    generator = np.random.default_rng(0)
    for i in range(12):
        folder = tmp_path / "photos" / ("cat" if i % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (10, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "photos"


def read_json(path):
    return json.loads(Path(path).read_text())


def store_of(capsys, data):
    assert (
        run(["sample", "--data", data, "--method", "optimal", "--n", "1", "--json", "s.json"]) == 0
    )
    capsys.readouterr()
    return golddiff.ImageStore.open(read_json("s.json")["store"]["path"])


GOLDEN = ("--method", "golddiff-pca")

# Output files


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
    assert (
        "3 of 3 outputs copy a training image: with 1,797 images and novelty 0 that is expected; "
        "try --novelty 0.7"
    ) in capsys.readouterr().out


def test_copies_of_a_class_are_reported_with_the_number_of_its_images(photos, capsys):
    options = ["--size", "8", "--labels", "cat", "--n", "2", "--steps", "3", "--novelty", "0"]
    assert run(["sample", "--data", str(photos), *options]) == 0
    assert "with 6 images and novelty 0 that is expected" in capsys.readouterr().out


def test_indexing_large_pictures_gives_no_warning(monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow warns above this
    Path("photos").mkdir()
    Image.new("RGB", (16, 12)).save("photos/wide.png")
    assert run(["index", "photos", "photos.store"]) == 0
    assert not recwarn.list


def test_novelty_of_an_array_of_pictures_is_reported(capsys):
    copies = store_of(capsys, "digits").images(range(5))
    noise = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    pixels = ((torch.cat([copies, noise]) + 1) * 127.5).round().to(torch.uint8)
    np.save("pictures.npy", pixels.numpy())
    options = ["--json", "novelty.json", "--out", "novelty.html"]
    assert run(["novelty", "pictures.npy", "digits", *options]) == 0
    assert "5 of 10 pictures (50.0%) copy one of 1,797 training images" in capsys.readouterr().out
    figures = read_json("novelty.json")
    assert figures["copies"] == 5
    assert figures["nearest"][:5] == [0, 1, 2, 3, 4]
    assert figures["novelty"][:5] == [0] * 5
    page = Path("novelty.html").read_text()
    assert page.count("a copy</b>") == 5
    assert "$" not in page


def test_value_range_says_where_the_floats_of_a_file_lie(capsys, fails):
    images = (store_of(capsys, "digits").images() + 1) * 127.5
    np.save("f.npy", images.numpy())
    message = "--value-range: not given, and the floats of array file f.npy lie in 0 to 255, not "
    for arguments in (["sample", "--data", "f.npy"], ["novelty", "f.npy", "digits"]):
        line = fails(*arguments)
        assert message in line
        assert "say --value-range 0,255, or --value-range -1,1 to" in line
    assert "such as --value-range 0,255" in fails("index", "f.npy", "f", "--value-range", "3")
    assert run(["index", "f.npy", "f.store", "--value-range", "0,255"]) == 0
    assert run(["novelty", "f.npy", "digits", "--value-range", "0,255"]) == 0
    assert "1,797 of 1,797 pictures (100.0%) copy" in capsys.readouterr().out
    line = fails("sample", "--store", "f.store", "--value-range", "0,1")
    assert "--value-range: does not apply to a store" in line
    assert golddiff.ImageStore.open("f.store").images().min() == -1
    assert run(["sample", "--data", "f.npy", "--value-range", "-1,1", "--method", "wiener"]) == 0


def test_novelty_reads_the_pictures_of_a_store(capsys):
    assert run(["index", "digits", "few.store", "--limit", "20"]) == 0
    assert run(["novelty", "few.store", "digits"]) == 0
    assert "20 of 20 pictures (100.0%) copy" in capsys.readouterr().out


def test_a_grid_is_refused_by_novelty_and_its_single_pictures_are_read(capsys):
    options = ["--method", "optimal", "--n", "2", "--steps", "1", "--limit", "20"]
    for out in ("grid.png", "pictures"):
        assert run(["sample", "--data", "digits", *options, "--out", out]) == 0
    assert run(["novelty", "grid.png", "digits"]) == 2
    assert "grid.png is a grid of pictures, expected single ones" in capsys.readouterr().err
    for path in ("pictures", "pictures/0001.png"):
        assert run(["novelty", path, "digits"]) == 0


def test_outputs_that_are_alike_are_reported(make_store, smooth_images):
    denoiser = golddiff.Optimal(make_store(smooth_images(5)))
    samples = golddiff.sample(denoiser, 4, steps=2)
    mean = samples.images.mean(dim=0)
    alike = replace(samples, images=mean + 0.1 * (samples.images - mean))
    for shown, n, said in ((alike, 4, True), (alike, 1, False), (samples, 4, False)):
        lines = SampleRun(SampleJob(n=n), denoiser, None, None, shown, [0.0, 1.0, 2.0]).lines()
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


def test_index_describes_a_store_of_points(capsys):
    assert run(["index", "moons", "moons.store", "--limit", "20"]) == 0
    assert "moons.store: 20 points of 2 values, 2 classes" in capsys.readouterr().out


def test_explain_writes_a_page_without_links_or_scripts(capsys):
    assert run(["sample", *GOLDEN, "--n", "2", "--steps", "3", "--explain", "why.html"]) == 0
    page = Path("why.html").read_text()
    assert "://" not in page
    assert "<script" not in page
    assert "within" in capsys.readouterr().out


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
    assert "2 unreadable images were left out" in capsys.readouterr().out
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
    assert "expected; a higher --strength keeps less of the picture" in capsys.readouterr().out
    with Image.open("pictures/0000.png") as picture:
        assert np.array_equal(np.asarray(picture), first)


# Help


def test_help_and_version_import_no_slow_package():
    code = (
        "import sys; from golddiff.cli import run; run(['sample', '--help']); run(['--version']);"
        "print([m for m in ('torch', 'diffusers', 'numba', 'matplotlib', 'sklearn', 'datasets')"
        " if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, version, modules = out.stdout.splitlines()
    assert version == f"golddiff {golddiff.__version__}"
    assert modules == "[]"


def test_help_lists_common_options_before_advanced_ones(capsys):
    assert run(["sample", "--help"]) == 0
    first, advanced = capsys.readouterr().out.split("─ Advanced ")
    options = first.split("─ Options ")[1]
    assert 10 <= options.count("│ --") <= 16
    for option in ("--data", "--method", "--seed", "--out", "--start", "--explain"):
        assert option in options
    for option in ("--k-min", "--mask-threshold", "--sampler", "--batch-size", "--cluster"):
        assert option in advanced
        assert option not in options


def test_help_wraps_at_the_width_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "130")
    assert run(["novelty", "--help"]) == 0
    assert (
        "over the usual distance between nearest training images: 0 is" in capsys.readouterr().out
    )


def test_h_is_short_for_help(capsys):
    assert run(["-h"]) == run(["sample", "-h"]) == 0
    assert "Number of images" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["index", "info", "sample", "demo"])
def test_help_of_each_command_has_an_example(command, capsys):
    assert run([command, "--help"]) == 0
    assert f"golddiff {command}" in capsys.readouterr().out.split("For example:")[1]
