"""Hostile files: each is refused, and no file outside its folder is read or written."""

import bz2
import gzip
import io
import json
import os
import pickle
import random
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from pickle import UnpicklingError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from golddiff.oracles.load import load_oracle
from golddiff.sources import open_source
from golddiff.sources.decode import UnreadableImageError, decode
from golddiff.system import files
from golddiff.system.errors import CheckpointError, SourceError
from golddiff.system.pickles import ARRAYS, read_pickle
from reliability.fuzz.images import array, encoded, idx, packed, parquets
from reliability.fuzz.structured import PNG
from reliability.fuzz.watch import watched


def read(path):
    return [batch.pixels for batch in open_source(path).batches(4)]


def png_of(width, height, body=b""):
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", body)]
    sealed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (*chunks, (b"IEND", b""))
    ]
    return PNG + b"".join(sealed)


class TestBombs:
    def test_an_image_that_claims_more_pixels_than_its_bytes_can_hold(self):
        with pytest.raises(UnreadableImageError, match="pixels a byte"):
            decode(png_of(9_000, 9_000, zlib.compress(bytes(1000))))

    def test_a_blank_page_is_a_valid_image(self):
        page = np.full((3000, 3000), 255, np.uint8)
        assert decode(encoded(page)).size == (3000, 3000)

    @pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_an_array_that_unpacks_to_a_thousand_times_its_size(self, tmp_path, kind):
        out = io.BytesIO()
        np.save(out, np.zeros((70_000, 1000), np.uint8))
        (tmp_path / "x.npz").write_bytes(packed({"images.npy": out.getvalue()}, kind))
        with pytest.raises(SourceError, match="more than 200 times"):
            open_source(tmp_path / "x.npz")

    def test_an_array_whose_header_claims_more_than_it_has(self, tmp_path):
        out = io.BytesIO()
        np.save(out, np.zeros((4, 4, 4), np.uint8))
        forged = out.getvalue().replace(b"(4, 4, 4), }", b"(4, 4, 4444444444444), }")
        (tmp_path / "x.npz").write_bytes(packed({"images.npy": forged}))
        with pytest.raises(SourceError):
            open_source(tmp_path / "x.npz")

    def test_a_compressed_idx_file_of_zeros(self, tmp_path):
        head = bytes((0, 0, 8, 3)) + np.array((80_000, 32, 32), ">u4").tobytes()
        path = tmp_path / "train-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(head + bytes(80_000 * 1024), 9))
        with pytest.raises(SourceError, match="unpacks to more than"):
            open_source(path)

    def test_a_tar_header_of_two_gigabytes(self, tmp_path):
        info = tarfile.TarInfo("x")
        info.size, info.type = 2 << 30, tarfile.XHDTYPE
        (tmp_path / "x.tar.gz").write_bytes(gzip.compress(info.tobuf() + bytes(80_000_000)))
        with pytest.raises(SourceError, match="unpacks to more than"):
            open_source(tmp_path / "x.tar.gz")

    def test_skipping_a_tar_member_stops_at_the_limit(self, tmp_path, monkeypatch):
        """Skipping a member unpacks it, so the limit must apply there too."""
        info = tarfile.TarInfo("x")
        info.size = 1999 * 512
        (tmp_path / "x.tar.gz").write_bytes(gzip.compress(info.tobuf() + bytes(60_000_000)))
        # tarfile looks for the member's last byte 2 bytes behind the limit.
        monkeypatch.setattr(files, "FREE", 2000 * 512 - 3)
        monkeypatch.setattr(files, "MAX_RATIO", 1)
        tracemalloc.start()
        with pytest.raises(SourceError, match="unpacks to more than"):
            open_source(tmp_path / "x.tar.gz")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()

    def test_a_zip_member_of_zeros(self, tmp_path):
        body = b"P6 6000 6000 255\n" + bytes(3 * 6000 * 6000)
        (tmp_path / "x.zip").write_bytes(packed({"a.ppm": body}, zipfile.ZIP_DEFLATED))
        with pytest.raises(SourceError, match="times its size"):
            read(tmp_path / "x.zip")

    def test_a_parquet_file_with_more_rows_than_bytes(self, tmp_path):
        table = pa.table({"image": pa.array([None] * 300_000, pa.binary()),
                          "label": pa.array(np.zeros(300_000, np.int64))})  # fmt: skip
        pq.write_table(table, tmp_path / "x.parquet")
        with pytest.raises(SourceError, match="more than it has bytes"):
            open_source(tmp_path / "x.parquet")

    def test_numbers_in_place_of_encoded_images(self, tmp_path):
        """``bytes(n)`` is n zeros: a file of 800 bytes took 360 MB."""
        number = pa.array([{"bytes": 10**8}])
        image = pa.array([{"bytes": encoded(array())}])
        pq.write_table(pa.table({"image": number}), tmp_path / "x.parquet")
        with pytest.raises(SourceError, match="no column image or img of encoded images"):
            open_source(tmp_path / "x.parquet")
        for name, rows in (("0", image), ("1", number)):
            (tmp_path / "both").mkdir(exist_ok=True)
            pq.write_table(pa.table({"image": rows}), tmp_path / "both" / f"{name}.parquet")
        with pytest.raises(SourceError, match=r"1\.parquet has no column 'image' of images"):
            open_source(tmp_path / "both")

    def test_a_network_description_larger_than_its_weights(self, tmp_path):
        from safetensors.torch import save_file

        header = {"format": "golddiff-oracle", "version": 1, "resolution": 4, "is_pixels": True,
                  "training": {}, "network": {"channels": 4096, "multipliers": [4096] * 3,
                  "blocks": 4096, "groups": 1}}  # fmt: skip
        save_file(
            {"a": torch.zeros(1)}, tmp_path / "m.safetensors", {"golddiff": json.dumps(header)}
        )
        with pytest.raises(CheckpointError, match="blocks"):
            load_oracle(tmp_path / "m.safetensors")

    def test_a_huge_tensor_strided_over_one_number(self, tmp_path):
        big = torch.zeros(1).as_strided((1 << 20, 1 << 20), (0, 0))
        torch.save({"head.weight": big}, tmp_path / "m.pt")
        with pytest.raises(CheckpointError, match="beyond its 1 numbers"):
            load_oracle(tmp_path / "m.pt")

    def test_a_diffusers_network_of_a_billion_layers(self, tmp_path):
        config = {"_class_name": "UNet2DModel", "layers_per_block": 10**9, "sample_size": 4}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "diffusion_pytorch_model.safetensors").write_bytes(bytes(100))
        with pytest.raises(CheckpointError, match="layers_per_block"):
            load_oracle(tmp_path)


