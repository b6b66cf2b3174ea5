"""Shards built on a cluster hold the images of a single store, in its order."""

import functools
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import golddiff
from golddiff.cli import run
from golddiff.cluster import ClusterError, ShardedStore, build_shards
from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.figures.sources import image_name
from golddiff.sources import open_source
from golddiff.sources.source_options import SourceOptions
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError, BusyError, SourceError, StoreError
from golddiff.system.files import locked
from golddiff.system.folders import lock_of
from tests.sources.make import encoded

from .conftest import part as build_part


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder of images in classes, a folder of parquet files, and a single store of each."""
    root = tmp_path_factory.mktemp("sources")
    generator = np.random.default_rng(0)
    rows = []
    for i in range(60):
        name = root / "folder" / f"class{i % 3}" / f"{i:03d}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        image = encoded(generator.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        name.write_bytes(image)
        rows.append({"image": {"bytes": image, "path": None}, "label": f"c{i % 4}"})
    (root / "parquet").mkdir()
    for number, part in enumerate((rows[:25], rows[25:])):
        table = pa.Table.from_pylist(part)
        pq.write_table(table, root / "parquet" / f"{number}.parquet", row_group_size=7)
    return {
        kind: (str(root / kind), ImageStore.build(str(root / kind), root / f"{kind}.store"))
        for kind in ("folder", "parquet")
    }


@pytest.fixture(scope="module")
def in_two_shards(cluster, sources, tmp_path_factory):
    """in_two_shards(kind): a folder of two shards, the result of the build, and its progress."""

    @functools.cache
    def build(kind):
        out, calls = tmp_path_factory.mktemp(kind) / "out", []
        built = build_shards(sources[kind][0], out, 2, progress=lambda *done: calls.append(done))
        return out, built, calls

    return build


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_part_of_a_source_yields_images_start_to_stop(sources, kind):
    path, whole = sources[kind]
    source = open_source(path)
    for start, stop in ((0, 60), (0, 1), (13, 40), (24, 26), (59, 60)):
        batches = list(source.part(start, stop).batches(16))
        pixels = np.concatenate([batch.pixels for batch in batches])
        labels = np.concatenate([batch.labels for batch in batches])
        expected = np.array(whole.flat[start:stop]).reshape(pixels.shape)
        np.testing.assert_array_equal(pixels, expected)
        np.testing.assert_array_equal(labels, whole.labels[start:stop].numpy())


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_shards_hold_the_images_of_the_single_store(in_two_shards, sources, kind):
    whole, (out, built, calls) = sources[kind][1], in_two_shards(kind)
    assert (built.shards, built.found, built.n) == (2, 0, 60)
    assert calls == [(0, 2), (1, 2), (2, 2)]
    parts = [ImageStore.open(shard) for shard in Listing.of(out).paths]
    assert torch.equal(torch.cat([part.images() for part in parts]), whole.images())
    assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)
    for part in parts:
        part.verify()
        assert part.class_names == whole.class_names


def test_given_labels_replace_those_of_the_source(cluster, sources, tmp_path):
    path, labels = sources["folder"][0], np.arange(60) // 7
    build_shards(path, tmp_path / "out", 2, SourceOptions(labels=labels))
    parts = [ImageStore.open(shard) for shard in Listing.of(tmp_path / "out").paths]
    assert np.concatenate([part.labels.numpy() for part in parts]).tolist() == labels.tolist()
    with pytest.raises(ArgumentError, match="of other options"):
        build_shards(path, tmp_path / "out", 2, SourceOptions(labels=labels[::-1]))


def test_names_are_none_if_a_shard_has_no_names(cluster, sources, tmp_path):
    files = sorted(Path(sources["folder"][0]).rglob("*.png"))[:9]
    named = ImageStore.build(files[:4], tmp_path / "named")
    rest = ImageStore.build(files[4:], tmp_path / "rest")
    unnamed = build_part(rest, slice(None), tmp_path / "bare")
    with ShardedStore.open([named.path, unnamed], patience=600.0) as store:
        assert store.names_of([3]) == named.names[3:]
        assert store.names_of([3, 4]) is None


def test_a_node_with_another_version_builds_no_shards(cluster, sources, tmp_path, monkeypatch):
    monkeypatch.setattr("golddiff.cluster.sharding.__version__", "9.9")
    with pytest.raises(ClusterError, match=r"shard-0000\d: golddiff 0\..* the driver's is 9.9"):
        build_shards(sources["folder"][0], tmp_path / "out", 2)
    assert _shards(tmp_path / "out") == []


def test_a_second_build_builds_only_the_missing_shards(cluster, sources, tmp_path):
    path, _ = sources["folder"]
    out = tmp_path / "out"
    build_shards(path, out, 4)
    listing = (out / "shards.json").read_text()
    before = {name: (out / name / "manifest.json").stat().st_mtime_ns for name in _shards(out)}
    # The state after a node dies: one shard half written, no shards.json.
    shutil.rmtree(out / "shard-00002")
    (out / ".shard-00002.building-abc").mkdir()
    (out / "shards.json").unlink()
    built = build_shards(path, out, 4, SourceOptions(skip_bad=True))  # they are the same
    assert (built.found, built.shards) == (3, 4)
    assert (out / "shards.json").read_text() == listing
    after = {name: (out / name / "manifest.json").stat().st_mtime_ns for name in _shards(out)}
    assert [name for name in after if after[name] != before[name]] == ["shard-00002"]
    assert not list(out.glob(".shard*"))
    with locked(lock_of(out), ""), pytest.raises(BusyError, match="another process is building"):
        build_shards(path, out, 4)
    assert build_shards(path, out, 4, overwrite=True).found == 0


def test_shards_of_a_source_that_has_changed_are_not_taken_for_it(cluster, sources, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(sources["folder"][0], images)
    build_shards(str(images), tmp_path / "out", 2)
    first = next(images.glob("*/*.png"))
    first.rename(first.with_name("zzz.png"))
    with pytest.raises(ArgumentError, match="shards of another source, of one that has changed"):
        build_shards(str(images), tmp_path / "out", 2)


def test_folders_of_others_are_not_taken_for_shards(cluster, sources, tmp_path):
    path, _ = sources["folder"]
    (tmp_path / "project" / "masks").mkdir(parents=True)
    (tmp_path / "project" / "build.json").write_text('{"scripts": {}}')
    for overwrite in (False, True):
        with pytest.raises(ArgumentError, match="exists already and holds no shards"):
            build_shards(path, tmp_path / "project", 2, overwrite=overwrite)
    build_shards(path, tmp_path / "out", 2)
    (tmp_path / "out" / "shard-00001" / "notes.txt").touch()
    (tmp_path / "out" / "shard-list.txt").touch()
    with pytest.raises(ArgumentError, match=r"holds notes\.txt, which is no file of a store"):
        build_shards(path, tmp_path / "out", 2, overwrite=True)
    (tmp_path / "out" / "shard-00001" / "notes.txt").unlink()
    assert build_shards(path, tmp_path / "out", 2, overwrite=True).shards == 2
    assert (tmp_path / "out" / "shard-list.txt").exists()
    with pytest.raises(StoreError, match="is in shards, which golddiff sample --cluster"):
        golddiff.load(tmp_path / "out")


def _shards(out):
    return sorted(path.name for path in out.glob("shard-*"))


def test_bad_images_and_bad_arguments_are_refused(cluster, sources, tmp_path):
    path, _ = sources["folder"]
    shutil.copytree(path, tmp_path / "images")
    images = str(tmp_path / "images")
    bad = tmp_path / "images" / "class1" / "022.png"
    bad.write_bytes(bad.read_bytes()[:70])  # the header stays readable
    with pytest.raises(SourceError, match=r"shard shard-00001: cannot read image class1/022\.png"):
        build_shards(images, tmp_path / "out", 3)
    built = build_shards(images, tmp_path / "left", 3, SourceOptions(skip_bad=True))
    assert (built.n, [name for name, _ in built.skipped]) == (59, ["class1/022.png"])
    with pytest.raises(ArgumentError, match="holds shards of another source"):
        build_shards(path, tmp_path / "left", 3)
    with pytest.raises(ArgumentError, match="holds no shards"):
        build_shards(path, tmp_path / "images", 3)
    assert build_shards(path, tmp_path / "two", np.int64(2)).shards == 2
    assert build_shards(path, tmp_path / "default").shards == 1
    for shards in (0, 61, 2.0, True):
        with pytest.raises(ArgumentError, match=r"shards: got .* from 1 to the 60 images"):
            build_shards(path, tmp_path / "other", shards)
    for address in ("s3://bucket/out", Path("s3://bucket/out")):
        with pytest.raises(ArgumentError, match=r"path: got the address s3:/.* expected a folder"):
            build_shards(path, address, 2)
    with pytest.raises(ArgumentError, match="cannot be read in parts"):
        build_shards("digits", tmp_path / "other", 2)


def test_the_command_line_indexes_and_samples(cluster, sources, tmp_path, capsys):
    path, whole = sources["folder"]
    out, figures = tmp_path / "out", tmp_path / "run.json"
    assert run(["index", path, str(out), "--cluster", "local", "--shards", "2"]) == 0
    assert "60 images, 6 x 6 RGB, in 2 shards, " in capsys.readouterr().out
    sample = [
        "sample", "--cluster", "local", "--store", str(out), "--method", "pca", "--n", "2",
        "--out", str(tmp_path / "grid.png"), "--json", str(figures), "--labels", "class1",
    ]  # fmt: skip
    assert run(sample) == 0
    record = json.loads(figures.read_text())
    assert record["cluster"]["share"] == 1
    assert len(record["cluster"]["shards"]) == 2
    assert record["cluster"]["bytes"]["received"] > 0
    assert record["store"]["n"] == whole.n
    nearest = record["novelty"]["nearest"]
    assert record["novelty"]["nearest_files"] == [whole.names[row] for row in nearest]
    assert (tmp_path / "grid.png").is_file()
    # Without one shard, the share of images used is reported.
    (out / "shard-00001").rename(tmp_path / "aside")
    capsys.readouterr()
    assert run([*sample, "--allow-missing"]) == 0
    assert "only 50.0% of the training images were used" in capsys.readouterr().out
    record = json.loads(figures.read_text())["cluster"]
    assert (record["share"], list(record["missing"])) == (0.5, [str(out / "shard-00001")])


def test_the_command_line_names_a_lost_shard(cluster, tmp_path, fails):
    Listing([ShardRecord("nowhere", 5, "x")]).write(tmp_path)
    line = fails("sample", "--cluster", "local", "--store", str(tmp_path))
    assert f"shard {tmp_path / 'nowhere'} is lost: " in line
    assert "does not exist" in line


def test_shards_in_a_zip_address_equal_the_single_store(in_two_shards, sources, tmp_path):
    whole, out = sources["folder"][1], in_two_shards("folder")[0]
    archive = tmp_path / "shards.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(out.rglob("*")):
            if file.is_file():
                packed.write(file, file.relative_to(out))
    with ShardedStore.open(f"zip://::file://{archive}") as store:
        assert torch.equal(store.images(), whole.images())
        assert torch.equal(store.labels, whole.labels)
        assert store.class_names == whole.class_names
        assert store.names_of([50, 2, 31]) == [whole.names[row] for row in (50, 2, 31)]
        assert image_name(store, 40) == image_name(whole, 40)
        expected = golddiff.Optimal(whole)(torch.zeros(1, 3, 6, 6), 1.0)
        actual = golddiff.Optimal(store)(torch.zeros(1, 3, 6, 6), 1.0)
        assert torch.allclose(actual, expected, atol=1e-5)
