"""Stores, denoisers and runs in a session: repr, notebook picture, pickle, path argument."""

import copy
import io
import pickle

import pytest
import torch
from PIL import Image

import golddiff
from golddiff import ArgumentError, ImageStore


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return ImageStore.build(images, tmp_path_factory.mktemp("pickles") / "few.store")


METHODS = ["recommended", "optimal", "wiener", "kamb", "pca", "golddiff-pca", "adaptive-optimal"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
def test_a_copy_gives_the_same_denoised_images(store, name, make_copy):
    denoiser = golddiff.create(name, store)
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = denoiser(x, 0.5)
    torch.testing.assert_close(make_copy(denoiser)(x, 0.5), expected, rtol=0, atol=0)


def test_a_pickle_holds_no_masks(store):
    pca = golddiff.PCA(store)
    size = len(pickle.dumps(pca))
    pca(torch.zeros(1, 1, 8, 8), 0.5)
    assert len(pickle.dumps(pca)) == size < 1000


def test_unpickling_a_store_that_was_moved_raises_store_error(tmp_path):
    store = ImageStore.build(torch.zeros(3, 1, 8, 8), tmp_path / "here")
    pickled = pickle.dumps(store)
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(golddiff.StoreError, match="here"):
        pickle.loads(pickled)


def test_repr_of_a_denoiser_evaluates_to_an_equal_denoiser(store):
    names = {"ImageStore": ImageStore, **{n: getattr(golddiff, n) for n in golddiff.__all__}}
    for denoiser in (
        golddiff.PCA(store, mask_threshold=0.1, share="pixel"),
        golddiff.Kamb(store, 3),
        golddiff.GoldDiff(golddiff.Optimal(store), golddiff.PaperSchedule(variant="released"), 4),
        golddiff.GoldDiff(golddiff.Optimal(store), golddiff.AdaptiveSchedule(0.1, guarantee=True)),
    ):
        assert repr(eval(repr(denoiser), names)) == repr(denoiser)
    assert "mask_threshold=0.1" in repr(golddiff.PCA(store, mask_threshold=0.1))
    assert "mask_threshold" not in repr(golddiff.PCA(store))
    assert "thresholds" not in repr(golddiff.PSPCFlex(store))
    assert "40 x (1, 8, 8)" in str(store)


def test_estimators_and_create_accept_the_path_of_a_store(store):
    assert golddiff.PCA(str(store.path)).store.n == store.n
    assert golddiff.create("GoldDiff_PCA", store.path).store.n == store.n
    named = golddiff.create("GoldDiff_PCA", store, mask_threshold=0.1)
    assert named.base.mask_threshold == 0.1
    with pytest.raises(ArgumentError, match="store: got int"):
        golddiff.Optimal(3)
    with pytest.raises(ArgumentError, match="did you mean golddiff-pca"):
        golddiff.create("golddif-pca", store)


def test_a_denoiser_that_cannot_be_shown_can_be_sampled(store):
    class Own(golddiff.Optimal):
        def __init__(self, store, score=None):  # the name of a method, whose repr has the object's
            super().__init__(store)

    run = golddiff.sample(Own(store), 1, steps=2)
    assert "denoiser" not in run.about


def test_the_name_of_a_saved_run_may_also_be_a_folder(store, tmp_path):
    with pytest.raises(ArgumentError, match=r"x\.npy, expected .*\.webp, \.npz, or a folder"):
        golddiff.sample(golddiff.Optimal(store), 1, steps=2).save(tmp_path / "x.npy")


def test_stores_attributions_and_runs_render_as_png_in_notebooks(store):
    attribution = golddiff.PCA(store).attribute(torch.zeros(1, 1, 8, 8), 0.5)[0]
    run = golddiff.sample(golddiff.Optimal(store), n=3, steps=1)
    for shown in (store, attribution, run):
        with Image.open(io.BytesIO(shown._repr_png_())) as picture:
            assert picture.format == "PNG"
            assert picture.width >= 512
