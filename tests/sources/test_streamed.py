"""Python sources (lists, Dataset, DataLoader), .pt files, value ranges, and ``golddiff.load``."""

import re
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import golddiff
from golddiff.sources import open_source
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError, SourceError

from .make import first, pixels, png, read

ARRAYS = [pixels(i) for i in range(70)]
IMAGES = np.stack([first(array) for array in ARRAYS])


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(IMAGES)


class Counted(Streamed):
    def __len__(self):
        return 70


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
            torch.from_numpy(array).permute(2, 0, 1) for array in IMAGES.transpose(0, 2, 3, 1)
        ],
        paths,
        lambda folder: list(map(str, paths(folder))),
        lambda folder: Pictures(labelled=False),
        lambda folder: Counted(),
    ],
    ids=["pictures", "arrays", "tensors", "paths", "texts", "dataset", "iterable"],
)
def test_images_keep_the_order_of_the_list(tmp_path, make, batch):
    source = open_source(make(tmp_path), limit=67)
    values, labels = read(source, batch)
    assert labels is None
    assert np.array_equal(values, IMAGES[:67])


def test_tuples_of_one_tensor_are_unlabelled_images():
    tensors = TensorDataset(torch.from_numpy(IMAGES))
    for source in (tensors, DataLoader(tensors, batch_size=9)):
        values, labels = read(open_source(source))
        assert labels is None
        assert np.array_equal(values, IMAGES)


@pytest.mark.parametrize("batch", [1, 16, 100])
def test_labels_come_with_their_images(batch):
    expected = [i % 3 for i in range(70)]
    tensors = TensorDataset(torch.from_numpy(IMAGES), torch.tensor(expected))
    for source in (Pictures(), tensors, DataLoader(tensors, batch_size=9), [*Pictures()]):
        values, labels = read(open_source(source), batch)
        assert np.array_equal(values, IMAGES)
        assert labels.tolist() == expected
    replaced = read(open_source(Pictures(), labels=range(70)), batch)
    assert replaced[1].tolist() == list(range(70))


def test_pil_images_are_scaled_as_files_are(tmp_path):
    files = open_source(tmp_path, size=5, channels=1) if paths(tmp_path) else None
    listed = open_source([Image.fromarray(array) for array in ARRAYS], size=5, channels=1)
    by_name = sorted(range(70), key=lambda i: f"{i}.png")
    assert np.array_equal(read(files)[0], read(listed)[0][by_name])


def test_a_tilde_in_a_listed_path_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.png").write_bytes(png(3))
    assert np.array_equal(read(open_source(["~/a.png"]))[0], [first(pixels(3))])


def test_unreadable_files_are_named_or_skipped(tmp_path):
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
    ("source", "error", "message"),
    [
        ([], SourceError, "without examples"),
        (Streamed(), ArgumentError, r"give a list of its images.*dataset\.take\(1000\)"),
        ([3], ArgumentError, "whose example 0 is a int"),
        (DataLoader([{"image": ARRAYS[0]}]), ArgumentError, "whose batches are a dict"),
        (DataLoader(ARRAYS, batch_size=None), ArgumentError, "batch_size=None; give its dataset"),
        ([ARRAYS[0], ARRAYS[1][:4]], SourceError, "example 1 is"),
        ([(ARRAYS[0], 1), ARRAYS[1]], SourceError, "no label, unlike the first"),
        ([(ARRAYS[0], 1), (ARRAYS[1], -1)], SourceError, "label -1"),
        ([ARRAYS[0], ARRAYS[1][..., 0]], SourceError, "channels="),
    ],
)
def test_invalid_examples_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        read(open_source(source))


@pytest.mark.parametrize("most", [1, 255])
def test_floats_that_are_not_around_0_require_value_range(most, tmp_path):
    images = torch.from_numpy(IMAGES.astype(np.float32)) * (most / 255)
    np.save(tmp_path / "a.npy", images.numpy())
    np.savez(tmp_path / "a.npz", images=images.numpy())
    torch.save(images, tmp_path / "a.pt")
    files = [tmp_path / name for name in ("a.npy", "a.npz", "a.pt")]
    for source in (images, [*images], DataLoader(images, batch_size=4), *files):
        with pytest.raises(ArgumentError, match=rf"value_range=\(0, {most}\)"):
            open_source(source)
    mapped = read(open_source(images, value_range=(0, most)))[0]
    assert np.abs(mapped - (IMAGES / 127.5 - 1)).max() < 1e-6
    unchanged = open_source(images, value_range="any")
    assert np.array_equal(read(unchanged)[0], images.numpy())
    assert not unchanged.info.is_pixels
    assert open_source(images * 2 - most).total == 70
    for path in files:
        assert np.array_equal(read(open_source(path, value_range=(0, most)))[0], mapped)


