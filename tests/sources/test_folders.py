import errno
import json
import os

import numpy as np
import pytest

from golddiff.sources import open_source
from golddiff.system.errors import SourceError

from .make import encoded, first, pixels, png, read


def fill(folder, count, *, start=0, **options):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(start, start + count):
        (folder / f"{i:03}.png").write_bytes(png(i, **options))
    return folder


@pytest.mark.parametrize("batch", [1, 3, 64, 1000])
def test_a_flat_folder_is_read_in_order_of_names(tmp_path, batch):
    source = open_source(fill(tmp_path / "photos", 7))
    values, labels = read(source, batch)
    assert source.total == 7
    assert source.info.description == "folder photos"
    assert labels is None
    assert np.array_equal(values, [first(pixels(i)) for i in range(7)])


def test_order_is_kept_over_many_chunks(tmp_path):
    for i in range(400):
        (tmp_path / f"{i:03}.png").write_bytes(encoded(np.full((2, 2), i % 251, np.uint8)))
    values, labels = read(open_source(str(tmp_path), labels=np.arange(400)), 33)
    assert np.array_equal(values[:, 0, 0, 0], labels % 251)


def test_sub_folders_are_classes_in_order_of_names(tmp_path):
    fill(tmp_path / "dog", 2)
    fill(tmp_path / "cat" / "deeper", 3, start=10)
    source = open_source(tmp_path)
    values, labels = read(source)
    assert source.info.class_names == ("cat", "dog")
    assert labels.tolist() == [0, 0, 0, 1, 1]
    assert np.array_equal(values[0], first(pixels(10)))


def test_folders_named_after_splits_are_splits(tmp_path):
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            fill(tmp_path / split / name, 2 if split == "train" else 1)
    assert open_source(tmp_path).total == 4
    source = open_source(tmp_path, split="test")
    assert source.total == 2
    assert source.info.class_names == ("cat", "dog")
    with pytest.raises(SourceError, match="no split 'val'; it has: test, train"):
        open_source(tmp_path, split="val")


def test_loose_images_beside_splits_are_refused(tmp_path):
    fill(tmp_path / "data" / "train", 2)
    fill(tmp_path / "data" / "test", 1)
    fill(tmp_path / "data", 1)
    message = r"loose \(data/000.png\) and in folders named like splits \(data/test/000.png\)"
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path)


def test_a_single_sub_folder_is_no_class(tmp_path):
    fill(tmp_path / "images", 3)
    assert not open_source(tmp_path).info.labelled


def test_loose_images_beside_folders_are_read_without_classes(tmp_path, caplog):
    fill(tmp_path, 1)
    fill(tmp_path / "cat", 1)
    source = open_source(tmp_path)
    assert (source.total, source.info.labelled) == (2, False)
    (line,) = caplog.messages
    assert "images lie both loose (000.png) and in sub folders (cat/000.png)" in line


def test_files_that_are_no_images_are_ignored(tmp_path):
    fill(tmp_path, 2)
    for name in (".DS_Store", "notes.txt", ".hidden.png", "._000.png"):
        (tmp_path / name).write_bytes(b"nothing")
    assert open_source(tmp_path).total == 2


def test_unsupported_image_files_are_counted_in_a_warning(tmp_path, caplog):
    fill(tmp_path, 1)
    for name in ("b.HEIC", "c.heic", ".hidden.heic"):
        (tmp_path / name).write_bytes(b"x")
    assert open_source(tmp_path).total == 1
    (line,) = caplog.messages
    assert "(.heic) are left out, 2 in all, such as b.HEIC; convert them" in line


@pytest.mark.parametrize(
    ("files", "source", "message"),
    [
        ([], ".", "holds no images"),
        (["notes.txt"], ".", "holds no images"),
        (["data-00000-of-00001.arrow"], ".", "load_from_disk"),  # of Dataset.save_to_disk
        (["000.png"], "000.png", "single image"),
        (["notes.txt"], "notes.txt", r"\.parquet"),  # one of the known types
    ],
)
def test_a_file_or_folder_without_a_set_of_images_is_refused(tmp_path, files, source, message):
    for name in files:
        (tmp_path / name).write_bytes(png())
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path / source)


def test_links_that_lead_out_of_the_folder_are_not_followed(tmp_path, caplog):
    fill(tmp_path / "photos of others", 2)
    inside = tmp_path / "photos\x1b]0;title"
    inside.mkdir()
    os.symlink(tmp_path / "photos of others", inside / "linked")
    os.symlink(tmp_path / "photos of others" / "000.png", inside / "one.png")
    with pytest.raises(SourceError, match="2 symbolic links"):
        open_source(inside)
    fill(inside, 1)
    assert open_source(inside).total == 1
    assert "\x1b" not in caplog.text


def test_a_link_to_the_folder_itself_is_not_followed_forever(tmp_path):
    fill(tmp_path, 2)
    os.symlink(tmp_path, tmp_path / "again")
    os.symlink(tmp_path / "000.png", tmp_path / "002.png")
    assert open_source(tmp_path).total == 3