class TestPickles:
    def test_an_array_larger_than_its_bytes(self):
        sound = pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, 2)
        (pixels,) = read_pickle(sound, ARRAYS).values()
        assert pixels.shape == (2, 3072)
        with pytest.raises(UnpicklingError, match=r"size|readable"):
            read_pickle(sound.replace(b"M\x00\x0c", b"M\xff\xff"), ARRAYS)


class TestPaths:
    @pytest.fixture
    def secret(self, tmp_path):
        path = tmp_path / "elsewhere" / "secret"
        path.parent.mkdir()
        path.write_bytes(pickle.dumps({"data": array(0, (2, 3072)), "fine_labels": [0, 1]}, 2))
        return path

    def test_links_out_of_a_cifar_folder_are_refused(self, tmp_path, secret):
        folder = tmp_path / "cifar-100-python"
        folder.mkdir()
        (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["a", "b"]}, 2))
        (folder / "train").symlink_to(secret)
        with pytest.raises(SourceError, match="symbolic link that leads out"):
            open_source(folder)

    def test_idx_label_links_out_of_their_folder_are_refused(self, tmp_path, secret):
        folder = tmp_path / "idx"
        folder.mkdir()
        secret.write_bytes(idx(array(0, (3,))))
        (folder / "train-images-idx3-ubyte").write_bytes(idx(array(0, (3, 4, 4))))
        (folder / "train-labels-idx1-ubyte").symlink_to(secret)
        with pytest.raises(SourceError, match="symbolic link that leads out"):
            open_source(folder)

    @pytest.mark.parametrize("name", ["../../out.png", "/tmp/out.png", "a\\..\\..\\out.png"])
    def test_a_zip_archive_is_never_unpacked_to_disk(self, tmp_path, name):
        folder = tmp_path / "a" / "b"
        folder.mkdir(parents=True)
        (folder / "x.zip").write_bytes(packed({name: encoded(array())}))
        before = sorted(tmp_path.rglob("*"))
        with watched(folder) as events:
            assert len(read(folder / "x.zip")[0]) == 1
        assert events == []
        assert sorted(tmp_path.rglob("*")) == before

    def test_paths_in_a_table_are_not_opened(self, tmp_path, secret):
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        rows = pa.array([{"bytes": None, "path": str(secret)}], kind)
        pq.write_table(pa.table({"image": rows}), tmp_path / "x.parquet")
        with watched(tmp_path / "none") as events, pytest.raises(SourceError, match="no bytes"):
            open_source(tmp_path / "x.parquet")
        assert not any("secret" in event for event in events)


