"""Invalid command lines are refused in one line, with status 2, before any work."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from PIL import Image

from golddiff.cli import run
from golddiff.estimators.registry import METHODS

PROGRAM = [sys.executable, "-c", "from golddiff.cli import main; main()"]
COLOURS = ["--data", "sizes", "--colours"]
GOLDEN = ("--method", "golddiff-pca")


def test_the_error_for_an_unknown_method_lists_all_methods(fails):
    line = fails("sample", "--method", "best")
    assert all(name in line for name in METHODS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "/no/such/folder"], "/no/such/folder does not exist"),
        (["--data", "digits", "--store", "x"], "not both"),
        (["--store", "x", "--size", "8"], "--size: does not apply to a store"),
        (["--store", "x"], "x does not exist"),
        (["--store", "n=3/run,seed=1"], "--store: n=3/run,seed=1 does not exist"),
        (["--store", "/a,n=3,seed=1"], "--store: /a,n=3,seed=1 does not exist"),
        (["--k-min", "50"], "does not apply to method recommended, only to golddiff-optimal"),
        (["--k-min", "many"], "a count (100) or a fraction"),
        ([*GOLDEN, "--data", "/none", "--k-min", "0"], "--k-min: got 0 images, expected 1 or more"),
        ([*GOLDEN, "--m-min", "5"], "variant 'text'"),
        (["--labels", "10"], "a class with no images"),
        (["--labels", "1,10", "--n", "1"], "a class with no images"),
        (["--labels", "one"], "expected a class index"),
        (["--labels", "--3"], "expected a class index"),
        (["--method", "kamb", "--patch-size", "+-5"], "expected one of the presets"),
        (["--data", "moons", "--labels", ""], "--labels: got '', which is empty"),
        (["--data", "patches", "--limit", "20", "--labels", "1"], "the store has no labels"),
        (["--data", "patches", "--limit", "20", "--labels", "sky"], "the store has no labels"),
        (["--out", ""], "--out: got '', which is empty"),
        (["--out="], "--out: got '', which is empty"),
        (["--n", "0"], "n: got 0, expected an integer of 1 or more"),
        (["--n", "99999999999"], "n = 99,999,999,999 images would take about"),
        (["--seed", "-1"], "seed: got -1"),
        (["--threads", "0"], "threads: got 0"),
        (["--threads", "2000"], "--threads: got 2000, expected at most 1024"),
        ([*GOLDEN, "--mask-threshold", "2"], "--mask-threshold: got 2.0, expected 0 to 1"),
        (["--patch-size", "3"], "only to kamb, golddiff-kamb"),
        (["--method", "kamb", "--patch-size", "4"], "--patch-size: got size 4, expected an odd"),
        (["--limit", "0"], "--limit: got 0, expected an integer of 1 or more"),
        (["--start", "0.png", "--out", "0.png"], "--out: 0.png would overwrite an input picture"),
        (["--start", "0.png", "--out", "."], "--out: grid.png would overwrite an input picture"),
        (["--method", "kamb", "--data", "moons"], "(C, H, W)"),
        (["--out", "grid.gif"], "ending in .png"),
        (["--out", "a.png", "--trajectory", "./a.png"], "also the file of --out"),
        (["--method", "wiener", "--explain", "why.html"], "wiener has no sources"),
        (["--explain", "why.html", "--method", "network-like"], "such as --method recommended"),
        ([*GOLDEN, "--data", "moons", "--explain", "why.html"], "a training set of points"),
        (["--explain", "why.png"], "ending in .html"),
        (["--nonsense"], "--nonsense"),
        (["--method", "golddif-pca"], "did you mean golddiff-pca?"),
        (["--strength", "0.5"], "--strength: applies to --start only"),
        (["--start", "no.png"], "--start: no.png is not a file"),
        (["--start", "no.png", "--strength", "0"], "--strength: got 0.0, expected above 0 to 1"),
        (["--data", "moons", "--out", "pictures"], "--out: got the folder pictures"),
        (["--batch-size", "0"], "--batch-size: got 0"),
        (["--allow-missing"], "--allow-missing: applies to --cluster only"),
        (["--cluster", "local"], "--cluster needs a --store"),
        (["--cluster", "nonsense", "--store", "x"], "--cluster: got 'nonsense'"),
        (["--cluster", "", "--store", "x"], "--cluster: got ''"),
    ],
)
def test_invalid_options_of_sample_are_named_in_one_line(fails, arguments, words):
    assert words in fails("sample", *arguments)
    assert not os.path.exists("grid.png")


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "wiener", "--explain", "why.html"],
        ["--start", "no.png"],
        ["--method", "pca", "--mask-threshold", "2"],
        ["--method", "adaptive-kamb", "--patch-size", "4"],
        ["--method", "pspc-square", "--patch-size", "0"],
        ["--method", "scfdm", "--smoothing", "-1"],
        [*GOLDEN, "--k-min", "9", "--k-max", "8"],
    ],
)
def test_options_that_no_training_set_allows_are_refused_before_reading_it(options, capsys):
    assert run(["sample", "--data", "digits", *options]) == 2
    assert "store of digits" not in capsys.readouterr().out


def test_a_missing_source_is_refused_before_building_is_announced(capsys):
    assert run(["sample", "--data", "/no/such/folder"]) == 2
    assert "building" not in capsys.readouterr().out


def test_unwritable_output_paths_are_refused_before_sampling(fails, tmp_path, monkeypatch):
    def sample(*_, **__):
        raise AssertionError("sampled before checking --out")

    monkeypatch.setattr("golddiff.sampling.sample", sample)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for option in ("--out", "--trajectory", "--json"):
        assert "cannot be written" in fails("sample", option, "file/x.png")
        assert "is a folder" in fails("sample", option, "folder.png")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["index", "/no/such", "out"], "does not exist"),
        (["index", "digits"], "Missing argument"),
        (["index", "digits", "."], "out: . exists already"),
        (["index", "digits", "file/out"], "golddiff: the store: cannot write"),
        (["index", "digits", "out", "--limit", "0"], "limit"),
        (["index", "digits", "out", "--cluster", "here"], "--cluster: got 'here', expected host"),
        (["index", "digits", "out", "--shards", "2"], "shards: applies to --cluster only"),
        (["index", "digits", "out", "--json", "file/x"], "cannot be written"),
        (["info", "/no/such"], "does not exist"),
        (["novelty", "sizes", "moons", "--size", "9"], "--size and channels= do not apply"),
        (["info", "."], "manifest.json, so it is not a complete store; golddiff index makes one"),
        (["index", "odd", "out"], "(--skip-bad leaves unreadable images out)"),
        (["index", "sizes", "out"], "say --size to scale"),
        (
            ["evaluate", "digits.store", "--oracle", "x", "--oracle-sampler", "y"],
            "--oracle-sampler:",
        ),
        (
            ["restore", "odd/0.png", *COLOURS, "--out", "odd/0.png"],
            "--out: odd/0.png would overwrite",
        ),
        (
            ["restore", "odd/0.png", *COLOURS, "--json", "sizes/x"],
            "--json: sizes/x is in sizes, which is read; give another place",
        ),
        (["restore", "odd/0.png", *COLOURS, "--softness", "inf"], "--softness: got inf"),
        (["novelty", "moons", "moons", "--out", "x.html"], "--out: got a training set of points"),
        (["novelty", "odd/0.png", "sizes", "--json", "odd/0.png"], "is odd/0.png, which is read"),
        (["novelty", "odd/0.png", "sizes", "--out", "sizes/x.html"], "is in sizes, which is read"),
        (["index", "sizes", "out", "--json", "sizes/0.png"], "is in sizes, which is read"),
        (["index", "sizes", "site", "--overwrite"], "site is not a golddiff store"),
        (["index", "sizes", "digits.store", "--overwrite"], "holds mine.png, which is no file of"),
        (["info", "digits.store", "--json", "digits.store/manifest.json"], "is in digits.store"),
        (["demo", "--data", "sizes", "--out", "sizes"], "is in sizes, which is read"),
        (["sample", "--data", "odd/0.png", "--json", "odd/0.png"], "is odd/0.png, which is read"),
        (["sample", "--size", "64x64"], "'64x64'"),
        (["demo", "--data", "moons"], "expected images"),
        (["demo", "--size", "8"], "applies to --data only"),
        (["demo", "--novelty", "3"], "--novelty: got 3.0"),
        (["demo", "--out", "file"], "cannot be written"),
        (["nonsense"], "nonsense"),
    ],
)
def test_invalid_input_of_other_commands_is_named_in_one_line(fails, tmp_path, arguments, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "digits.store").mkdir()
    (tmp_path / "digits.store" / "manifest.json").write_text('{"format": "golddiff-store"}')
    (tmp_path / "digits.store" / "mine.png").write_text("")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text("{}")
    for name, sides in (("odd", (5, 5)), ("sizes", (5, 6))):
        (tmp_path / name).mkdir()
        for i, side in enumerate(sides):
            Image.new("L", (side, side)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "odd" / "2.png").write_text("no picture")
    assert words in fails(*arguments)
    assert not os.path.exists("out")


def test_verify_detects_a_changed_file(fails):
    assert run(["index", "digits", "digits.store"]) == 0
    with open("digits.store/pixels.bin", "r+b") as file:
        file.write(b"\x07")
    assert run(["info", "digits.store"]) == 0
    assert "pixels.bin does not match its checksum" in fails("info", "digits.store", "--verify")


def test_a_usage_error_points_to_the_help_of_its_command(fails):
    assert "(see golddiff sample --help)" in fails("sample", "--nonsense")
    assert "(see golddiff oracle train --help)" in fails("oracle", "train", "--nonsense")
    assert "(see golddiff --help)" in fails("nonsense")


def test_a_group_without_a_command_prints_its_help_and_no_error(capsys):
    assert run(["oracle"]) == 2
    out, err = capsys.readouterr()
    assert "Usage: golddiff oracle" in out + err
    assert "golddiff: " not in err


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["sample", "digits"], "digits"),
        (["sample", "my photos/"], "'my photos/'"),
        (["sample", "a.png", "b.png"], "SOURCE"),
        (["restore", "old.png", "photos/", "--size", "8"], "photos/"),
        (["demo", "photos/"], "photos/"),
        (["studio", "digits"], "digits"),
        (["oracle", "train", "--out", "run", "digits"], "digits"),
        (["reproduce", "mnist", "mnist.store"], "NAME=PATH"),
    ],
)
def test_an_extra_argument_is_suggested_as_data(fails, arguments, value):
    line = fails(*arguments)
    assert f"); expected --data {value} (see golddiff {arguments[0]} " in line
    assert line.rstrip().endswith("--help)")


@pytest.mark.parametrize(
    "arguments",
    [["sample", "--data=a.png", "b.png"], ["sample", "--store", "x", "y"], ["info", "x", "y"]],
)
def test_an_extra_argument_is_not_suggested_as_second_data(fails, arguments):
    line = fails(*arguments)
    assert "unexpected extra" in line
    assert "expected --data" not in line


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 1 GiB"),
    ],
)
def test_running_out_of_memory_is_reported_in_one_line(error, monkeypatch, capsys):
    def refuse(*_):
        raise error

    monkeypatch.setattr("golddiff.store.images.ImageStore.open", refuse)
    assert run(["info", "digits.store"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err == "golddiff: memory: not enough for this run; use smaller or fewer images\n"


def test_an_interrupt_prints_one_line_and_leaves_no_files():
    options = ["--n", "4096", "--steps", "1000", "--method", "kamb", "--json", "r.json"]
    process = subprocess.Popen(
        [*PROGRAM, "sample", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # jobs may ignore SIGINT
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()  # printed after the imports, just before sampling
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert len(err.splitlines()) == 1
    assert "interrupted" in err
    assert os.listdir(".") == []


def test_an_end_of_file_error_is_not_reported_as_an_interrupt(monkeypatch):
    def refuse(*_):
        raise EOFError("Ran out of input")

    monkeypatch.setattr("golddiff.store.cache.entries", refuse)
    with pytest.raises(EOFError, match="Ran out"):
        run(["cache"])
