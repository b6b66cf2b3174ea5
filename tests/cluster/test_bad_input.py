"""One clear line for what cannot work."""

import json
import subprocess
import sys

import pytest
import torch

import golddiff
from golddiff.cli import run
from golddiff.cluster import ClusterError, ShardedStore
from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.cluster.shard import Shard
from golddiff.store.images import ImageStore
from golddiff.store.manifest import identity_of
from golddiff.supports.index import Index
from golddiff.system.errors import ArgumentError, StoreError

from .conftest import part

pytest.importorskip("ray", reason="needs Ray: pip install 'golddiff[cluster]'")


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture(scope="module")
def pair(digits, cut):
    return cut(digits, 2)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "got no shards"),
        (5, "got int, expected the path of a shards.json"),
        ([1, 2], "expected the path of a shards.json"),
        (["a", "./a"], "shard .*/a is listed twice"),
        (["file:///x/a", "/x/a"], "shard /x/a is listed twice"),
        (["s3://b/a", "s3://b/a"], "shard s3://b/a is listed twice"),
    ],
)
def test_lists_that_are_none(source, message):
    with pytest.raises(ArgumentError, match=message) as error:
        ShardedStore.open(source)
    one_line(error)


@pytest.mark.parametrize(
    ("option", "value"),
    [("patience", 0), ("num_cpus", -1), ("num_gpus", "all"), ("threads", 0), ("threads", 1.5)],
)
def test_options_that_are_none(pair, option, value):
    with pytest.raises(ArgumentError, match=f"{option}: got {value!r}"):
        ShardedStore.open(pair, **{option: value})


def test_shards_that_are_taken_for_a_single_store(tmp_path, capsys):
    (tmp_path / "shards.json").touch()
    assert run(["info", str(tmp_path)]) == 2
    assert "is in shards, which golddiff sample --cluster" in capsys.readouterr().err


def test_a_list_that_is_missing_damaged_or_of_another_version(tmp_path):
    with pytest.raises(StoreError, match=r"shards\.json is not there"):
        ShardedStore.open(tmp_path)
    file = tmp_path / "shards.json"
    file.write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        ShardedStore.open(tmp_path)
    file.write_text("[]")
    with pytest.raises(StoreError, match="no list of shards"):
        ShardedStore.open(file)
    Listing([ShardRecord("a", 3, "x")]).write(tmp_path)
    body = json.loads(file.read_text())
    file.write_text(json.dumps({**body, "version": 9}))
    with pytest.raises(StoreError, match="has format version 9, this golddiff reads version 1"):
        ShardedStore.open(tmp_path)
    body["shards"][0]["n"] = 4
    file.write_text(json.dumps(body))
    with pytest.raises(StoreError, match="altered or damaged"):
        ShardedStore.open(tmp_path)


def test_a_shard_that_is_a_link_out_of_the_folder(pair, tmp_path):
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "shard").symlink_to(pair[0])
    Listing([ShardRecord("shard", 3, "x")]).write(tmp_path / "list")
    with pytest.raises(StoreError, match=r"is damaged \(a shard outside its folder"):
        Listing.of(tmp_path / "list")


@pytest.fixture(scope="module")
def odd_ones(make_store, smooth_images):
    """Shards that do not go with the digits."""
    labels = torch.zeros(20, dtype=torch.int64)
    return {
        "shape": make_store(smooth_images(20, (1, 8, 6)), labels).path,
        "dtype": make_store(torch.zeros(20, 1, 8, 8), labels).path,
        "labels": make_store(smooth_images(20, (1, 8, 8))).path,
    }


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("shape", r"has shape \(1, 8, 6\), but .* has \(1, 8, 8\)"),
        ("dtype", "has dtype float32, but .* has uint8"),
        ("labels", "has labelled False, but .* has True"),
    ],
)
def test_shards_of_unlike_images_do_not_agree(pair, odd_ones, kind, message):
    paths = [str(pair[0]), str(odd_ones[kind])]
    infos = [Shard(path).info() for path in paths]
    with pytest.raises(StoreError, match=message) as error:
        Listing.of(paths).checked_identity(infos)
    assert paths[1] in one_line(error)


