"""Helpers of the tests of commands: digits as the default data, and a folder of pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import golddiff
from golddiff.cli import run
from golddiff.cli.options import TrainingImages


@pytest.fixture(autouse=True)
def _digits_by_default(monkeypatch, tmp_path):
    # The default data set of these tests is small and has labels.
    monkeypatch.setattr("golddiff.cli.sample_run.DEFAULT", TrainingImages("digits"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


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
