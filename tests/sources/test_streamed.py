"""What Python hands over: lists, torch's Dataset and DataLoader, .pt files, ranges of floats."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

import golddiff
from golddiff.sources import open_source
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError, SourceError

from .make import first, pixels, png, read

ARRAYS = [pixels(i) for i in range(70)]
WANTED = np.stack([first(array) for array in ARRAYS])


class Pictures(Dataset):
    def __init__(self, labelled=True):
        self.labelled = labelled

    def __len__(self):
        return 70

    def __getitem__(self, i):
        image = Image.fromarray(ARRAYS[i])
        return (image, i % 3) if self.labelled else image


def paths(folder):
    for i in range(70):
        (folder / f"{i}.png").write_bytes(png(i))
    return [folder / f"{i}.png" for i in range(70)]


@pytest.mark.parametrize("batch", [1, 16, 100])
@pytest.mark.parametrize(
    "make",
    [
        lambda folder: [Image.fromarray(array) for array in ARRAYS],
        lambda folder: ARRAYS,
        lambda folder: [
            torch.from_numpy(array).permute(2, 0, 1) for array in WANTED.transpose(0, 2, 3, 1)
        ],
        paths,
        lambda folder: list(map(str, paths(folder))),
        lambda folder: Pictures(labelled=False),
    ],
    ids=["pictures", "arrays", "tensors", "paths", "texts", "dataset"],
)
def test_images_come_as_they_are_listed(tmp_path, make, batch):
    source = open_source(make(tmp_path), limit=67)
    values, labels = read(source, batch)
    assert labels is None
    assert np.array_equal(values, WANTED[:67])


def test_images_alone_may_come_in_tuples_of_one():
    tensors = TensorDataset(torch.from_numpy(WANTED))
    for source in (tensors, DataLoader(tensors, batch_size=9)):
        values, labels = read(open_source(source))
        assert labels is None
        assert np.array_equal(values, WANTED)


@pytest.mark.parametrize("batch", [1, 16, 100])
def test_labels_come_with_their_images(batch):
    wanted = [i % 3 for i in range(70)]
    tensors = TensorDataset(torch.from_numpy(WANTED), torch.tensor(wanted))
    for source in (Pictures(), tensors, DataLoader(tensors, batch_size=9), [*Pictures()]):
        values, labels = read(open_source(source), batch)
        assert np.array_equal(values, WANTED)
        assert labels.tolist() == wanted
    given = read(open_source(Pictures(), labels=range(70)), batch)
    assert given[1].tolist() == list(range(70))


def test_pictures_are_scaled_as_files_are(tmp_path):
    files = open_source(tmp_path, size=5, channels=1) if paths(tmp_path) else None
    listed = open_source([Image.fromarray(array) for array in ARRAYS], size=5, channels=1)
    by_name = sorted(range(70), key=lambda i: f"{i}.png")
    assert np.array_equal(read(files)[0], read(listed)[0][by_name])


def test_what_cannot_be_read_is_named_or_left_out(tmp_path):
    listed = paths(tmp_path)
    listed[4].write_bytes(b"nothing")
    with pytest.raises(SourceError, match="example 4"):
        read(open_source(listed))
    source = open_source(listed, skip_bad=True, labels=range(70))
    _, labels = read(source, 8)
    assert labels.tolist() == [i for i in range(70) if i != 4]
    assert [name for name, _ in source.skipped] == [f"example 4, {listed[4]}"]
    with pytest.raises(SourceError, match="none of the 1"):
        open_source([listed[4]], skip_bad=True)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([], SourceError, "without examples"),
        ([3], ArgumentError, "whose example 0 is a int"),
        (DataLoader([{"image": ARRAYS[0]}]), ArgumentError, "whose batches are a dict"),
        ([ARRAYS[0], ARRAYS[1][:4]], SourceError, "example 1 is"),
        ([(ARRAYS[0], 1), ARRAYS[1]], SourceError, "no label, unlike the first"),
        ([(ARRAYS[0], 1), (ARRAYS[1], -1)], SourceError, "label -1"),
        ([ARRAYS[0], ARRAYS[1][..., 0]], SourceError, "channels="),
    ],
)
def test_what_does_not_fit_is_told(source, error, words):
    with pytest.raises(error, match=words):
        read(open_source(source))


@pytest.mark.parametrize("most", [1, 255])
def test_a_range_that_is_not_around_0_is_asked_for(most):
    images = torch.from_numpy(WANTED.astype(np.float32)) * (most / 255)
    for source in (images, [*images], DataLoader(images, batch_size=4)):
        with pytest.raises(ArgumentError, match=rf"value_range=\(0, {most}\)"):
            open_source(source)
    mapped = read(open_source(images, value_range=(0, most)))[0]
    assert np.abs(mapped - (WANTED / 127.5 - 1)).max() < 1e-6
    kept = read(open_source(images, value_range=(-1, 1)))[0]
    assert np.array_equal(kept, images.numpy())
    assert open_source(images * 2 - most).info.count == 70


def test_values_far_outside_of_the_range_that_was_said_are_refused():
    images = np.full((3, 1, 8, 8), 0.5, np.float32)
    images[1, 0, 0, 0] = 1.2  # a filter's overshoot
    assert read(open_source(images, value_range=(0, 1)))[0].max() == pytest.approx(1.4)
    images[2, 0, 0, 0] = -1
    with pytest.raises(SourceError, match="example 2 lies far outside of value_range=0 to 1"):
        read(open_source(images, value_range=(0, 1)))


@pytest.mark.parametrize("value", [3, (1, 1), (1, 0), (0, np.inf), ("a", "b"), (0, 1, 2)])
def test_a_range_that_is_none_is_refused(value):
    with pytest.raises(ArgumentError, match="value_range: got"):
        open_source(np.zeros((2, 4), np.float32), value_range=value)
    with pytest.raises(ArgumentError, match="does not apply to uint8"):
        open_source(WANTED, value_range=(0, 1))


@pytest.mark.parametrize("old", [False, True])
def test_tensors_in_files_of_torch(tmp_path, old):
    images, labels = torch.from_numpy(WANTED), torch.arange(70)
    kinds = {
        "tensor": images,
        "pair": (images, labels),
        "listed": (images, labels.tolist()),
        "named": {"x": images, "y": labels, "about": "text"},
    }
    for name, value in kinds.items():
        path = tmp_path / f"{name}.pt"
        torch.save(value, path, _use_new_zipfile_serialization=not old)
        values, read_labels = read(open_source(path))
        assert np.array_equal(values, WANTED)
        assert name == "tensor" or read_labels.tolist() == list(range(70))
    torch.save({"about": "text"}, tmp_path / "none.pt")
    (tmp_path / "no.pt").write_bytes(b"nothing")
    for name in ("none", "no"):
        with pytest.raises(SourceError, match=name):
            open_source(tmp_path / f"{name}.pt")


class TestLoad:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))

    def test_the_same_data_are_built_once(self, tmp_path):
        np.save(tmp_path / "a.npy", WANTED)
        for source in (WANTED, torch.from_numpy(WANTED), tmp_path / "a.npy", Pictures(), "digits"):
            one, other = golddiff.load(source), golddiff.load(source)
            assert one.path == other.path
        assert golddiff.load(WANTED.copy()).path == golddiff.load(WANTED).path

    def test_other_data_labels_or_options_are_another_store(self):
        labels = np.arange(70) % 2
        stores = [
            golddiff.load(WANTED),
            golddiff.load(255 - WANTED),
            golddiff.load(WANTED, labels),
            golddiff.load(WANTED, 1 - labels),
            golddiff.load(WANTED, limit=3),
            golddiff.load("digits"),
            golddiff.load("digits", np.zeros(1797, int)),
        ]
        assert len({store.path for store in stores}) == len(stores)
        assert torch.equal(stores[3].labels, torch.from_numpy(1 - labels))

    def test_what_is_kept_beside_a_store_makes_no_other_of_it(self, tmp_path):
        """Each time that its own folder was written to, all of it was copied again."""
        store = ImageStore.build(WANTED, tmp_path / "s")
        copied = golddiff.load(store.path)
        store.artifacts.save("masks", {"a": np.zeros(3)})
        assert golddiff.load(store.path).path == copied.path
        other = ImageStore.build(255 - WANTED, tmp_path / "s", overwrite=True)
        assert torch.equal(golddiff.load(store.path).images(), other.images())

    def test_numbers_of_numpy_s_are_as_python_s(self):
        images = WANTED / np.float32(255)
        plain = golddiff.load(images, limit=3, seed=1, value_range=(0, 1))
        given = {"limit": np.int64(3), "seed": np.uint8(1), "value_range": (0, np.float32(1))}
        assert golddiff.load(images, **given).path == plain.path
        sized = golddiff.load(WANTED, size=8, channels=3)
        given = {"size": np.int32(8), "channels": np.int64(3)}
        assert golddiff.load(WANTED, **given).path == sized.path

    def test_a_cell_that_is_run_twice(self, tmp_path):
        path = tmp_path / "s"
        made = ImageStore.build(WANTED, path, exist_ok=True).path.stat().st_mtime_ns
        assert ImageStore.build(WANTED, path, exist_ok=True).path.stat().st_mtime_ns == made
        for other in (255 - WANTED, WANTED[:4], "digits"):
            with pytest.raises(ArgumentError, match="exists already"):
                ImageStore.build(other, path, exist_ok=True)
        with pytest.raises(ArgumentError, match="exists already"):
            ImageStore.build(WANTED, path)

    def test_a_cell_that_is_run_twice_with_other_labels_of_a_folder(self, tmp_path):
        """Its pictures are not read again to compare them, but labels are known before."""
        for kind in ("cat", "dog"):
            (tmp_path / "photos" / kind).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / "photos" / kind / "1.png")
        for _ in range(2):
            made = ImageStore.build(tmp_path / "photos", tmp_path / "s", [1, 0], exist_ok=True)
            assert made.labels.tolist() == [1, 0]
        with pytest.raises(ArgumentError, match="exists already"):
            ImageStore.build(tmp_path / "photos", tmp_path / "s", [0, 0], exist_ok=True)

    def test_a_cell_that_is_run_twice_over_a_folder_of_an_unprintable_name(self, tmp_path):
        """A store's manifest has the name as it is printed, the folder does not."""
        for kind in ("a\tcat", "dog"):
            (tmp_path / "two\nlines" / kind).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / "two\nlines" / kind / "1.png")
        for _ in range(2):
            made = ImageStore.build(tmp_path / "two\nlines", tmp_path / "s", exist_ok=True)
        assert made.manifest.source == r"folder two\nlines"
        assert made.class_names == [r"a\tcat", "dog"]
