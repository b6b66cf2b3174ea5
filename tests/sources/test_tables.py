import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from golddiff.sources import open_source
from golddiff.system.errors import ArgumentError, SourceError

from .make import first, pixels, png, read, write_parquet

PNGS = [png(i) for i in range(10)]
EXPECTED = np.stack([first(pixels(i)) for i in range(10)])
CLASSES = json.dumps(
    {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}}}
)


@pytest.mark.parametrize("batch", [1, 3, 4, 100])
def test_a_parquet_file_gives_images_and_labels(tmp_path, batch):
    path = write_parquet(tmp_path / "a.parquet", PNGS, [0, 1] * 5, metadata=CLASSES)
    source = open_source(path)
    values, labels = read(source, batch)
    assert source.info.class_names == ("cat", "dog")
    assert source.total == 10
    assert labels.tolist() == [0, 1] * 5
    assert np.array_equal(values, EXPECTED)


def test_shards_are_read_in_order_of_their_names(tmp_path):
    for shard in (1, 0):
        part = slice(5 * shard, 5 * shard + 5)
        name = f"train-0000{shard}-of-00002.parquet"
        write_parquet(tmp_path / "data" / name, PNGS[part], list(range(10))[part])
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", PNGS[:2], [7, 8])
    (tmp_path / "README.md").write_text("about")
    values, labels = read(open_source(tmp_path))
    assert np.array_equal(values, EXPECTED)
    assert labels.tolist() == list(range(10))
    assert read(open_source(tmp_path, split="test"))[1].tolist() == [7, 8]
    with pytest.raises(SourceError, match="no split 'dev'; it has: test, train"):
        open_source(tmp_path, split="dev")


def test_files_without_a_split_in_their_names_are_all_read(tmp_path):
    for name in ("0000", "0001"):
        write_parquet(tmp_path / f"{name}.parquet", PNGS[:3])
    assert open_source(tmp_path).total == 6