def test_npz_member_that_is_no_array_is_refused(tmp_path):
    (tmp_path / "x.npz").write_bytes(packed({"images": b"text"}))
    with pytest.raises(SourceError):
        open_source(tmp_path / "x.npz")


def test_npy_header_that_python_cannot_parse_is_refused(tmp_path):
    out = io.BytesIO()
    np.save(out, np.zeros((3, 4), np.float32))
    (tmp_path / "x.npy").write_bytes(out.getvalue().replace(b"}", b"(", 1))
    with pytest.raises(SourceError, match=r"x\.npy cannot be read"):
        open_source(tmp_path / "x.npy")


def test_zip_member_without_a_name_is_refused(tmp_path):
    data = packed({"a.png": encoded(array()), "b": b""})
    (tmp_path / "x.zip").write_bytes(data.replace(b"\x01\x00\x00\x00\x00\x00\x00\x00", b""))
    cut = bytearray(data)
    at = data.rindex(b"PK\x01\x02")
    cut[at + 28 : at + 30] = b"\0\0"
    (tmp_path / "x.zip").write_bytes(cut)
    with pytest.raises(SourceError):
        read(tmp_path / "x.zip")


def test_damaged_tar_is_reported_in_one_line(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(b"x" * 2000)[:-30])
    with pytest.raises(SourceError) as raised:
        open_source(tmp_path / "x.tar.gz")
    assert "\n" not in str(raised.value)


def test_tar_compressed_with_bzip2_is_read(tmp_path):
    from reliability.fuzz.images import tars

    (tmp_path / "x.tar").write_bytes(bz2.compress(gzip.decompress(tars()[0])))
    assert len(read(tmp_path / "x.tar")[0]) == 2


def test_table_with_fewer_labels_than_rows_is_refused(tmp_path):
    """Regression: a damaged run length gave one label for a table of three rows."""
    refused = 0
    rng = random.Random(1)
    for seed in parquets():
        for _ in range(60):
            data = bytearray(seed)
            data[rng.randrange(len(data) // 2)] ^= 1 << rng.randrange(8)
            (tmp_path / "x.parquet").write_bytes(data)
            try:
                images = sum(map(len, read(tmp_path / "x.parquet")))
            except SourceError:
                refused += 1
            else:
                assert images == 3
    assert refused


def test_incomplete_training_state_is_refused(tmp_path):
    from golddiff_lab.training.run import STATE, VERSION, fingerprint, read_state, start
    from reliability.fuzz.networks import SETTINGS, _store

    run = start(_store(), tmp_path / "none", SETTINGS)
    state = {"version": VERSION, "settings": SETTINGS.as_dict(), "data": fingerprint(_store())}
    torch.save(state, tmp_path / STATE)
    with pytest.raises(CheckpointError, match="not the whole state"):
        read_state(tmp_path, run, fingerprint(_store()))


def test_diffusers_sample_size_must_be_a_number(tmp_path):
    from golddiff.oracles.diffusers_unet import _shape

    class Config:
        sample_size, in_channels = "/etc/passwd", 3

    with pytest.raises(CheckpointError, match="sample_size"):
        _shape(Config, None, tmp_path)


def test_watched_records_writes_commands_and_exec(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    with watched(inside) as events:
        (inside / "a").write_text("x")
        (tmp_path / "b").write_text("x")
        os.system("true")
        exec("1")
    assert any("b for writing" in e for e in events)
    assert any(e.startswith("os.system") for e in events)
    assert any(e.startswith("exec") for e in events)
    assert not any(e.endswith("inside/a for writing") for e in events)
