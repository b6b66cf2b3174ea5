"""Shards at fsspec addresses are copied once and verified."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

from golddiff.cluster.listing import Listing, ShardRecord, local_folder
from golddiff.store.images import ImageStore
from golddiff.store.manifest import NAME
from golddiff.system.errors import StoreError
from golddiff.system.files import locked

from .conftest import shard_at

BUCKET = "memory://bucket/photos"


@pytest.fixture
def bucket(digits, split, tmp_path, monkeypatch):
    """Two shards and their list on fsspec's in-memory file system; copies go to tmp_path."""
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    records = []
    for i, path in enumerate(split(digits, 2)):
        store = ImageStore.open(path)
        records.append(ShardRecord(f"shard{i}", store.n, store.manifest.identity))
        files.put(str(path), f"/bucket/photos/shard{i}", recursive=True)
    Listing(records).write(tmp_path)
    files.put(str(tmp_path / "shards.json"), "/bucket/photos/shards.json")
    yield files
    files.rm("/bucket", recursive=True)


def copies(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache" / "shards").glob("*"))


def test_a_list_and_its_shards_are_read_from_an_address(bucket, digits, tmp_path):
    for address in (BUCKET, f"{BUCKET}/", f"{BUCKET}/shards.json"):
        listing = Listing.of(address)
        assert listing.paths == [f"{BUCKET}/shard0", f"{BUCKET}/shard1"]
    shards = [shard_at(path) for path in listing.paths]
    assert [server.info().manifest.n for server in shards] == [
        record.n for record in listing.shards
    ]
    assert sum(server.store.n for server in shards) == digits.n
    # A second read uses the copies, even if the remote files are gone.
    names = copies(tmp_path)
    assert len(names) == 2
    bucket.rm_file("/bucket/photos/shard0/pixels.bin")
    assert shard_at(listing.paths[0]).store.n == shards[0].store.n
    assert copies(tmp_path) == names


@pytest.mark.parametrize(
    ("first", "rest"), [("zip://", "::file:///x/shards.zip"), ("zip://a/b", "::s3://c/d.zip")]
)
def test_shard_paths_keep_the_chain_of_a_nested_address(first, rest):
    listing = Listing([ShardRecord("shard-00000", 1, "x")], first + rest)
    expected = f"{first}/".replace("///", "//") + "shard-00000" + rest
    assert listing.paths == [expected]


def test_a_file_address_is_a_local_folder(digits):
    assert local_folder(f"file://{digits.path}") == digits.path


def test_altered_or_incomplete_shards_are_refused_and_not_kept(bucket, tmp_path):
    pixels = bytearray(bucket.cat_file("/bucket/photos/shard0/pixels.bin"))
    pixels[5] ^= 1
    bucket.pipe_file("/bucket/photos/shard0/pixels.bin", bytes(pixels))
    with pytest.raises(StoreError, match=r"pixels\.bin does not match its checksum"):
        shard_at(f"{BUCKET}/shard0").info()
    assert copies(tmp_path) == []
    bucket.rm_file("/bucket/photos/shard1/norms.bin")
    with pytest.raises(StoreError, match="memory://bucket/photos/shard1 is not there"):
        shard_at(f"{BUCKET}/shard1").info()
    assert copies(tmp_path) == []


def test_a_copy_that_another_process_makes_is_waited_for(bucket, tmp_path):
    folder = local_folder(f"{BUCKET}/shard0")
    complete = folder.rename(tmp_path / "complete")
    with ThreadPoolExecutor(1) as pool:
        with locked(folder.with_name(f".{folder.name}.lock"), ""):
            found = pool.submit(local_folder, f"{BUCKET}/shard0")
            time.sleep(0.3)
            assert not found.done()
            complete.rename(folder)
        assert found.result() == folder
    assert copies(tmp_path) == [folder.name]


def test_addresses_without_shards_are_refused(bucket):
    with pytest.raises(StoreError, match=rf"photos/shard7/{NAME} is not there"):
        shard_at(f"{BUCKET}/shard7").info()
    with pytest.raises(StoreError, match=r"bucket/other/shards\.json is not there"):
        Listing.of("memory://bucket/other")
    with pytest.raises(StoreError, match=r"nosuch://a/b/shards\.json cannot be read .*nosuch"):
        Listing.of("nosuch://a/b")


def test_a_shard_of_another_format_version_is_refused(bucket, tmp_path, digits, split):
    shutil.copytree(split(digits, 2)[0], tmp_path / "old")
    manifest = (tmp_path / "old" / NAME).read_text().replace('"version": 1', '"version": 7')
    bucket.pipe_file(f"/bucket/photos/shard0/{NAME}", manifest.encode())
    with pytest.raises(StoreError, match="format version 7"):
        shard_at(f"{BUCKET}/shard0").info()
