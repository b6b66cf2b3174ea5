import numpy as np
import pytest

from golddiff.sources import open_source
from golddiff.system.errors import SourceError

from .make import read

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 6), dtype=np.uint8)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def test_an_npy_file_gives_its_images(tmp_path):
    np.save(tmp_path / "a.npy", IMAGES)
    assert np.array_equal(read(open_source(tmp_path / "a.npy"), 2)[0], IMAGES)


@pytest.mark.parametrize(
    ("images", "labels"),
    [("images", "labels"), ("x", "y"), ("arr_0", "arr_1"), ("x_train", "y_train"), ("data", "y")],
)
def test_usual_names_in_an_npz_file_are_found(tmp_path, images, labels):
    np.savez(tmp_path / "a.npz", **{images: IMAGES, labels: np.arange(5)[:, None]})
    values, read_labels = read(open_source(tmp_path / "a.npz"))
    assert np.array_equal(values, IMAGES)
    assert read_labels.tolist() == [0, 1, 2, 3, 4]


def test_a_split_of_an_npz_file_is_chosen_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=IMAGES, x_test=IMAGES[:2], y_test=np.array([4, 5]))
    assert open_source(tmp_path / "a.npz").total == 5
    assert read(open_source(tmp_path / "a.npz", split="test"))[1].tolist() == [4, 5]
    with pytest.raises(SourceError, match="no split 'val'"):
        open_source(tmp_path / "a.npz", split="val")


def test_arrays_of_an_npz_file_can_be_named(tmp_path):
    np.savez(tmp_path / "a.npz", images=IMAGES[:1], mine=IMAGES, kind=np.arange(5))
    source = open_source(tmp_path / "a.npz", column="mine", label_column="kind")
    assert read(source)[1].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(SourceError, match="no array 'absent'; it has: images, mine, kind"):
        open_source(tmp_path / "a.npz", column="absent")


def test_unknown_array_names_of_an_npz_file_are_listed(tmp_path):
    np.savez(tmp_path / "a.npz", this=IMAGES, that=IMAGES)
    with pytest.raises(SourceError, match="this, that"):
        open_source(tmp_path / "a.npz")


def test_a_single_array_named_npz_is_refused(tmp_path):
    with open(tmp_path / "a.npz", "wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(SourceError, match=r"a\.npz is not a \.npz archive"):
        open_source(tmp_path / "a.npz")


def test_an_npz_label_count_mismatch_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=np.arange(4))
    with pytest.raises(SourceError, match=r"a\.npz.*4 labels were given for 5"):
        open_source(tmp_path / "a.npz")


def test_a_second_array_of_floats_is_not_read_as_labels(tmp_path):
    np.savez(tmp_path / "a.npz", IMAGES, np.zeros((5, 8)))
    assert not open_source(tmp_path / "a.npz").info.labelled


def test_labels_of_an_npz_file_are_used_only_if_whole_and_not_negative(tmp_path, caplog):
    np.savez(tmp_path / "a.npz", images=IMAGES, y=np.array([[2.0], [0], [1], [1], [0]]))
    assert open_source(tmp_path / "a.npz").labels.tolist() == [2, 0, 1, 1, 0]
    for other in (np.full(5, 0.5), np.eye(5), np.eye(5, dtype=int), -np.arange(5), list("abcde")):
        np.savez(tmp_path / "a.npz", images=IMAGES, y=other)
        caplog.clear()
        assert not open_source(tmp_path / "a.npz").info.labelled
        assert "array y of a.npz holds no class indices" in caplog.text
        with pytest.raises(SourceError, match=r"array y of a\.npz holds no class indices"):
            open_source(tmp_path / "a.npz", label_column="y")


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_python_objects_in_array_files_are_not_loaded(tmp_path, ending):
    trap = np.array([Trap()], dtype=object)
    if ending == "npy":
        np.save(tmp_path / "a.npy", trap, allow_pickle=True)
    else:
        np.savez(tmp_path / "a.npz", images=trap)
    with pytest.raises(SourceError, match="can run code"):
        open_source(tmp_path / f"a.{ending}")


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("data", [b"", b"nothing", b"PK\3\4"])
def test_a_damaged_array_file_is_named(tmp_path, ending, data):
    (tmp_path / f"a.{ending}").write_bytes(data)
    with pytest.raises(SourceError, match=f"a.{ending}"):
        open_source(tmp_path / f"a.{ending}")


def test_a_truncated_array_file_is_named(tmp_path):
    np.save(tmp_path / "a.npy", IMAGES)
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data[:-30])
    with pytest.raises(SourceError, match=r"a\.npy"):
        open_source(tmp_path / "a.npy")
