import datasets
import numpy as np
import pytest
import torch

import golddiff
from golddiff.sources import open_source
from golddiff.system.errors import ArgumentError, GoldDiffError, SourceError

from .make import png, read, write_parquet

IMAGES = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 4, 4), np.uint8)


@pytest.mark.parametrize(
    "labels",
    [[3, 1, 2, 0, 0, 1], torch.tensor([3, 1, 2, 0, 0, 1]), np.array([3, 1, 2, 0, 0, 1], np.uint8)],
    ids=["list", "tensor", "array"],
)
@pytest.mark.parametrize("batch", [1, 4, 6, 9])
def test_labels_go_with_their_images(labels, batch):
    values, read_labels = read(open_source(IMAGES, labels=labels), batch)
    assert read_labels.tolist() == [3, 1, 2, 0, 0, 1]
    assert values[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0] * 5, "5 labels were given for 6 examples"),
        ([0, 0, -1, 0, 0, 0], "label 2 is -1"),
        *(([value] * 6, "labels") for value in (0.0, True, "cat", None)),  # no integers
        *((shaped, "labels") for shaped in (np.zeros((6, 1), int), 3, [[0], [0, 1]])),
        (torch.zeros(6, dtype=torch.int64, device="meta"), "labels cannot be read as an array"),
        (torch.zeros(6, dtype=torch.int64).to_sparse(), "labels cannot be read as an array"),
    ],
)
def test_labels_that_are_not_one_class_index_for_each_image_are_refused(labels, message):
    with pytest.raises(ArgumentError, match=message):
        open_source(IMAGES, labels=labels)


def test_the_labels_argument_replaces_labels_of_the_source(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", [png(i) for i in range(4)], [0, 0, 1, 1])
    assert read(open_source(file, labels=[5, 6, 7, 8]))[1].tolist() == [5, 6, 7, 8]


def test_the_labels_argument_removes_the_class_names():
    assert open_source("digits").info.class_names is not None
    assert open_source("digits", labels=np.zeros(1797, int)).info.class_names is None


def test_labels_stay_with_their_images_when_some_are_skipped(tmp_path):
    for i in range(6):
        (tmp_path / f"{i}.png").write_bytes(png(i) if i % 2 else b"damaged")
    source = open_source(tmp_path, labels=[10, 11, 12, 13, 14, 15], skip_bad=True)
    assert read(source)[1].tolist() == [11, 13, 15]
    assert [name for name, _ in source.skipped] == ["0.png", "2.png", "4.png"]
    with pytest.raises(ArgumentError, match="2 labels were given for 6"):
        open_source(tmp_path, labels=[0, 1])


def test_labels_cover_all_images_before_the_limit():
    values, labels = read(open_source(IMAGES, labels=range(6), limit=3))
    assert (len(values), labels.tolist()) == (3, [0, 1, 2])
    with pytest.raises(ArgumentError, match="2 labels were given for 6"):
        open_source(IMAGES, labels=[0, 1], limit=2)


def test_a_limit_above_the_count_changes_nothing():
    assert open_source(IMAGES, limit=99).total == 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("size", value) for value in (0, -3, 2.5, "32", True)),
        *(("channels", value) for value in (0, 2, 4, "RGB")),
        *(("limit", value) for value in (0, -1, 1.5)),
        *(("seed", value) for value in (-1, 0.5, None)),
        *(("split", value) for value in ("", None, 3)),
    ],
)
def test_invalid_option_values_are_named(name, value):
    with pytest.raises(ArgumentError, match=f"^{name}: got"):
        open_source(IMAGES, **{name: value})


@pytest.mark.parametrize("size", [0, -1, 1.5, None])
def test_an_invalid_batch_size_is_refused_before_reading(tmp_path, size):
    (tmp_path / "a.png").write_bytes(png())
    for source in (IMAGES, tmp_path, "patches", "moons"):
        with pytest.raises(ArgumentError, match="size: got"):
            open_source(source).batches(size)


@pytest.mark.parametrize("option", ["column", "label_column"])
def test_column_options_are_refused_for_sources_without_columns(tmp_path, option):
    (tmp_path / "a.png").write_bytes(png())
    for source in (IMAGES, tmp_path, "digits", "patches"):
        with pytest.raises(ArgumentError, match=option):
            open_source(source, **{option: "image"})


def test_a_split_is_refused_by_sources_without_splits(tmp_path):
    for name in ("flat", "classes/a", "table"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "flat" / "a.png").write_bytes(png())
    (tmp_path / "classes" / "a" / "a.png").write_bytes(png())
    write_parquet(tmp_path / "table" / "photos.parquet", [png()])
    train = write_parquet(tmp_path / "train-00000-of-00001.parquet", [png()])
    table = datasets.Dataset.from_dict({"image": [png()]})
    np.save(tmp_path / "a.npy", IMAGES)
    np.savez(tmp_path / "a.npz", images=IMAGES)
    folders = [tmp_path / name for name in ("flat", "classes", "table", "a.npy", "a.npz")]
    for source in (*folders, folders[2] / "photos.parquet", IMAGES, list(IMAGES), table, "digits"):
        open_source(source)
        with pytest.raises(ArgumentError, match="split='test' does not apply to"):
            open_source(source, split="test")
    with pytest.raises(SourceError, match="no split 'test'; it has: train"):
        open_source(train, split="test")


@pytest.mark.parametrize(
    "source",
    [
        *("./absent", "/absent/folder", "~/absent-folder", "../absent.zip"),
        *("absent.parquet", "absent.pth", "absent-images-idx3-ubyte"),
        *("~no-such-user-here/photos", "./caf\u00e9", "./a\nb"),
        *("a/b/c", "what is this", "a//b"),  # no names of the hub
    ],
)
def test_a_missing_path_is_reported_without_the_hub(source):
    with pytest.raises(SourceError, match="does not exist") as caught:
        open_source(source)
    assert isinstance(caught.value, GoldDiffError)
    assert "hub" not in str(caught.value)


def test_a_path_too_long_for_the_system_is_refused():
    with pytest.raises(SourceError, match="cannot be read"):
        open_source("./" + "a" * 5000)


def test_an_empty_source_is_refused():
    with pytest.raises(ArgumentError, match="''"):
        open_source("")


def test_a_source_can_be_read_twice(tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    (tmp_path / "5.png").write_bytes(b"damaged")
    source = open_source(tmp_path, skip_bad=True)
    first, second = read(source), read(source)
    assert np.array_equal(first[0], second[0])
    assert len(source.skipped) == 1


@pytest.mark.parametrize("read", [open_source, golddiff.load])
def test_an_unknown_option_is_refused_and_the_known_ones_named(read):
    with pytest.raises(ArgumentError, match="sise: no source has it; expected one of size, chan"):
        read(IMAGES, sise=3)


def test_values_too_large_to_be_sampled_are_refused(tmp_path):
    with pytest.raises(SourceError, match=r"an image has norm 4e\+38, expected at most 1e\+18"):
        golddiff.ImageStore.build(np.full((2, 16), -1e38, np.float32), tmp_path / "store")
    assert not list(tmp_path.iterdir())
