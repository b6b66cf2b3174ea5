"""``golddiff cache`` lists what is kept between runs, and deletes that alone."""

import json

import pytest
import torch

import golddiff
from golddiff.cli import run
from golddiff.store.cache import entries


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_nothing_is_kept_before_anything_is_read(capsys):
    assert entries() == []
    assert run(["cache"]) == 0
    assert "in all 0 bytes" in capsys.readouterr().out


def test_stores_are_listed_and_deleted_and_built_again(folder, tmp_path, capsys):
    images = torch.zeros(5, 1, 8, 8)
    store = golddiff.load(images)
    (entry,) = entries()
    size = sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
    assert (entry.path, entry.bytes) == (store.path, size)
    assert run(["cache", "--json", str(tmp_path / "kept.json")]) == 0
    assert store.path.name in capsys.readouterr().out
    assert json.loads((tmp_path / "kept.json").read_text())["entries"][0]["bytes"] == size
    assert run(["cache", "--clear", store.path.name]) == 0
    assert not store.path.exists()
    assert golddiff.load(images).n == 5


@pytest.mark.parametrize("damage", [{"version": 0}, {"n": -1}])
def test_a_store_that_does_not_open_is_listed_and_deleted(damage, capsys):
    """To list the cache, and so to clear it, was refused for one such store."""
    store = golddiff.load(torch.zeros(5, 1, 8, 8))
    manifest = store.path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | damage))
    (entry,) = entries()
    assert entry.what == "store that is damaged, or of another version"
    assert run(["cache", "--clear"]) == 0
    assert not store.path.exists()


def test_what_golddiff_did_not_make_is_left_alone(folder, tmp_path):
    golddiff.load(torch.zeros(5, 1, 8, 8))
    (folder / "photographs").mkdir()
    (folder / "photographs" / "mine.png").write_bytes(b"mine")
    (folder / "cluster-photos").mkdir()
    (folder / "cluster-0123456789abcdef").mkdir()  # what a store in shards keeps
    (folder / "elsewhere").symlink_to(tmp_path)
    assert run(["cache", "--clear"]) == 0
    assert (folder / "photographs" / "mine.png").read_bytes() == b"mine"
    assert (folder / "elsewhere").exists()
    assert [path.name for path in folder.glob("cluster-*")] == ["cluster-photos"]
    assert entries() == []


def test_a_name_that_is_not_there(capsys):
    assert run(["cache", "--clear", "nothing"]) == 2
    assert "names: 'nothing' is not in" in capsys.readouterr().err