def test_a_linked_folder_can_itself_be_the_source(tmp_path):
    fill(tmp_path / "photos", 2)
    os.symlink(tmp_path / "photos", tmp_path / "link")
    assert open_source(tmp_path / "link").total == 2


def test_images_of_mixed_sizes_are_named(tmp_path):
    fill(tmp_path, 2)
    (tmp_path / "odd.png").write_bytes(png(0, 5, 9))
    with pytest.raises(SourceError, match=r"000\.png is 8x8, odd\.png is 9x5.*size=") as caught:
        open_source(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_odd_size_late_in_the_folder_is_named(tmp_path):
    fill(tmp_path, 100)
    (tmp_path / "odd.png").write_bytes(png(0, 5, 9))
    source = open_source(tmp_path)
    with pytest.raises(SourceError, match=r"000\.png is 8x8, odd\.png is 9x5"):
        read(source)


def test_size_resizes_images_of_mixed_sizes(tmp_path):
    fill(tmp_path, 2)
    (tmp_path / "odd.png").write_bytes(png(0, 5, 9))
    assert read(open_source(tmp_path, size=4))[0].shape == (3, 3, 4, 4)


def test_grey_images_stay_grey(tmp_path):
    fill(tmp_path, 3, channels=1)
    assert open_source(tmp_path).info.shape == (1, 8, 8)
    assert open_source(tmp_path, channels=3).info.shape == (3, 8, 8)


def test_one_colour_image_makes_all_rgb(tmp_path):
    fill(tmp_path, 3, channels=1)
    (tmp_path / "colour.png").write_bytes(png())
    values, _ = read(open_source(tmp_path))
    assert values.shape == (4, 3, 8, 8)


def test_a_late_colour_image_in_a_grey_folder_is_refused(tmp_path):
    fill(tmp_path, 70, channels=1, height=2, width=2)
    (tmp_path / "colour.png").write_bytes(png(0, 2, 2))
    with pytest.raises(SourceError, match=r"colour\.png is in colour.*channels="):
        read(open_source(tmp_path))
    assert read(open_source(tmp_path, channels=1))[0].shape == (71, 1, 2, 2)


def test_a_truncated_image_is_named(tmp_path):
    fill(tmp_path, 5)
    image = png(9, 40, 40)
    (tmp_path / "002.png").write_bytes(image[: len(image) // 2])
    with pytest.raises(SourceError, match=r"002\.png"):
        read(open_source(tmp_path, size=8))


def test_an_unreadable_image_is_named_when_the_source_opens(tmp_path):
    fill(tmp_path, 2)
    (tmp_path / "001.png").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"001\.png.*skip_bad"):
        open_source(tmp_path)


def test_skipped_images_are_counted_and_labels_stay_aligned(tmp_path):
    fill(tmp_path / "cat", 4)
    fill(tmp_path / "dog", 4)
    image = png(0, 40, 40)
    (tmp_path / "cat" / "000.png").write_bytes(b"nothing")
    (tmp_path / "dog" / "001.png").write_bytes(image[: len(image) // 2])
    source = open_source(tmp_path, skip_bad=True, size=8)
    values, labels = read(source)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(values[3], first(pixels(0)))
    assert [name for name, _ in source.skipped] == ["cat/000.png", "dog/001.png"]
    assert all(reason for _, reason in source.skipped)


def test_skipping_every_image_is_an_error(tmp_path):
    for i in range(70):
        (tmp_path / f"{i}.png").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"none of the 70 images.*0\.png"):
        open_source(tmp_path, skip_bad=True)


def test_skipping_every_image_while_reading_is_an_error(tmp_path):
    image = png(0, 40, 40)
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(image[: len(image) // 2])
    source = open_source(tmp_path, skip_bad=True)
    with pytest.raises(SourceError, match="none of the 3 images"):
        list(source.batches(2))


def test_limit_reads_only_the_first_images(tmp_path):
    fill(tmp_path, 5)
    (tmp_path / "003.png").write_bytes(b"nothing")
    source = open_source(tmp_path, limit=3)
    assert source.total == 3
    assert np.array_equal(read(source)[0], [first(pixels(i)) for i in range(3)])


def test_reading_may_stop_early(tmp_path):
    fill(tmp_path, 300, height=2, width=2)
    batches = open_source(tmp_path).batches(10)
    assert len(next(batches).pixels) == 10
    batches.close()


def test_a_file_that_vanishes_is_named(tmp_path):
    fill(tmp_path, 3)
    source = open_source(tmp_path)
    (tmp_path / "001.png").unlink()
    with pytest.raises(SourceError, match=r"001\.png"):
        read(source)


def test_an_edm_table_labels_a_folder(tmp_path):
    fill(tmp_path / "00000", 3)
    pairs = [[f"00000/{i:03}.png", 2 - i] for i in range(3)]
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": pairs}))
    assert read(open_source(tmp_path))[1].tolist() == [2, 1, 0]


def test_an_unreadable_sub_folder_is_named(tmp_path, monkeypatch):
    (tmp_path / "a" / "lost+found").mkdir(parents=True)
    scan = os.scandir

    def refused(path):
        if str(path).endswith("lost+found/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(SourceError, match=r"a/lost\+found/ cannot be read: Permission denied"):
        open_source(tmp_path)
