"""File names of a store's images: stored if the source has them, and shown with outputs."""

import pickle
import shutil
import zipfile

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

import golddiff
from golddiff.figures.sources import image_name
from golddiff.sources import open_source
from golddiff.system.errors import StoreError
from tests.sources.make import encoded


def picture(value: int) -> bytes:
    return encoded(np.full((8, 8), 20 * value, np.uint8))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "photos"
    path.mkdir()
    for i, name in enumerate(["b.png", "a.png", "naïve <b>.png"]):
        (path / name).write_bytes(picture(i))
    return path


def test_images_of_a_folder_are_named_without_the_skipped_ones(folder, tmp_path):
    (folder / "ab.png").write_bytes(b"no picture")
    store = golddiff.ImageStore.build(folder, tmp_path / "s", skip_bad=True)
    assert store.names == ["a.png", "b.png", "naïve <b>.png"]
    assert float(store.images(0).max()) == pytest.approx(20 / 127.5 - 1)  # a.png was written second
    assert [image_name(store, i) for i in (0, 2)] == ["a.png", "naïve &lt;b&gt;.png"]
    store.verify()


def test_an_image_name_holds_its_class_once(tmp_path):
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        (tmp_path / "pets" / kind / "1.png").write_bytes(picture(1))
    store = golddiff.ImageStore.build(tmp_path / "pets", tmp_path / "s")
    assert image_name(store, 1) == "dog/1.png"


def test_zips_path_lists_parts_and_copied_stores_have_names(folder, tmp_path):
    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for name in ("x/2.png", "x/1.png"):
            writer.writestr(name, picture(len(name)))
    first = golddiff.ImageStore.build(archive, tmp_path / "s")
    assert first.names == ["x/1.png", "x/2.png"]
    assert golddiff.ImageStore.build(first.path, tmp_path / "t", limit=1).names == ["x/1.png"]
    paths = sorted(folder.iterdir())
    assert golddiff.ImageStore.build(paths, tmp_path / "u").names == [str(p) for p in paths]
    whole = open_source(folder)
    assert [len(batch.pixels) for batch in whole.batches(9)] == [len(paths)]
    part = whole.part(1, 3)
    list(part.batches(2))
    assert part.names == ["b.png", "naïve <b>.png"]
    assert len(whole.names) == len(paths)  # those of a part are its own


def test_table_rows_are_named_by_their_paths_if_some_differ(tmp_path):
    def names(*paths):
        rows = [{"image": {"bytes": picture(i), "path": path}} for i, path in enumerate(paths)]
        source = tmp_path / "a.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), source)
        store = golddiff.ImageStore.build(source, tmp_path / "s", overwrite=True)
        return store.names

    assert names("b.png", "a.png", "a.png") == ["b.png", "a.png", "a.png"]
    for without in (None, "", 5000 * "x"):  # a path
        assert names("a.png", without) == ["a.png", "row 1 of a.parquet"]
        assert names(without, without) is None
    assert names("x.png", "x.png") is None


def test_the_same_pictures_under_other_names_are_another_store(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    paths = sorted(str(path) for path in folder.iterdir())
    renamed = [shutil.copy(path, tmp_path / f"renamed{i}.png") for i, path in enumerate(paths)]
    pictures = [Image.open(path) for path in paths]
    for source, names in ((paths, paths), (renamed, [str(p) for p in renamed]), (pictures, None)):
        assert golddiff.load(source).names == names
    assert golddiff.load(paths).path == golddiff.load(paths).path


def test_images_of_arrays_have_no_names(make_store, smooth_images):
    store = make_store(smooth_images(5, (1, 4, 4)))
    assert store.names is None
    assert image_name(store, 3) == "#3"
    assert golddiff.novelty(store.images([0]), store).files is None


def test_novelty_gives_the_nearest_files(folder, tmp_path):
    store = golddiff.ImageStore.build(folder, tmp_path / "s")
    assert golddiff.novelty(store.images([2, 0]), store).files == ["naïve <b>.png", "a.png"]


def test_names_of_other_images_are_no_names(folder, tmp_path):
    """Regression: a store built again while open gave the new names for the old images."""
    store = golddiff.ImageStore.build(folder, tmp_path / "s")
    Image.new("L", (8, 8)).save(tmp_path / "other.png")
    golddiff.ImageStore.build([tmp_path / "other.png"] * store.n, tmp_path / "s", overwrite=True)
    assert store.names is None
    assert golddiff.novelty(store.images([2]), store).files is None


def test_too_few_names_are_refused(folder, tmp_path):
    store = golddiff.ImageStore.build(folder, tmp_path / "s")
    (store.path / "names.txt").write_text("a.png\nb.png\n")
    with pytest.raises(StoreError, match=r"names.txt has 12 bytes"):
        golddiff.ImageStore.open(store.path)


def test_names_that_the_manifest_does_not_record_are_not_read(tmp_path, make_store):
    store = make_store(np.zeros((3, 1, 4, 4), np.uint8))
    (store.path / "names.txt").symlink_to("/dev/zero")
    assert golddiff.ImageStore.open(store.path).names is None


def test_a_store_stays_the_same_in_another_folder(folder, tmp_path, monkeypatch):
    """Regression: a relative path meant another store once the current folder had changed."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    golddiff.ImageStore.build(folder, "s")
    store = golddiff.ImageStore.open("s")
    monkeypatch.chdir(tmp_path)
    assert store.names is not None
    store.verify()
    assert pickle.loads(pickle.dumps(store)).names == store.names
