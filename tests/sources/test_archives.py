import json
import zipfile

import numpy as np
import pytest

from golddiff.sources import folders, open_source
from golddiff.system.errors import SourceError

from .make import first, pixels, png, read


def write_zip(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def edm_members(count):
    return {f"00000/img{i:08}.png": png(i) for i in range(count)}


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_an_edm_zip_gives_images_and_labels(tmp_path, batch):
    table = {"labels": [[name, 4 - i] for i, name in enumerate(edm_members(5))]}
    members = {**edm_members(5), "dataset.json": json.dumps(table)}
    values, labels = read(open_source(write_zip(tmp_path / "a.zip", members)), batch)
    assert labels.tolist() == [4, 3, 2, 1, 0]
    assert np.array_equal(values, [first(pixels(i)) for i in range(5)])


@pytest.mark.parametrize("table", [{}, {"dataset.json": json.dumps({"labels": None})}])
def test_an_edm_zip_may_have_no_labels_and_its_numbered_folders_are_not_classes(tmp_path, table):
    members = {f"0000{i}/img0000000{i}.png": png(i) for i in range(3)} | table
    assert not open_source(write_zip(tmp_path / "a.zip", members)).info.labelled


@pytest.mark.parametrize(
    "table",
    [
        "{",
        '{"labels": 3}',
        '{"labels": [["00000/img00000000.png", 1]]}',
        json.dumps({"labels": [[name, -1] for name in edm_members(2)]}),
        json.dumps({"labels": [[name, [0, 1]] for name in edm_members(2)]}),
    ],
    ids=["not json", "no list", "one missing", "negative", "not an index"],
)
def test_a_bad_edm_table_is_refused(tmp_path, table):
    path = write_zip(tmp_path / "a.zip", {**edm_members(2), "dataset.json": table})
    with pytest.raises(SourceError, match=r"dataset\.json"):
        open_source(path)


@pytest.mark.parametrize("prefix", ["", "photos/"])
def test_folders_in_a_zip_are_classes(tmp_path, prefix):
    members = {f"{prefix}{name}.png": png(i) for i, name in enumerate(["b/0", "a/0", "a/1"])}
    source = open_source(write_zip(tmp_path / "a.zip", members))
    values, labels = read(source)
    assert source.info.class_names == ("a", "b")
    assert labels.tolist() == [0, 0, 1]
    assert np.array_equal(values[2], first(pixels(0)))


def test_hidden_and_macos_files_in_a_zip_are_ignored(tmp_path):
    members = {"a.png": png(), "__MACOSX/._a.png": b"x", ".b.png": b"x", "notes.txt": b"x"}
    assert open_source(write_zip(tmp_path / "a.zip", members)).total == 1


def test_a_zip_without_images_is_refused(tmp_path):
    with pytest.raises(SourceError, match="holds no images"):
        open_source(write_zip(tmp_path / "a.zip", {"notes.txt": "nothing"}))


def test_unsupported_images_in_a_zip_are_counted_in_a_warning(tmp_path, caplog):
    open_source(write_zip(tmp_path / "a.zip", {"a.png": png(0), "b.HEIC": b"", "scan/c.dcm": b""}))
    assert "(.dcm, .heic) are left out, 2 in all, such as b.HEIC" in caplog.text


def test_an_unreadable_zip_is_refused(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"a\.zip is not a readable zip"):
        open_source(tmp_path / "a.zip")


def test_a_damaged_member_is_named(tmp_path):
    path = write_zip(tmp_path / "a.zip", edm_members(3), zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    offset = data.index(png(1)) + 60
    data[offset] ^= 255
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"img00000001\.png in a\.zip"):
        read(open_source(path))
    source = open_source(path, skip_bad=True)
    assert len(read(source)[0]) == 2
    assert [name for name, _ in source.skipped] == ["00000/img00000001.png in a.zip"]


def test_member_names_are_escaped_in_errors(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"a.png": png(), "b\n\x1b[31m.png": b"nothing"})
    with pytest.raises(SourceError, match=r"b\\n\\x1b\[31m\.png in a\.zip") as error:
        read(open_source(path))
    assert "\n" not in str(error.value)


def test_a_member_that_unpacks_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MAX_ENCODED_BYTES", 50)
    with pytest.raises(SourceError, match="unpacks to"):
        open_source(write_zip(tmp_path / "a.zip", {"a.png": png()}))