def test_floats_of_any_number_of_channels_require_value_range():
    patches = np.random.default_rng(0).uniform(0, 9000, (20, 6, 8, 8)).astype(np.float32)
    with pytest.raises(ArgumentError, match=r"say value_range=\([\d.e-]+, 89\d\d[\d.]*\) if"):
        open_source(patches)
    assert open_source(patches - 4500).total == 20


@pytest.mark.parametrize(("least", "most"), [(0.3, 3000), (0, 1e-6), (273.15, 275.15), (7, 7)])
def test_the_range_that_is_proposed_keeps_the_values_apart(least, most):
    images = np.linspace(least, most, 320, dtype=np.float32).reshape(5, 1, 8, 8)
    with pytest.raises(ArgumentError, match="value_range: not given") as refused:
        open_source(images)
    numbers = re.search(r"say value_range=\((\S+), (\S+)\) if", str(refused.value))
    values = read(open_source(images, value_range=(float(numbers[1]), float(numbers[2]))))[0]
    assert values.max() == pytest.approx(1, abs=1e-6)
    assert values.min() == pytest.approx(-1 if least < most else 1, abs=1e-6)


def test_masked_values_are_refused():
    patches = np.ma.masked_equal(np.array([[0.5, -9999.0], [0.1, 0.2]], np.float32), -9999)
    with pytest.raises(SourceError, match="masked values; fill them"):
        open_source(patches)
    assert open_source(np.ma.masked_equal(patches.data, 7)).total == 2


def test_one_bright_image_of_many_does_not_require_value_range():
    """Regression: each of the first images had to have a value below 0."""
    images = list(np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 1, 4, 4))
    assert read(open_source(images[::-1]))[0].max() == 1


def test_a_list_is_refused_for_the_images_that_were_read():
    images = [np.full((1, 8, 8), 0.5 + i / 1000, np.float32) for i in range(70)]
    images[66] *= -1
    assert read(open_source(np.array(images)))[0].min() < 0
    with pytest.raises(ArgumentError, match="floats of the first 64 of list of images"):
        open_source(images)
    assert read(open_source(images, value_range="any"))[0].min() < 0


def test_value_range_is_refused_for_pictures_and_stores(tmp_path):
    store = ImageStore.build(IMAGES, tmp_path / "s").path
    for source in ([Image.fromarray(ARRAYS[0])], paths(tmp_path)[0].parent, store):
        with pytest.raises(ArgumentError, match="does not apply to"):
            ImageStore.build(source, tmp_path / "out", value_range=(0, 255))


def test_values_far_outside_value_range_are_refused():
    images = np.full((3, 1, 8, 8), 0.5, np.float32)
    images[1, 0, 0, 0] = 1.2  # a filter's overshoot
    assert read(open_source(images, value_range=(0, 1)))[0].max() == pytest.approx(1.4)
    images[2, 0, 0, 0] = -1
    with pytest.raises(SourceError, match="example 2 lies far outside of value_range=0 to 1"):
        read(open_source(images, value_range=(0, 1)))
    with pytest.raises(SourceError, match="example 0 lies far outside of value_range=-1 to 1"):
        read(open_source(images + 3, value_range=(-1, 1)))


