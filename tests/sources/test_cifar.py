import io
import os
import pickle
import pickletools
import tarfile

import numpy as np
import pytest

from golddiff.sources import open_source
from golddiff.system.errors import SourceError
from golddiff.system.pickles import ARRAYS, read_pickle
from tests.oracles.edm.hostile import Evil

from .make import png, read

PIXELS = np.random.default_rng(0).integers(0, 256, (10, 3072), dtype=np.uint8)


def cifar10_files(protocol=2):
    files = {
        f"data_batch_{part + 1}": {
            b"data": PIXELS[2 * part : 2 * part + 2],
            b"labels": [part, part + 1],
        }
        for part in range(5)
    }
    files["test_batch"] = {b"data": PIXELS[:3], b"labels": [7, 8, 9]}
    files["batches.meta"] = {b"label_names": [f"class {i}".encode() for i in range(10)]}
    return {name: pickle.dumps(table, protocol) for name, table in files.items()}


def write_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar10_batches_are_read_in_order(tmp_path, protocol):
    folder = write_folder(tmp_path / "cifar-10-batches-py", cifar10_files(protocol))
    source = open_source(folder)
    values, labels = read(source)
    assert np.array_equal(values, PIXELS.reshape(-1, 3, 32, 32))
    assert labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert source.info.class_names[3] == "class 3"
    assert read(open_source(folder, split="test"))[1].tolist() == [7, 8, 9]


def test_the_parent_of_the_cifar_folder_is_accepted(tmp_path):
    write_folder(tmp_path / "cifar-10-batches-py", cifar10_files())
    assert open_source(tmp_path).total == 10


def test_pickles_of_python_2_are_read():
    # Protocol 2 with strings in place of bytes, and NumPy's module name of that time.
    data = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x05\x06tb"
        b"U\x06labels](K\x01K\x02eu."
    )
    pickletools.dis(data, out=io.StringIO())
    table = read_pickle(data, ARRAYS)
    assert table[b"data"].tolist() == [[5, 6]]
    assert table[b"labels"] == [1, 2]


@pytest.mark.parametrize("ending", ["tar.gz", "tar"])
def test_a_tar_of_cifar_is_read_without_extracting(tmp_path, ending):
    path = tmp_path / f"cifar-10-python.{ending}"
    with tarfile.open(path, "w:gz" if ending == "tar.gz" else "w") as archive:
        for name, data in cifar10_files().items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    values, labels = read(open_source(path))
    assert np.array_equal(values, PIXELS.reshape(-1, 3, 32, 32))
    assert len(labels) == 10
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_folders_named_like_the_files_of_cifar_are_folders_of_images(tmp_path):
    for kind in ("train", "meta"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "a.png").write_bytes(png(0))
    assert open_source(tmp_path).info.class_names == ("meta", "train")


@pytest.mark.parametrize("name", ["meta", "train"])
def test_one_file_named_like_those_of_cifar_makes_no_cifar(tmp_path, name):
    write_folder(tmp_path, {name: b"about", "a.png": png(0)})
    assert open_source(tmp_path).total == 1


def test_cifar100_has_fine_and_coarse_labels(tmp_path):
    table = {b"data": PIXELS[:3], b"fine_labels": [3, 99, 0], b"coarse_labels": [1, 19, 0]}
    meta = {b"fine_label_names": [b"apple"] * 100, b"coarse_label_names": [b"fruit"] * 20}
    files = {"train": pickle.dumps(table), "test": pickle.dumps(table), "meta": pickle.dumps(meta)}
    folder = write_folder(tmp_path / "cifar-100-python", files)
    assert read(open_source(folder))[1].tolist() == [3, 99, 0]
    coarse = open_source(folder, label_column="coarse_label")
    assert read(coarse)[1].tolist() == [1, 19, 0]
    assert coarse.info.class_names == ("fruit",) * 20
    with pytest.raises(SourceError, match="no label column 'absent'"):
        open_source(folder, label_column="absent")


@pytest.mark.parametrize(
    ("trap", "name"),
    [
        (Evil(os.system, "touch ran"), r"(posix|nt)\.system"),
        (Evil(eval, "open('ran', 'w')"), "eval"),
        (Evil(exec, "open('ran', 'w')"), "exec"),
        (Evil(getattr, "text", "upper"), "getattr"),
        (Evil(np.load, "ran"), "load"),
        (Evil(open, "ran", "w"), "open"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malicious_pickle_is_refused_by_name_and_does_not_run(tmp_path, monkeypatch, trap, name):
    monkeypatch.chdir(tmp_path)
    files = {**cifar10_files(), "data_batch_3": pickle.dumps({b"data": trap})}
    folder = write_folder(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(SourceError, match=rf"data_batch_3.*asks for .*{name}"):
        open_source(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -1])
def test_a_truncated_pickle_is_named(tmp_path, cut):
    files = cifar10_files()
    files["data_batch_2"] = files["data_batch_2"][:cut]
    with pytest.raises(SourceError, match="data_batch_2"):
        open_source(write_folder(tmp_path / "c", files))


@pytest.mark.parametrize(
    "table",
    [
        [1, 2],
        {b"labels": [0, 1]},
        {b"data": PIXELS[:2]},
        {b"data": PIXELS[:2], b"labels": [0]},
        {b"data": PIXELS[:2], b"labels": [0, -1]},
        {b"data": PIXELS[:2], b"labels": [0, "cat"]},
        {b"data": PIXELS[:2, :99], b"labels": [0, 1]},
        {b"data": PIXELS[:2].astype(float), b"labels": [0, 1]},
    ],
)
def test_a_pickle_of_other_content_is_named(tmp_path, table):
    files = {**cifar10_files(), "data_batch_2": pickle.dumps(table)}
    with pytest.raises(SourceError, match="data_batch_2"):
        open_source(write_folder(tmp_path / "c", files))


def test_a_missing_batch_is_named(tmp_path):
    files = cifar10_files()
    del files["data_batch_4"]
    with pytest.raises(SourceError, match="lacks data_batch_4"):
        open_source(write_folder(tmp_path / "c", files))


def test_an_unknown_cifar_split_is_refused(tmp_path):
    with pytest.raises(SourceError, match="no split 'val'; it has: test, train"):
        open_source(write_folder(tmp_path / "c", cifar10_files()), split="val")


@pytest.mark.parametrize("data", [b"", b"nothing"])
def test_an_unreadable_tar_is_refused(tmp_path, data):
    (tmp_path / "a.tar.gz").write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.tar\.gz"):
        open_source(tmp_path / "a.tar.gz")


def test_a_tar_of_other_content_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("notes.txt"), io.BytesIO())
    with pytest.raises(SourceError, match="none of CIFAR's files"):
        open_source(tmp_path / "a.tar")
