"""Properties that hold for every training set."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golddiff import (
    PCA,
    SCFDM,
    GaussianMixture,
    GoldDiff,
    Kamb,
    NearestImage,
    Optimal,
    PaperSchedule,
    PatchMixture,
    PSPCSquare,
    Wiener,
    novelty,
)

ESTIMATORS = {
    "optimal": Optimal,
    "pca": lambda store: PCA(store, 0.05),
    "pca 2x2": lambda store: PCA(store, 0.05, share="2x2"),
    "kamb": lambda store: Kamb(store, patch_sizes=3),
    "scfdm": lambda store: SCFDM(store, 0.3, copies=3),
    "pspc": lambda store: PSPCSquare(store, 3),
}
GOLDEN = {
    f"golddiff-{name} {variant}": lambda store, f=f, v=variant: GoldDiff(
        f(store), PaperSchedule(k_min=0.2, k_max=0.5, m_min=0.5, m_max=0.8, variant=v)
    )
    for name, f in ESTIMATORS.items()
    for variant in ("text", "released")
}
FITTED = {
    "wiener": Wiener,
    "mixture": GaussianMixture,
    "patches": lambda store: PatchMixture(store, side=4),
}
EVERY = {**ESTIMATORS, **GOLDEN, **FITTED, "nearest": NearestImage}

sigmas = st.floats(0.002, 100).map(lambda s: float(np.float32(s)))
seeds = st.integers(0, 2**31)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(90, (3, 8, 8)), torch.arange(90) % 3)


@pytest.mark.parametrize("name", [*ESTIMATORS, *GOLDEN])
@given(sigma=sigmas, seed=seeds)
@settings(max_examples=8)
def test_outputs_stay_inside_the_range_of_the_data(store, name, sigma, seed):
    x = sigma * torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    images = store.images()
    low, high = images.amin(0), images.amax(0)
    if "kamb" in name:  # values may come from any position
        low, high = images.amin((0, 2, 3))[:, None, None], images.amax((0, 2, 3))[:, None, None]
    y = EVERY[name](store)(x, sigma)
    assert (y >= low - 1e-5).all()
    assert (y <= high + 1e-5).all()


@pytest.mark.parametrize("name", [*ESTIMATORS, "wiener", "golddiff-optimal text"])
@given(sigma=sigmas, seed=seeds)
@settings(max_examples=5)
def test_permuting_the_store_changes_nothing(make_store, smooth_images, name, sigma, seed):
    generator = torch.Generator().manual_seed(seed)
    pixels = smooth_images(60, (1, 6, 6), seed % 1000)
    shuffled = pixels[torch.randperm(60, generator=generator)]
    x = sigma * torch.randn(2, 1, 6, 6, generator=generator)
    original, permuted = (EVERY[name](make_store(p))(x, sigma) for p in (pixels, shuffled))
    assert (original - permuted).abs().max() < 1e-5


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("value", [0, 77, 255])
def test_identical_images_are_the_output(make_store, name, value):
    store = make_store(torch.full((20, 3, 8, 8), value, dtype=torch.uint8))
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for sigma in (0.002, 1.0, 80.0):
        assert (EVERY[name](store)(x, sigma) - (value / 127.5 - 1)).abs().max() < 1e-5


@pytest.mark.parametrize("name", EVERY)
def test_a_single_image_is_the_output(make_store, smooth_images, name):
    store = make_store(smooth_images(1, (3, 8, 8)))
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    y = EVERY[name](store)(x, 0.5)
    if "kamb" not in name and name != "patches":  # these may move the image's patches
        assert (y - store.images()).abs().max() < 1e-5
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("name", EVERY)
def test_a_query_does_not_depend_on_its_batch(store, queries, name):
    denoiser = EVERY[name](store)
    for sigma in (0.05, 1.0, 20.0):
        x = queries(store, sigma, b=16)
        alone = torch.cat([denoiser(x[i : i + 1], sigma) for i in range(16)])
        assert (denoiser(x, sigma) - alone).abs().max() < 1e-6


@pytest.mark.parametrize("name", EVERY)
def test_sigma_and_label_may_differ_by_query(store, queries, name):
    denoiser = EVERY[name](store)
    x = queries(store, 1.0, b=4)
    sigma = torch.tensor([0.1, 5.0, 0.1, 0.7])
    labels = torch.tensor([2, 0, 1, 2])
    together = denoiser(x, sigma, labels)
    for i in range(4):
        alone = denoiser(x[i : i + 1], float(sigma[i]), int(labels[i]))
        assert (together[i : i + 1] - alone).abs().max() < 1e-6


class CountedLevel(float):
    """A noise level; the class counts comparisons between noise levels."""

    comparisons = 0
    __hash__ = float.__hash__

    def __eq__(self, other):
        CountedLevel.comparisons += 1
        return float(self) == float(other)


def test_many_queries_are_grouped_in_one_pass(make_store, monkeypatch):
    """Each is looked up once; comparing all pairs took 17 s for 20,000 queries."""
    denoiser, x = Wiener(make_store(torch.randn(5, 2))), torch.zeros(500, 2)
    levels = [CountedLevel(1.0) for _ in x]
    monkeypatch.setattr(denoiser, "checked", lambda *_: (x.numpy(), levels, [None] * len(x)))
    denoiser(x, 1.0)
    assert 0 < CountedLevel.comparisons < 2 * len(x)


@pytest.mark.parametrize(
    "name", ["optimal", "kamb", "scfdm", "pspc", "nearest", "wiener", "golddiff-optimal text"]
)
def test_a_label_equals_a_store_of_that_class(store, make_store, queries, name):
    rows = torch.nonzero(store.labels == 1).flatten().tolist()
    only = make_store(torch.from_numpy(np.asarray(store.flat)[rows].reshape(-1, *store.shape)))
    x = queries(store, 0.5)
    assert (EVERY[name](store)(x, 0.5, labels=1) - EVERY[name](only)(x, 0.5)).abs().max() < 1e-5


def test_the_class_narrows_pca_images_but_not_its_mask(store, queries):
    from reliability import reference
    from tests.conftest import float64_images

    images = float64_images(store)
    mask = reference.pca_mask(0.5, images, 0.05)
    members = images[(store.labels == 1).numpy()]
    x = queries(store, 0.5, b=1)
    direct = reference.pca(x.double().numpy().reshape(-1), 0.5, members, mask)
    got = PCA(store, 0.05)(x, 0.5, labels=1).numpy().reshape(-1)
    assert np.abs(got - direct).max() < 1e-4


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", EVERY)
def test_the_number_of_threads_changes_nothing(store, queries, name):
    x = queries(store, 0.7, b=3)
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)  # the fixture restores it
        results.append(EVERY[name](store)(x, 0.7))
    limit = 1e-6 if name in FITTED else 0  # these use BLAS products
    assert all((r - results[0]).abs().max() <= limit for r in results[1:])


def test_noise_levels_and_labels_may_be_numpy_arrays_of_any_stride(store, queries):
    x, optimal = queries(store, 0.7, b=2), Optimal(store)
    levels, labels = np.array([0.5, 2.0]), np.array([1, 2])
    expected = optimal(x, [2.0, 0.5], labels=[2, 1])
    assert torch.equal(optimal(x, levels[::-1], labels=labels[::-1]), expected)


def test_images_may_be_tensors_of_any_float_type_and_strides(store, queries):
    denoiser = Optimal(store)
    x = queries(store, 1.0, 2).half().float()
    expected = denoiser(x, 1.0)
    for same in (
        *(x.to(dtype) for dtype in (torch.float16, torch.float64)),
        x.contiguous(memory_format=torch.channels_last),
        x.repeat(1, 1, 1, 2)[..., :8],
        torch._neg_view(-x),  # as the imaginary part of a conjugate is
    ):
        assert torch.equal(denoiser(same, 1.0), expected)
        assert torch.equal(novelty(same, store).distances, novelty(x, store).distances)
