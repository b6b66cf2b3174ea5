import gzip

import numpy as np
import pytest

from golddiff.sources import open_source
from golddiff.store.cache import fingerprint
from golddiff.system.errors import SourceError

from .make import read

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9], np.uint8)


def write_idx(path, array, kind=8):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    data = bytes((0, 0, kind, array.ndim)) + sizes + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("dot", ["-", "."])
def test_idx_images_find_their_labels(tmp_path, gz, dot):
    path = write_idx(tmp_path / f"train-images{dot}idx3-ubyte{gz}", IMAGES)
    without = fingerprint(path)
    write_idx(tmp_path / f"train-labels{dot}idx1-ubyte{gz}", LABELS)
    assert fingerprint(path) != without  # so a cached store is built again
    values, labels = read(open_source(path))
    assert np.array_equal(values, IMAGES[:, None])
    assert labels.tolist() == LABELS.tolist()


def test_a_folder_of_idx_files_is_read_by_split(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", IMAGES)
    write_idx(tmp_path / "train-labels-idx1-ubyte", LABELS)
    write_idx(tmp_path / "t10k-images-idx3-ubyte", IMAGES[:2])
    assert read(open_source(tmp_path))[1].tolist() == LABELS.tolist()
    test = open_source(tmp_path, split="test")
    assert test.total == 2
    assert not test.info.labelled
    with pytest.raises(SourceError, match=r"split 'val'; it has: t10k-images.*train-images"):
        open_source(tmp_path, split="val")


@pytest.mark.parametrize(("split", "count"), [("train", 6), ("test", 2)])
def test_the_splits_of_emnist_are_known(tmp_path, split, count):
    for name, images in (("train", IMAGES), ("test", IMAGES[:2])):
        write_idx(tmp_path / f"emnist-letters-{name}-images-idx3-ubyte", images)
    assert open_source(tmp_path, split=split).total == count


def test_an_idx_file_of_another_name_is_recognised(tmp_path):
    assert open_source(write_idx(tmp_path / "pictures", IMAGES)).total == 6


@pytest.mark.parametrize("cut", [-1, 3, 10, 20])
def test_a_truncated_idx_file_is_named(tmp_path, cut):
    path = write_idx(tmp_path / "train-images-idx3-ubyte", IMAGES)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(SourceError, match="train-images-idx3-ubyte"):
        open_source(path)


@pytest.mark.parametrize(
    ("head", "body", "message"),
    [
        ((0, 0, 8, 1), b"\0\0\0\1" + b"xx", "damaged"),  # a byte too many
        ((0, 0, 8, 3), b"\xff" * 12 + b"few", "holds 3"),  # reserves no memory
        ((0, 0, 8, 200), b"\0\0\0\1" * 200 + b"x", "train-images-idx3-ubyte cannot be read"),
    ],
)
def test_a_forged_idx_header_is_refused(tmp_path, head, body, message):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(bytes(head) + body)
    with pytest.raises(SourceError, match=message):
        open_source(path)


def test_a_damaged_gzip_is_named(tmp_path):
    path = write_idx(tmp_path / "train-images-idx3-ubyte.gz", IMAGES)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(SourceError, match=r"train-images-idx3-ubyte\.gz"):
        open_source(path)


def test_an_idx_label_count_mismatch_is_refused(tmp_path):
    path = write_idx(tmp_path / "train-images-idx3-ubyte", IMAGES)
    write_idx(tmp_path / "train-labels-idx1-ubyte", LABELS[:4])
    with pytest.raises(SourceError, match=r"idx train.*: 4 labels were given for 6"):
        open_source(path)


def test_an_idx_label_file_is_refused_as_a_source(tmp_path):
    with pytest.raises(SourceError, match="not images"):
        open_source(write_idx(tmp_path / "train-labels-idx1-ubyte", LABELS))


def test_idx_files_of_other_data_types_are_refused(tmp_path):
    path = write_idx(tmp_path / "train-images-idx3-ubyte", IMAGES, kind=13)
    with pytest.raises(SourceError, match="not an idx file of bytes"):
        open_source(path)