def test_a_copy_of_a_shard_and_one_that_is_not_the_lists(pair, tmp_path):
    info = Shard(str(pair[0])).info()
    with pytest.raises(ArgumentError, match=r"hold the same images .* listed twice") as error:
        Listing.of([pair[0], tmp_path / "copy"]).checked_identity([info, info])
    one_line(error)
    record = ShardRecord("copy", info.manifest.n - 1, identity_of(info.manifest))
    with pytest.raises(StoreError, match="copy is not the one that its list names"):
        Listing([record], str(tmp_path)).checked_identity([info])


def test_a_shard_whose_file_changed_is_in_error_not_missing(digits, tmp_path):
    """A StoreError of a shard counts as a loss, which may be allowed."""
    shard = Shard(str(part(digits, slice(0, 9), tmp_path / "shard")))
    shard.verify()
    pixels = tmp_path / "shard" / "pixels.bin"
    pixels.write_bytes(bytes(pixels.stat().st_size))
    with pytest.raises(ClusterError, match=r"has changed: .*pixels.bin") as error:
        shard.verify()
    one_line(error)


def test_another_version_of_the_package_where_a_shard_runs(cluster, pair, monkeypatch):
    """No loss, which may be allowed."""
    monkeypatch.setattr("golddiff.cluster.pool.__version__", "9.9")
    with pytest.raises(ClusterError, match=r"runs golddiff 0\..* on .*, here is 9.9") as error:
        ShardedStore.open(pair[:1], allow_missing=True)
    one_line(error)


def test_one_shard_and_a_store_that_was_closed_starts_no_process_again(cluster, pair):
    x = torch.zeros(1, 1, 8, 8)
    with ShardedStore.open(pair[:1], patience=600.0) as store:
        for make in (golddiff.PCA, lambda s: golddiff.GoldDiff(golddiff.Optimal(s))):
            alone = make(ImageStore.open(pair[0]))(x, 1.0)
            assert torch.allclose(make(store)(x, 1.0), alone, atol=1e-5)
    with pytest.raises(ClusterError, match="cluster: the store was closed; open it again"):
        store.images([0])


def test_what_a_shard_refuses(two):
    with pytest.raises(ArgumentError, match=r"shard .*memory_limit: got 1.0 kB"):
        golddiff.Optimal(two, memory_limit=1000)(torch.zeros(1, 1, 8, 8), 1.0)
    with pytest.raises(ArgumentError, match=r"x: got shape \(1, 1, 7, 7\)"):
        golddiff.Optimal(two)(torch.zeros(1, 1, 7, 7), 1.0)
    with pytest.raises(golddiff.ArgumentError, match=r"certified: .*single store"):
        golddiff.GoldDiff(golddiff.Optimal(two)).certified(torch.zeros(1, 1, 8, 8), 1.0)
    with pytest.raises(golddiff.ArgumentError, match=r"single store .*not of one in shards"):
        Index.build(two)
    with pytest.raises(ArgumentError, match="memory_limit: got 0, expected bytes above 0"):
        ShardedStore.open(two.paths, memory_limit=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "--cluster", "local"], "--cluster needs a --store"),
        (["sample", "--cluster", "nonsense", "--store", "x"], "--cluster: got 'nonsense'"),
        (["sample", "--cluster", "", "--store", "x"], "--cluster: got ''"),
        (["sample", "--allow-missing"], "applies to --cluster only"),
        (["index", "digits", "out", "--shards", "2"], "shards: applies to --cluster only"),
    ],
)
def test_the_command_line_says_so_in_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_without_ray_all_else_works():
    script = (
        "import sys; sys.modules['ray'] = None\n"
        "import golddiff, golddiff.cluster\n"
        "golddiff.PCA, golddiff.sample, golddiff.cluster.ShardedStore\n"
        "try: golddiff.cluster.connect()\n"
        "except golddiff.ClusterError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
    assert "Ray is not installed; pip install 'golddiff[cluster]'" in done.stdout
