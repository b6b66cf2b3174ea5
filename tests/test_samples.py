"""The samples of a run can be shown and saved, with what made them."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

import golddiff
from golddiff import PCA, GoldDiff, Kamb, Optimal, PaperSchedule, sample
from golddiff.system.errors import ArgumentError


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(60, (1, 8, 8)))


def test_a_run_has_a_length_a_repr_a_grid_and_saves_its_images(store, tmp_path):
    run = sample(GoldDiff(Optimal(store)), 3, steps=2, seed=5)
    assert len(run) == len(list(run)) == len(run.to_pil()) == 3
    assert "GoldDiff(Optimal)" in repr(run)
    assert len(repr(run)) < 200
    other = sample(GoldDiff(Optimal(store)), 3, steps=2, seed=5)
    assert len({run: 0, other: 1}) == 2
    assert [other, run].index(run) == 1
    assert run.grid(3).height < run.grid(1).height
    run.save(tmp_path / "run.png")
    run.save(tmp_path / "run.npz")
    run.save(tmp_path / "folder")
    with Image.open(tmp_path / "run.png") as picture:
        assert picture.text["method"] == "GoldDiff(Optimal)"
        assert picture.text["seed"] == "seed 5"
        assert picture.text["software"] == f"golddiff {golddiff.__version__}"
    arrays = np.load(tmp_path / "run.npz")
    assert np.array_equal(arrays["images"], run.images.numpy())
    names = sorted(path.name for path in (tmp_path / "folder").iterdir())
    assert names == ["0000.png", "0001.png", "0002.png", "grid.png"]
    with Image.open(tmp_path / "folder" / "0001.png") as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(run.to_pil()[1]))


class Network(torch.nn.Module):
    def __init__(self, store, dtype):
        super().__init__()
        self.store, self.dtype = store, dtype
        self.weight = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x, sigma, labels=None):
        return (self.weight * x).to(self.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_network_of_ones_own_is_sampled_without_gradients(store, tmp_path, dtype):
    run = sample(Network(store, dtype), 2, 3)
    assert (run.images.dtype, run.images.requires_grad) == (torch.float32, False)
    run.save(tmp_path / "RUN.NPZ")  # to a name that NumPy would extend
    with np.load(tmp_path / "RUN.NPZ") as saved:
        assert np.array_equal(saved["images"], run.images)
    assert [path.name for path in tmp_path.iterdir()] == ["RUN.NPZ"]


def test_pictures_say_what_made_them(make_store, smooth_images, tmp_path):
    store = make_store(smooth_images(60, (1, 8, 8)), labels=[i % 3 for i in range(60)])
    denoiser = GoldDiff(PCA(store, 0.07), PaperSchedule(10, 15))
    start = (store.images([0])[0], 0.7)
    sample(denoiser, 2, steps=2, labels=[2, 1], start=start).save(tmp_path)
    with Image.open(tmp_path / "0001.png") as picture:
        texts = picture.text
    assert texts["labels"] == "1"
    assert re.fullmatch("images [0-9a-f]{12} with noise 0.7", texts["start"])
    assert texts["images_checksum"] == store.manifest.images_checksum
    assert texts["data"] == f"{store.manifest.source}: 60 images, 8 x 8 grey"
    assert texts["denoiser"].startswith("GoldDiff(PCA(store, mask_threshold=0.07), ")
    assert "PaperSchedule(k_min=10, k_max=15" in texts["denoiser"]
    assert str(store.path) not in "".join(texts.values())
    with Image.open(tmp_path / "grid.png") as picture:
        assert picture.text["labels"] == "2 1"
    guided = sample(golddiff.guided(PCA(store, 0.07), 2, 1.5), 1, steps=2)
    assert guided.about["denoiser"] == "guided(PCA(store, mask_threshold=0.07), 2, 1.5)"


def test_different_runs_carry_different_texts(store):
    denoiser, images = Optimal(store), store.images([0, 5])
    weights = torch.zeros(2, store.n)
    weights[1, 0] = 1
    noise = torch.randn(2, 2, *store.shape)
    pairs = [(float(size), 3) for size in range(1, 200)]
    runs = [
        [sample(denoiser, 2, steps=3), sample(denoiser, 2, sigmas=[40, 1, 0.02])],
        [sample(denoiser, 2, steps=3, start=(image, 1.0)) for image in images],
        [sample(denoiser, 2, steps=3, x_init=x.expand(2, *store.shape)) for x in noise[0]],
        [sample(denoiser.given(w), 2, steps=3) for w in weights],
    ]
    for one, other in runs:
        assert one.about != other.about
    assert runs[0][1].about["sigmas"] == "40 1 0.02"
    assert "sigmas" not in runs[0][0].about
    assert sample(Kamb(store, pairs), 1, steps=1).about["denoiser"].endswith("...")


def test_saving_to_a_folder_replaces_the_images_of_an_earlier_run_only(store, tmp_path):
    sample(Optimal(store), 6, steps=2).save(tmp_path)
    (tmp_path / "0003.png").rename(tmp_path / "0009.png")  # a renamed copy
    Image.new("L", (4, 4)).save(tmp_path / "0007.png")
    for name in ("0008.png", "2 cats.png"):
        (tmp_path / name).write_text("no picture")
    sample(Optimal(store), 2, steps=2).save(tmp_path)
    names = sorted(path.stem for path in tmp_path.iterdir())
    assert names == ["0000", "0001", "0007", "0008", "0009", "2 cats", "grid"]


def test_a_run_of_points_saves_as_npz_but_not_as_a_picture(make_store, tmp_path):
    run = sample(Optimal(make_store(torch.randn(5, 2))), 2, steps=2)
    with pytest.raises(ArgumentError, match="got points of 2 values"):
        run.save(tmp_path / "x.png")
    run.save(tmp_path / "x.npz")
