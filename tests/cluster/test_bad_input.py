"""Invalid input is refused with a one-line message."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import golddiff
from golddiff.cluster import ClusterError, ShardedStore
from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.store.images import ImageStore
from golddiff.supports.index.image_index import Index
from golddiff.system.errors import ArgumentError, StoreError

from .conftest import part, shard_at

pytest.importorskip("ray", reason="needs Ray: pip install 'golddiff[cluster]'")


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture(scope="module")
def shards(digits, split):
    return split(digits, 2)


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
def test_invalid_lists_of_shards_are_refused(source, message):
    with pytest.raises(ArgumentError, match=message) as error:
        ShardedStore.open(source)
    one_line(error)


@pytest.mark.parametrize(
    ("option", "value"),
    [("patience", 0), ("num_cpus", -1), ("num_gpus", "all"), ("threads", 0), ("threads", 1.5)],
)
def test_invalid_options_are_refused(shards, option, value):
    with pytest.raises(ArgumentError, match=f"{option}: got {value!r}"):
        ShardedStore.open(shards, **{option: value})


def test_info_on_a_sharded_store_names_sample_cluster(tmp_path, fails):
    (tmp_path / "shards.json").touch()
    assert "is in shards, which golddiff sample --cluster" in fails("info", str(tmp_path))


def test_a_missing_damaged_or_newer_shards_json_is_refused(tmp_path):
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


@pytest.mark.parametrize("change", [{"n": 0}, {"n": "3"}, {"identity": 3}])
def test_a_list_with_one_impossible_shard_is_refused(tmp_path, change):
    first, second = ShardRecord("a", 3, "x"), ShardRecord("b", 3, "y")
    Listing([first, replace(second, **change)]).write(tmp_path)
    with pytest.raises(StoreError, match="a shard without its number of images"):
        Listing.of(tmp_path)


def test_a_shard_that_links_out_of_the_folder_is_refused(shards, tmp_path):
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "shard").symlink_to(shards[0])
    Listing([ShardRecord("shard", 3, "x")]).write(tmp_path / "list")
    with pytest.raises(StoreError, match=r"is damaged \(a shard outside its folder"):
        Listing.of(tmp_path / "list")


@pytest.fixture(scope="module")
def mismatched(make_store, smooth_images):
    """Stores that differ from the digits in shape, dtype or labels."""
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
def test_shards_of_another_shape_or_dtype_are_refused(shards, mismatched, kind, message):
    paths = [str(shards[0]), str(mismatched[kind])]
    infos = [shard_at(path).info() for path in paths]
    with pytest.raises(StoreError, match=message) as error:
        Listing.of(paths).checked_identity(infos)
    assert paths[1] in one_line(error)


def test_duplicate_shards_and_shards_unlike_their_record_are_refused(shards, tmp_path):
    info = shard_at(str(shards[0])).info()
    with pytest.raises(ArgumentError, match=r"hold the same images .* listed twice") as error:
        Listing.of([shards[0], tmp_path / "copy"]).checked_identity([info, info])
    one_line(error)
    record = ShardRecord("copy", info.manifest.n - 1, info.manifest.identity)
    with pytest.raises(StoreError, match="copy is not the one that its list names"):
        Listing([record], str(tmp_path)).checked_identity([info])


def test_a_changed_shard_is_an_error_instead_of_a_lost_shard(digits, tmp_path):
    """A StoreError would count as a lost shard, which ``allow_missing`` permits."""
    shard = shard_at(str(part(digits, slice(0, 9), tmp_path / "shard")))
    shard.verify()
    pixels = tmp_path / "shard" / "pixels.bin"
    pixels.write_bytes(bytes(pixels.stat().st_size))
    with pytest.raises(ClusterError, match=r"its files have changed: .*pixels.bin") as error:
        shard.verify()
    one_line(error)


def test_another_version_of_the_package_on_a_node_is_refused(cluster, shards, monkeypatch):
    """It does not count as a lost shard, which ``allow_missing`` permits."""
    monkeypatch.setattr("golddiff.cluster.pool.__version__", "9.9")
    with pytest.raises(ClusterError, match=r"golddiff 0\..* on .*, the driver's is 9.9") as error:
        ShardedStore.open(shards[:1], allow_missing=True)
    one_line(error)


def test_one_shard_equals_its_store_and_a_closed_store_stays_closed(cluster, shards):
    x = torch.zeros(1, 1, 8, 8)
    with ShardedStore.open(shards[:1], patience=600.0) as store:
        for make in (golddiff.PCA, lambda s: golddiff.GoldDiff(golddiff.Optimal(s))):
            expected = make(ImageStore.open(shards[0]))(x, 1.0)
            assert torch.allclose(make(store)(x, 1.0), expected, atol=1e-5)
    with pytest.raises(ClusterError, match="cluster: the store was closed; open it again"):
        store.images([0])


def test_a_sharded_store_refuses_bad_limits_shapes_and_certificates(split_digits):
    too_large = golddiff.Optimal(split_digits)
    too_large.working_bytes = lambda images: (10**18, 0)
    with pytest.raises(ArgumentError, match=r"shard .*memory: one picture over .* images would"):
        too_large(torch.zeros(1, 1, 8, 8), 1.0)
    with pytest.raises(ArgumentError, match=r"x: got shape \(1, 1, 7, 7\)"):
        golddiff.Optimal(split_digits)(torch.zeros(1, 1, 7, 7), 1.0)
    with pytest.raises(golddiff.ArgumentError, match=r"certified: .*single store"):
        golddiff.GoldDiff(golddiff.Optimal(split_digits)).certified(torch.zeros(1, 1, 8, 8), 1.0)
    with pytest.raises(golddiff.ArgumentError, match=r"single store .*not of one in shards"):
        Index.build(split_digits)
    with pytest.raises(ArgumentError, match="memory_limit: got 0, expected bytes above 0"):
        ShardedStore.open(split_digits.paths, memory_limit=0)


def test_without_ray_only_connect_fails():
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
