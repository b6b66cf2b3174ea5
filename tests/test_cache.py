"""``golddiff cache`` lists the files kept between runs, and deletes nothing else."""

import json

import pytest
import torch
from PIL import Image

import golddiff
from golddiff.cli import run
from golddiff.cli.studio import _openers, _StudioOptions
from golddiff.store.cache import entries
from golddiff.system.errors import StoreError
from golddiff.system.files import locked


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_new_cache_is_empty(capsys):
    assert entries() == []
    assert run(["cache"]) == 0
    assert "in all 0 bytes" in capsys.readouterr().out


def test_cached_stores_are_listed_deleted_and_rebuilt(folder, tmp_path, capsys):
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
    golddiff.load(torch.zeros(500, 1, 8, 8))
    assert [golddiff.ImageStore.open(entry.path).n for entry in entries()] == [500, 5]


def test_no_name_is_no_source(tmp_path, monkeypatch):
    """Regression: after ``load(".")`` the empty name meant the current folder."""
    monkeypatch.chdir(tmp_path)
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    golddiff.load(".")
    with pytest.raises(golddiff.GoldDiffError, match="source is ''"):
        golddiff.load("")


def test_files_that_vanish_while_the_cache_is_listed_are_left_out(monkeypatch):
    """Regression: another process that saved a run made ``golddiff cache`` fail."""
    store = golddiff.load(torch.zeros(5, 1, 8, 8))
    (before,) = entries()
    walked = [(str(store.path), [], ["gone.tmp", *(f.name for f in store.path.iterdir())])]
    monkeypatch.setattr("os.walk", lambda path: walked)
    assert entries() == [before]


def test_a_store_is_opened_itself_and_copied_only_for_an_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    golddiff.ImageStore.build(torch.zeros(5, 1, 8, 8), "x.store")
    assert golddiff.load("x.store").path.resolve() == tmp_path / "x.store"
    assert run(["sample", "--data", "x.store", "--method", "optimal", "--n", "1"]) == 0
    assert entries() == []
    assert golddiff.load("x.store", limit=3).n == 3
    golddiff.load("x.store").factor()  # saved with the store, which stays the same
    assert golddiff.load("x.store", limit=3).n == 3
    assert len(entries()) == 1


@pytest.fixture
def pictures(tmp_path):
    """A folder of five pictures."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(5):
        Image.new("L", (8, 8), 40 * i).save(folder / f"{i}.png")
    return folder


def test_commands_python_and_the_studio_share_the_store_of_a_folder(pictures, tmp_path):
    made = ["--method", "optimal", "--n", "1", "--out", str(tmp_path / "grid.png")]
    assert run(["sample", "--data", str(pictures), *made]) == 0
    (entry,) = entries()
    (opened,) = _openers(_StudioOptions(data=[str(pictures)])).values()
    assert golddiff.load(str(pictures)).path == opened().path == entry.path
    assert len(entries()) == 1


def test_a_store_that_left_images_out_is_opened_only_where_they_may_be(pictures):
    (pictures / "torn.png").write_bytes(b"no picture")
    kept = golddiff.load(str(pictures), skip_bad=True)
    with pytest.raises(golddiff.SourceError, match=r"torn\.png"):
        golddiff.load(str(pictures))
    assert golddiff.load(str(pictures), skip_bad=True).path == kept.path
    assert kept.n == 5


@pytest.mark.parametrize("damage", [{"version": 0}, {"n": -1}])
def test_a_damaged_store_is_listed_and_deleted(damage, capsys):
    store = golddiff.load(torch.zeros(5, 1, 8, 8))
    manifest = store.path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | damage))
    (entry,) = entries()
    assert entry.what == "store that is damaged, or of another version"
    assert run(["cache", "--clear"]) == 0
    assert not store.path.exists()


def test_what_a_killed_build_left_is_listed_and_deleted_but_not_a_build_that_runs(folder):
    for name in ("killed", "running"):
        (folder / f".{name}.building-x_1").mkdir(parents=True)
        (folder / f".{name}.building-x_1" / "pixels.bin").write_bytes(bytes(7))
    with locked(folder / ".running.lock", "held"):
        (entry,) = entries()
        assert (entry.path.name, entry.bytes) == (".killed.building-x_1", 7)
        assert run(["cache", "--clear"]) == 0
    assert [path.name for path in folder.iterdir()] == [".running.building-x_1"]


def test_a_store_that_is_half_deleted_is_built_again(folder, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    images = torch.zeros(5, 1, 8, 8)
    golddiff.load(images)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", interrupted)
        assert run(["cache", "--clear"]) == 130
    assert [entry.what for entry in entries()] == ["unfinished store of a run that was killed"]
    assert golddiff.load(images).n == 5
    assert run(["cache", "--clear"]) == 0
    assert entries() == []


def test_a_cache_that_is_no_folder_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for chosen, message in (
        ("~no-such-user/cache", "is in no known home; set GOLDDIFF_CACHE"),
        (str(tmp_path / "file"), "GOLDDIFF_CACHE is the file"),
    ):
        monkeypatch.setenv("GOLDDIFF_CACHE", chosen)
        with pytest.raises(StoreError, match=message):
            golddiff.load(torch.zeros(5, 1, 8, 8))


def test_clear_leaves_files_that_golddiff_did_not_make(folder, tmp_path):
    golddiff.load(torch.zeros(5, 1, 8, 8))
    (folder / "photographs").mkdir()
    (folder / "photographs" / "mine.png").write_bytes(b"mine")
    (folder / "cluster-photos").mkdir()
    (folder / "cluster-0123456789abcdef").mkdir()  # the cache of a sharded store
    store = golddiff.ImageStore.build(torch.zeros(5, 1, 8, 8), tmp_path / "own")
    (folder / "elsewhere").symlink_to(store.path)
    assert run(["cache", "--clear"]) == 0
    assert (folder / "photographs" / "mine.png").read_bytes() == b"mine"
    assert (folder / "elsewhere").exists()
    assert [path.name for path in folder.glob("cluster-*")] == ["cluster-photos"]
    assert entries() == []


def test_clearing_an_unknown_name_is_refused(fails):
    assert "names: 'nothing' is not in" in fails("cache", "--clear", "nothing")
