"""A store returns its images exactly, and refuses damaged files."""

import errno
import json
import multiprocessing
import os
import pickle
import shutil
import signal

import numpy as np
import pytest
import torch

import golddiff
import golddiff.store.build
from golddiff.sources.source import Batch, Skipped, SourceInfo
from golddiff.store.images import ImageStore
from golddiff.store.manifest import FORMAT, VERSION, Manifest, sealed
from golddiff.system.errors import ArgumentError, SourceError, StoreError


@pytest.fixture
def pixels(smooth_images):
    return smooth_images(40, (3, 8, 8))


@pytest.fixture
def store(tmp_path, pixels):
    return ImageStore.build(pixels, tmp_path / "store", torch.arange(40) % 4)


class TestContents:
    def test_stored_pixels_are_exact(self, store, pixels):
        assert torch.allclose(store.images(), pixels.float() / 127.5 - 1, atol=1e-7)
        assert np.array_equal(store.flat, pixels.reshape(40, -1).numpy())
        assert (store.n, store.shape, store.d, len(store)) == (40, (3, 8, 8), 192, 40)
        assert torch.equal(store.labels, torch.arange(40) % 4)

    def test_stored_floats_are_exact(self, make_store):
        latents = torch.randn(9, 4, 3, 3) * 5
        assert torch.equal(make_store(latents).images(), latents)

    def test_floats_whose_range_is_given_are_pixels(self, pixels, make_store, tmp_path):
        black_and_white = 255 * (pixels > 127).to(torch.uint8)
        floats = black_and_white.float() / 255  # torchvision's ToTensor
        stores = (
            ImageStore.build(floats, tmp_path / "floats", value_range=(0, 1)),
            make_store(black_and_white),
            make_store(2 * floats - 1),
        )
        assert [store.is_pixels for store in stores] == [True, True, False]
        ranged, plain, latents = (
            golddiff.sample(golddiff.Wiener(store), 8, steps=3).images for store in stores
        )
        assert torch.allclose(ranged, plain, atol=1e-5)
        assert ranged.abs().max() == 1 < latents.abs().max()

    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
    def test_values_far_from_1_give_one_warning(self, make_store, caplog, scale):
        make_store(scale * np.random.default_rng(0).standard_normal((1000, 1, 4, 4)))
        make_store(np.full((9, 1, 4, 4), 127, np.uint8))
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == (scale != 1)
        assert all("give value_range=" in message for message in messages)

    def test_a_manifest_of_an_earlier_version_says_by_its_type_whether_it_holds_pixels(self, store):
        path = store.path / "manifest.json"
        body = json.loads(path.read_text())
        del body["is_pixels"], body["digest"], body["format"], body["version"]
        path.write_text(sealed(FORMAT, VERSION, body))
        assert ImageStore.open(store.path).is_pixels

    @pytest.mark.parametrize(
        "rows", [[3, 1, 1], torch.tensor([0]), slice(5, 20, 3), 7, np.arange(4)]
    )
    def test_images_come_in_the_order_of_the_rows(self, store, rows):
        listed = [rows] if isinstance(rows, int) else rows
        assert torch.equal(store.images(rows), store.images()[listed])

    @pytest.mark.parametrize("rows", [[40], [-1], [0.5]])
    def test_rows_out_of_range_are_refused(self, store, rows):
        with pytest.raises(ArgumentError, match="indices: got"):
            store.images(rows)

    @pytest.mark.parametrize(("label", "rows"), [(None, slice(None)), (2, slice(2, None, 4))])
    def test_mean_and_covariance_of_all_and_of_a_class_are_unbiased(
        self, store, pixels, label, rows
    ):
        images = (pixels.reshape(40, -1).double().numpy() / 127.5 - 1)[rows]
        factor = store.factor(label)
        covariance = (factor.eigenvectors * factor.eigenvalues) @ factor.eigenvectors.T
        assert np.abs(factor.mean - images.mean(0)).max() < 1e-12
        assert np.abs(covariance - np.cov(images.T)).max() < 1e-12

    def test_proxies_are_means_of_blocks(self, store):
        blocks = store.images().reshape(40, 3, 2, 4, 2, 4).mean((3, 5)).reshape(40, -1)
        assert np.abs(store.proxies((3, 2, 2)) - blocks.numpy()).max() < 1e-6

    def test_norms_are_euclidean_and_the_radius_is_the_largest(self, store):
        norms = store.images().flatten(1).norm(dim=1)
        saved = np.fromfile(store.path / "norms.bin", np.float32)
        assert np.abs(saved - norms.numpy()).max() < 1e-4
        assert store.radius == pytest.approx(float(norms.max()), rel=1e-6)

    def test_the_covariance_of_large_images_is_computed_at_first_use(self, tmp_path, monkeypatch):
        monkeypatch.setattr(golddiff.store.build, "LARGE", 10)
        images = torch.randint(0, 256, (50, 1, 5, 5), dtype=torch.uint8)
        store = ImageStore.build(images, tmp_path / "late")
        assert not (store.path / "factor.safetensors").exists()
        eigenvalues = store.factor().eigenvalues
        reopened = ImageStore.open(store.path)
        reopened.verify()
        assert np.array_equal(reopened.factor().eigenvalues, eigenvalues)