@pytest.mark.parametrize("value", ["none", 3, (1, 1), (1, 0), (0, np.inf), ("a", "b"), (0, 1, 2)])
def test_invalid_value_ranges_are_refused(value):
    with pytest.raises(ArgumentError, match="value_range: got"):
        open_source(np.zeros((2, 4), np.float32), value_range=value)
    with pytest.raises(ArgumentError, match="does not apply to uint8"):
        open_source(IMAGES, value_range=(0, 1))


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_in_pt_files(tmp_path, legacy):
    images, labels = torch.from_numpy(IMAGES), torch.arange(70)
    kinds = {
        "tensor": images,
        "pair": (images, labels),
        "listed": (images, labels.tolist()),
        "named": {"x": images, "y": labels, "about": "text"},
    }
    for name, value in kinds.items():
        path = tmp_path / f"{name}.pt"
        torch.save(value, path, _use_new_zipfile_serialization=not legacy)
        values, read_labels = read(open_source(path))
        assert np.array_equal(values, IMAGES)
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
        np.save(tmp_path / "a.npy", IMAGES)
        for source in (IMAGES, torch.from_numpy(IMAGES), tmp_path / "a.npy", Pictures(), "digits"):
            first_store, second_store = golddiff.load(source), golddiff.load(source)
            assert first_store.path == second_store.path
        assert golddiff.load(IMAGES.copy()).path == golddiff.load(IMAGES).path

    def test_other_data_labels_or_options_give_another_store(self):
        labels = np.arange(70) % 2
        stores = [
            golddiff.load(IMAGES),
            golddiff.load(255 - IMAGES),
            golddiff.load(IMAGES, labels),
            golddiff.load(IMAGES, 1 - labels),
            golddiff.load(IMAGES, limit=3),
            golddiff.load("digits"),
            golddiff.load("digits", np.zeros(1797, int)),
        ]
        assert len({store.path for store in stores}) == len(stores)
        assert torch.equal(stores[3].labels, torch.from_numpy(1 - labels))

    def test_equal_labels_of_any_type_give_the_same_store(self):
        lists = [0] * 1797
        stores = [golddiff.load("digits", of(lists)) for of in (list, np.array, torch.tensor)]
        assert len({store.path for store in stores}) == 1
        with pytest.raises(ArgumentError, match="labels have shape"):
            golddiff.load("digits", 5)

    def test_labels_that_do_not_fit_are_refused_by_what_is_allowed(self):
        for labels in ([0, -1], np.array([0, 2**63], np.uint64)):
            with pytest.raises(ArgumentError, match=r"label 1 is .*; class indices are 0 to 922"):
                golddiff.load(IMAGES[:2], labels)
        with pytest.raises(SourceError, match="and their labels as labels="):
            golddiff.load((IMAGES, np.arange(70)))

    def test_a_store_is_a_source_as_its_path_is(self, tmp_path):
        store = ImageStore.build(IMAGES, tmp_path / "s")
        assert golddiff.load(store).path == store.path
        assert golddiff.load(store, limit=3).n == 3
        assert ImageStore.build(store, tmp_path / "t").n == 70

    def test_a_bar_shows_that_a_list_is_compared_with_the_cache(self, monkeypatch):
        bars = []

        @contextmanager
        def waiting(what, shown):
            yield lambda done, total: bars.append((what, shown, done, total))

        monkeypatch.setattr("golddiff.store.cache.waiting", waiting)
        golddiff.load(ARRAYS)
        assert bars == [("looking for list of images in the cache", True, 70, 70)]

    def test_saved_artifacts_do_not_change_the_cached_copy_of_a_store(self, tmp_path):
        """Regression: each write to the store's folder caused a new copy of it."""
        store = ImageStore.build(IMAGES, tmp_path / "s")
        copied = golddiff.load(store.path)
        store.artifacts.save("masks", {"a": np.zeros(3)})
        assert golddiff.load(store.path).path == copied.path
        rebuilt = ImageStore.build(255 - IMAGES, tmp_path / "s", overwrite=True)
        assert torch.equal(golddiff.load(store.path).images(), rebuilt.images())

    def test_numpy_scalars_are_treated_as_python_numbers(self):
        images = IMAGES / np.float32(255)
        plain = golddiff.load(images, limit=3, size=8, value_range=(0, 1))
        options = {"limit": np.int64(3), "size": np.uint8(8), "value_range": (0, np.float32(1))}
        assert golddiff.load(images, **options).path == plain.path
        sized = golddiff.load(IMAGES, size=8, channels=3)
        options = {"size": np.int32(8), "channels": np.int64(3)}
        assert golddiff.load(IMAGES, **options).path == sized.path

    def test_names_of_a_folder_are_stored_in_printable_form(self, tmp_path):
        for kind in ("a\tcat", "dog"):
            (tmp_path / "two\nlines" / kind).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / "two\nlines" / kind / "1.png")
        store = ImageStore.build(tmp_path / "two\nlines", tmp_path / "s")
        assert store.manifest.source == r"folder two\nlines"
        assert store.class_names == [r"a\tcat", "dog"]


def test_images_that_differ_each_time_are_no_training_set(tmp_path):
    class Mirrored(Pictures):
        def __getitem__(self, i):
            image, label = super().__getitem__(i)
            return image.rotate(90 * int(torch.randint(4, ()))), label

    for source in (Mirrored(), DataLoader(TensorDataset(torch.from_numpy(IMAGES)), shuffle=True)):
        with pytest.raises(SourceError, match="differ each time they are read; leave out random"):
            golddiff.load(source)
    assert golddiff.ImageStore.build(Mirrored(), tmp_path / "store").n == 70
