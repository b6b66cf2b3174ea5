import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import golddiff
from golddiff.cli import run

SMALL = ("--channels", "32", "--multipliers", "1,1", "--blocks", "1", "--batch", "4")


@pytest.fixture(autouse=True)
def _temporary_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_train_export_and_info_work_together(tmp_path, capsys, fails, monkeypatch):
    train = ("oracle", "train", "--data", "digits", "--out", "run", "--conditional", *SMALL)
    monkeypatch.setattr(sys, "argv", ["golddiff", *train, "--steps", "26", "--threads", "1"])
    assert run(sys.argv[1:]) == 0
    assert "run: 26 steps in" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.json", "loss.csv", "loss.png", "model.safetensors", "state.pt"}
    assert run(("oracle", "export", "run", "small.safetensors")) == 0
    sizes = [(tmp_path / p).stat().st_size for p in ("run/model.safetensors", "small.safetensors")]
    assert sizes[1] < 0.6 * sizes[0]
    line = fails("oracle", "export", "run", "run/model.safetensors")
    assert "model.safetensors is run/model.safetensors, which is read" in line
    assert (tmp_path / "run/model.safetensors").stat().st_size == sizes[0]
    assert run(("oracle", "info", "small.safetensors", "--json", "info.json")) == 0
    info = json.loads((tmp_path / "info.json").read_text())
    assert info["shape"] == [1, 8, 8]
    assert info["num_classes"] == 10
    assert info["bytes"] == sizes[1]
    assert info["training"]["steps"] == 26
    command = (
        "golddiff oracle train --data digits --out run --conditional --channels 32 --multipliers "
        "1,1 --blocks 1 --batch 4 --steps 26 --threads 1"
    )
    assert info["training"]["command"] == command
    out = capsys.readouterr().out
    assert "images: 8 x 8 grey, 10 classes; noise levels 0.01 to 157.4" in out
    assert f"command: {command}" in out
    assert golddiff.load_oracle("small.safetensors").num_classes == 10
    assert run((*train, "--steps", "27")) == 0
    assert "run: 27 steps in" in capsys.readouterr().out


def test_training_leaves_out_pictures_that_cannot_be_read(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    for i in range(2):
        Image.new("L", (8, 8), 100 * i).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "photos" / "bad.png").write_text("not a picture")
    assert run(("oracle", "train", "--data", "photos", "--out", "run", *SMALL, "--steps", "1")) == 0
    assert "bad.png" in capsys.readouterr().out


def test_sigterm_saves_the_run_and_says_only_so(tmp_path):
    program = [sys.executable, "-c", "from golddiff.cli import main; main()"]
    arguments = ["oracle", "train", "--data", "digits", "--out", "run", *SMALL, "--threads", "1"]
    process = subprocess.Popen(
        [*program, *arguments, "--steps", "100000"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for line in process.stdout:
            if line.startswith("step"):
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped; run the same command again to continue" in out
    assert err == ""
    assert golddiff.load_oracle(tmp_path / "run").shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--out", "run", "--multipliers", "1,x"), "multipliers: got '1,x'"),
        (("train", "--out", "run", "--multipliers", "1,0"), "--multipliers: got 0"),
        (("train", "--out", "run", "--weights", "nowhere"), "--weights: nowhere does not exist"),
        (("train", "--out", "run", "--threads", "0"), "threads: got 0"),
        (("train", "--out", "run", "--channels", "0", "--steps", "1"), "channels: got 0"),
        (("train", "--out", "run", "--minutes", "0"), "minutes: got 0"),
        (("train", "--out", "run", "--data", "nothing-here/x.zip"), "nothing-here"),
        (
            ("train", "--out", "run", "--data", "nothing-here", "--groups", "7"),
            "--channels: got 64",
        ),
        (("train", "--out", "file"), "--out: file/state.pt cannot be written"),
        (("train",), "--out"),
        (("info", "none.pt"), "none.pt does not exist"),
        (("export", "none", "a.safetensors"), "none does not exist"),
        (("export", "none", "a.pt"), "out: got a.pt, expected a name ending in .safetensors"),
        (("export", "none", "a.safetensors", "--dtype", "int8"), "dtype: got 'int8'"),
    ],
)
def test_bad_input_gives_one_line(fails, arguments, message, monkeypatch):
    monkeypatch.setattr("golddiff_lab.training.train.start", None)
    Path("file").write_text("")
    assert message in fails("oracle", *arguments)


def test_help_lists_the_commands(capsys):
    assert run(("oracle", "--help")) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("train", "info", "export"))