class TestDamage:
    @pytest.mark.parametrize("name", ["pixels.bin", "labels.bin", "proxies.bin", "norms.bin"])
    def test_open_names_a_truncated_file(self, store, name):
        path = store.path / name
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(StoreError, match=f"{name} has .* bytes, expected"):
            ImageStore.open(store.path)

    @pytest.mark.parametrize(
        "name", ["pixels.bin", "labels.bin", "proxies.bin", "norms.bin", "factor.safetensors"]
    )
    def test_verify_names_a_file_with_a_flipped_bit(self, store, name):
        store.verify()
        path = store.path / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(StoreError, match=f"{name} does not match its checksum"):
            ImageStore.open(store.path).verify()

    def test_open_refuses_a_manifest_with_a_flipped_bit(self, store):
        path = store.path / "manifest.json"
        original = path.read_bytes()
        for position in range(0, len(original) - 1, 7):
            data = bytearray(original)
            data[position] ^= 1
            path.write_bytes(data)
            try:
                opened = ImageStore.open(store.path)
            except StoreError:
                continue
            # A change of white space passes.
            assert json.loads(data) == json.loads(original), position
            assert opened.n == 40

    def test_open_names_a_missing_file(self, store):
        (store.path / "norms.bin").unlink()
        with pytest.raises(StoreError, match=r"norms.bin is missing"):
            ImageStore.open(store.path)

    def test_open_names_a_file_that_may_not_be_read(self, store, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: path.name != "labels.bin")
        with pytest.raises(StoreError, match=r"labels\.bin cannot be read"):
            ImageStore.open(store.path)

    def test_open_names_an_unsupported_format_version(self, store):
        path = store.path / "manifest.json"
        body = json.loads(path.read_text())
        body["version"] = 99
        path.write_text(json.dumps(body))
        with pytest.raises(StoreError, match="format version 99, this golddiff reads version 1"):
            ImageStore.open(store.path)

    def test_open_refuses_a_folder_that_is_not_a_store(self, tmp_path):
        with pytest.raises(StoreError, match="does not exist"):
            ImageStore.open(tmp_path / "nothing")
        with pytest.raises(StoreError, match=r"holds no manifest.json"):
            ImageStore.open(tmp_path)
        (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
        with pytest.raises(StoreError, match="no manifest of a golddiff store"):
            ImageStore.open(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "[" * 100_000])
    def test_open_refuses_a_manifest_that_is_not_a_json_object(self, store, text):
        (store.path / "manifest.json").write_text(text)
        with pytest.raises(StoreError):
            ImageStore.open(store.path)


class FailingSource:
    """Yields three batches, then raises the error, or kills the process if it is None."""

    def __init__(self, error=None):
        self.error = error
        self.info = SourceInfo((1, 4, 4), np.dtype(np.uint8), False, True)
        self.total, self.skipped = 3, Skipped()

    def batches(self, size):
        for _ in range(3):
            yield Batch(np.zeros((size, 1, 4, 4), np.uint8), None)
        if self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise self.error