def test_folders_of_shards_named_after_splits_are_splits(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        write_parquet(tmp_path / split / "0000.parquet", PNGS[:count])
    assert open_source(tmp_path).total == 3
    assert open_source(tmp_path, split="test").total == 2


def test_images_beside_parquet_files_are_refused(tmp_path):
    write_parquet(tmp_path / "a.parquet", PNGS[:1])
    (tmp_path / "a.png").write_bytes(PNGS[0])
    with pytest.raises(SourceError, match="both images"):
        open_source(tmp_path)


def test_an_image_column_of_any_name_is_found(tmp_path):
    for name in ("img", "photo"):
        path = write_parquet(tmp_path / f"{name}.parquet", PNGS[:2], image=name)
        assert open_source(path).total == 2


@pytest.mark.parametrize("nested", [False, True])
def test_dictionary_encoded_images_are_read(tmp_path, nested):
    column = pa.array([PNGS[1], PNGS[0], PNGS[1]]).dictionary_encode()
    if nested:
        column = pa.StructArray.from_arrays([column], ["bytes"])
    pq.write_table(pa.table({"image": column}), tmp_path / "a.parquet")
    values, _ = read(open_source(tmp_path / "a.parquet"))
    assert np.array_equal(values, EXPECTED[[1, 0, 1]])


def test_columns_can_be_named(tmp_path):
    rows = pa.array(PNGS, pa.binary())
    table = pa.table({"image": rows, "flipped": rows[::-1], "kind": list(range(10))})
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet", column="flipped", label_column="kind")
    values, labels = read(source)
    assert np.array_equal(values, EXPECTED[::-1])
    assert labels.tolist() == list(range(10))


@pytest.mark.parametrize("option", ["column", "label_column"])
def test_a_missing_column_error_lists_the_columns(tmp_path, option):
    path = write_parquet(tmp_path / "a.parquet", PNGS, [0] * 10)
    with pytest.raises(SourceError, match=r"'absent' does not exist.*image.*label"):
        open_source(path, **{option: "absent"})


def test_float_labels_are_used_only_if_whole_and_not_negative(tmp_path, caplog):
    path = write_parquet(tmp_path / "a.parquet", PNGS[:3], [2.0, 0.0, 1.0])
    assert read(open_source(path))[1].tolist() == [2, 0, 1]
    for label in (0.5, -1.0, float("nan"), float("inf")):
        path = write_parquet(tmp_path / "a.parquet", PNGS[:3], [0.0, label, 1.0])
        caplog.clear()
        assert not open_source(path).info.labelled
        assert "is not taken for labels" in caplog.text


def test_columns_of_the_wrong_type_are_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", PNGS, [0.5] * 10)
    with pytest.raises(SourceError, match="'label' holds double, not images"):
        open_source(path, column="label")
    with pytest.raises(SourceError, match="'label' holds no class indices"):
        open_source(path, label_column="label")


def test_a_table_without_images_lists_its_columns(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"no column image or img of .*text \(string\)"):
        open_source(tmp_path / "a.parquet")


def test_a_column_of_arrays_is_said_to_hold_no_encoded_images(tmp_path):
    pq.write_table(pa.table({"image": [[[0, 1], [2, 3]]]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"no column image or img of encoded images.*list<"):
        open_source(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("labels", "class_names"),
    [
        (["dog", "cat", "dog"], ("cat", "dog")),
        (pa.array(["dog", "cat", "dog"]).dictionary_encode(), ("cat", "dog")),  # as of pandas
        ([True, False, True], None),
    ],
)
def test_text_and_categories_become_sorted_classes_and_booleans_are_labels(
    tmp_path, labels, class_names
):
    source = open_source(write_parquet(tmp_path / "a.parquet", PNGS[:3], labels))
    assert source.info.class_names == class_names
    assert read(source)[1].tolist() == [1, 0, 1]


def test_a_fine_label_column_is_found(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", PNGS[:3], [5, 6, 7], label="fine_label")
    assert read(open_source(path))[1].tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "labels", [[0, None, 1], ["a", None, "b"], [0, -2, 1], [[0], [1], [2]], [b"a", b"b", b"c"]]
)
def test_labels_that_are_no_classes_are_refused_if_named_and_else_reported(
    tmp_path, caplog, labels
):
    path = write_parquet(tmp_path / "a.parquet", PNGS[:3], labels)
    assert not open_source(path).info.labelled
    empty = ", with 1 empty row," if None in labels else ""
    assert f"column 'label'{empty} holds no class indices" in caplog.text
    with pytest.raises(SourceError, match=f"column 'label'{empty} holds"):
        open_source(path, label_column="label")
    assert open_source(path, labels=[0, 0, 0]).info.labelled


def test_files_whose_labels_differ_in_type_are_refused(tmp_path):
    for name, labels in (("0", [0, 1]), ("1", ["cat", "dog"])):
        write_parquet(tmp_path / f"{name}.parquet", PNGS[:2], labels)
    with pytest.raises(SourceError, match="the files' columns 'label' differ in type"):
        open_source(tmp_path)


def test_labels_that_are_all_minus_one_are_ignored(tmp_path, caplog):
    path = write_parquet(tmp_path / "a.parquet", PNGS[:3], [-1, -1, -1])
    for options in ({}, {"label_column": "label"}):
        assert not open_source(path, **options).info.labelled
    assert not caplog.text


def test_rows_of_paths_are_not_followed(tmp_path):
    (tmp_path / "0.png").write_bytes(PNGS[0])
    path = write_parquet(tmp_path / "a.parquet", [None])
    with pytest.raises(SourceError, match="no bytes but a path, which is not followed; give"):
        read(open_source(path))


def test_rows_without_names_are_named_by_number_if_some_are_left_out(tmp_path):
    rows = [*PNGS[:2], b"damaged", PNGS[3]]
    pq.write_table(pa.table({"image": rows}), tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet", skip_bad=True)
    read(source)
    assert source.names == [f"row {i} of a.parquet" for i in (0, 1, 3)]
    pq.write_table(pa.table({"image": PNGS[:3]}), tmp_path / "b.parquet")
    source = open_source(tmp_path / "b.parquet", skip_bad=True)
    read(source)
    assert source.names == []


@pytest.mark.parametrize("bad", [None, b"", b"nothing"])
def test_a_bad_row_is_named(tmp_path, bad):
    path = write_parquet(tmp_path / "train.parquet", [*PNGS[:7], bad, PNGS[8]], list(range(9)))
    with pytest.raises(SourceError, match=r"row 7 of train\.parquet"):
        read(open_source(path))
    source = open_source(path, skip_bad=True)
    values, labels = read(source)
    assert labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 8]
    assert np.array_equal(values[-1], EXPECTED[8])
    assert [name for name, _ in source.skipped] == ["row 7 of train.parquet"]


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", PNGS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SourceError, match=r"a\.parquet is not readable as parquet"):
        open_source(path)


def test_a_parquet_file_without_rows_is_refused(tmp_path):
    with pytest.raises(SourceError, match="holds no images"):
        open_source(write_parquet(tmp_path / "a.parquet", []))


def test_shards_with_different_columns_are_refused(tmp_path):
    write_parquet(tmp_path / "0.parquet", PNGS[:1])
    write_parquet(tmp_path / "1.parquet", PNGS[:1], image="img")
    with pytest.raises(SourceError, match=r"1\.parquet has no column 'image'"):
        open_source(tmp_path)


def test_shards_are_refused_if_one_lacks_labels(tmp_path):
    write_parquet(tmp_path / "0.parquet", PNGS[:1], [0])
    write_parquet(tmp_path / "1.parquet", PNGS[:1])
    with pytest.raises(SourceError, match=r"1\.parquet"):
        open_source(tmp_path)


def dataset(count=10):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": [{"bytes": data} for data in PNGS[:count]], "label": [0, 1] * (count // 2)}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_a_dataset_gives_images_labels_and_class_names(batch):
    source = open_source(dataset())
    values, labels = read(source, batch)
    assert source.info.class_names == ("cat", "dog")
    assert labels.tolist() == [0, 1] * 5
    assert np.array_equal(values, EXPECTED)


def test_a_selected_dataset_keeps_its_selection():
    values, labels = read(open_source(dataset().select([9, 2, 4])))
    assert np.array_equal(values, EXPECTED[[9, 2, 4]])
    assert labels.tolist() == [1, 0, 0]


def test_the_format_of_a_dataset_does_not_matter():
    assert np.array_equal(read(open_source(dataset().with_format("numpy")))[0], EXPECTED)


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_the_mode_of_an_image_column_decides_the_channels(mode, channels):
    cast = read(open_source(dataset().cast_column("image", datasets.Image(mode=mode))))[0]
    assert cast.shape[1] == channels
    assert np.array_equal(cast, read(open_source(dataset(), channels=channels))[0])


def test_a_transform_of_a_dataset_is_not_silently_left_out():
    turned = dataset().with_transform(lambda rows: rows)
    for given in (turned, datasets.DatasetDict({"train": turned})):
        with pytest.raises(ArgumentError, match="dataset has a transform"):
            open_source(given)
    assert np.array_equal(read(open_source(turned.with_format(None)))[0], EXPECTED)


def test_a_column_of_a_dataset_is_a_list_of_images():
    values, labels = read(open_source(dataset()["image"], labels=dataset()["label"]))
    assert np.array_equal(values, EXPECTED)
    assert labels.tolist() == dataset()["label"][:]


def test_a_dataset_dict_is_read_by_split():
    both = datasets.DatasetDict({"train": dataset(), "test": dataset(4)})
    assert open_source(both).total == 10
    assert open_source(both, split="test").total == 4
    with pytest.raises(SourceError, match="no split 'dev'; it has: train, test"):
        open_source(both, split="dev")


def test_a_dataset_of_paths_reads_the_files(tmp_path):
    (tmp_path / "a.png").write_bytes(PNGS[3])
    paths = datasets.Dataset.from_dict({"image": [str(tmp_path / "a.png")]})
    source = open_source(paths.cast_column("image", datasets.Image()))
    assert np.array_equal(read(source)[0], EXPECTED[3:4])


def test_a_bad_row_of_a_dataset_is_named():
    rows = {"image": [{"bytes": PNGS[0]}, {"bytes": b"nothing"}]}
    bad = datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()}))
    with pytest.raises(SourceError, match="row 1 of the dataset"):
        open_source(bad)


def test_a_dataset_without_images_lists_its_columns():
    with pytest.raises(SourceError, match="text"):
        open_source(datasets.Dataset.from_dict({"text": ["a"]}))