class TestBuilding:
    @pytest.mark.parametrize(
        ("error", "raised"),
        [
            (SourceError("bad"), SourceError),
            (KeyboardInterrupt(), KeyboardInterrupt),
            (OSError(errno.ENOSPC, "no space"), StoreError),
            (OSError(errno.EACCES, "denied"), StoreError),
        ],
    )
    def test_a_failed_build_leaves_no_files(self, tmp_path, error, raised):
        with pytest.raises(raised):
            golddiff.store.build.build(
                FailingSource(error), tmp_path / "s", overwrite=False, progress=False
            )
        assert list(tmp_path.iterdir()) == []

    def test_a_failed_rebuild_keeps_the_old_store(self, store, pixels):
        with pytest.raises(SourceError):
            golddiff.store.build.build(
                FailingSource(SourceError("bad")), store.path, overwrite=True, progress=False
            )
        kept = ImageStore.open(store.path)
        kept.verify()
        assert kept.n == 40
        assert [p.name for p in store.path.parent.iterdir()] == ["store"]

    def test_a_killed_build_leaves_no_store_and_the_next_build_succeeds(self, tmp_path):
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=golddiff.store.build.build,
            args=(FailingSource(), tmp_path / "s"),
            kwargs={"overwrite": False, "progress": False},
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        with pytest.raises(StoreError, match="does not exist"):
            ImageStore.open(tmp_path / "s")
        leftovers = [path for path in tmp_path.iterdir() if path.is_dir()]
        assert leftovers
        for leftover in leftovers:
            with pytest.raises(StoreError):
                ImageStore.open(leftover)
        ImageStore.build(np.ones((5, 4, 4), np.uint8), tmp_path / "s").verify()
        assert [path.name for path in tmp_path.iterdir()] == ["s"]

    def test_a_store_that_is_built_again_while_it_opens_is_no_mixture(self, store, monkeypatch):
        check, others = Manifest.check_sizes, store.images().flip(0)

        def rebuilt(manifest, folder):
            monkeypatch.undo()
            check(manifest, folder)
            ImageStore.build(others, store.path, value_range=(-1, 1), overwrite=True)

        expected = ImageStore.build(others, store.path.with_name("b"), value_range=(-1, 1))
        ImageStore.build(expected.images() * -1, store.path, value_range=(-1, 1), overwrite=True)
        monkeypatch.setattr(Manifest, "check_sizes", rebuilt)
        opened = ImageStore.open(store.path)
        assert opened.manifest.images_checksum == expected.manifest.images_checksum
        assert torch.equal(opened.images(), others)

    def test_build_overwrites_only_stores_and_only_if_asked(self, store, pixels, tmp_path):
        with pytest.raises(ArgumentError, match="exists already"):
            ImageStore.build(pixels, store.path)
        rebuilt = ImageStore.build(pixels[:5], store.path, overwrite=True)
        assert rebuilt.n == 5
        (tmp_path / "photos").mkdir()
        with pytest.raises(ArgumentError, match="not a golddiff store"):
            ImageStore.build(pixels, tmp_path / "photos", overwrite=True)

    def test_a_path_that_is_taken_is_refused_before_the_source_is_read(self, store):
        with pytest.raises(ArgumentError, match="exists already"):
            ImageStore.build("no such source", store.path)

    def test_paths_may_begin_with_the_home_folder(self, store, monkeypatch):
        monkeypatch.setenv("HOME", str(store.path.parent))
        assert ImageStore.open("~/store").path == store.path
        assert ImageStore.build(store.path, "~/copy").path == store.path.parent / "copy"

    def test_a_build_that_does_not_fit_on_the_disk_is_refused(self, tmp_path, pixels, monkeypatch):
        usage = shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(StoreError, match=r"needs about .* kB, and the disk has 1.0 kB free"):
            ImageStore.build(pixels, tmp_path / "s")

    def test_the_covariance_counts_where_the_disk_is_checked(self, tmp_path, monkeypatch):
        usage = shutil.disk_usage(tmp_path)._replace(free=10**6)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        pixels = np.zeros((400, 1, 32, 32), np.uint8)  # 0.4 MB, and a covariance of 3.3 MB
        with pytest.raises(StoreError, match=r"needs about 3\.\d MB"):
            ImageStore.build(pixels, tmp_path / "s")

    def test_a_name_that_is_too_long_is_refused(self, pixels, tmp_path):
        with pytest.raises(StoreError, match=r"cannot write .*File name too long"):
            ImageStore.build(pixels, tmp_path / ("x" * 250))

    def test_a_covariance_that_cannot_be_saved_is_still_returned(self, tmp_path, monkeypatch):
        monkeypatch.setattr(golddiff.store.build, "LARGE", 1)
        store = ImageStore.build(torch.rand(20, 3), tmp_path / "s")

        def refuse(*_, **__):
            raise PermissionError(errno.EACCES, "read-only")

        monkeypatch.setattr("pathlib.Path.touch", refuse)
        assert store.factor().eigenvectors.shape == (3, 3)
        assert not (store.path / "factor.safetensors").exists()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_build_in_an_unwritable_folder_is_refused(self, tmp_path, pixels):
        tmp_path.chmod(0o500)
        with pytest.raises(StoreError, match="cannot write"):
            ImageStore.build(pixels, tmp_path / "s")


def test_a_pickled_store_is_not_opened_on_other_images(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 1, 8, 8), dtype=np.uint8)
    store = ImageStore.build(pixels[0], tmp_path / "s")
    saved = pickle.dumps(golddiff.Optimal(store))
    assert torch.equal(pickle.loads(saved).store.images(), store.images())
    ImageStore.build(pixels[1], tmp_path / "s", overwrite=True)
    with pytest.raises(StoreError, match="holds other images than when it was pickled"):
        pickle.loads(saved)
