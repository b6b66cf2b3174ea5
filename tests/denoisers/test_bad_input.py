"""Errors of bad input name the argument, the value received and what is allowed."""

import re

import numpy as np
import pytest
import torch

from golddiff import (
    PCA,
    SCFDM,
    AdaptiveSchedule,
    AnalyticUNet,
    GaussianMixture,
    GoldDiff,
    ImageStore,
    Kamb,
    Optimal,
    PatchMixture,
    PSPCFlex,
    PSPCSquare,
    Wiener,
    create,
    guided,
    load_oracle,
    log_likelihood,
    metrics,
    network_like,
    novelty,
    recommended,
    restore,
    sample,
)
from golddiff.system.errors import ArgumentError, StoreError


@pytest.fixture(scope="module")
def denoiser(make_store, smooth_images):
    return Optimal(make_store(smooth_images(10, (1, 4, 4)), torch.tensor([0, 1] * 5)))


X = torch.zeros(2, 1, 4, 4)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 1, 4, 5), r"x: got shape \(2, 1, 4, 5\), expected \(B, 1, 4, 4\)"),
        (torch.zeros(1, 4, 4), r"x: got shape"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.int64), "x: got torch.int64"),
        (torch.full((2, 1, 4, 4), float("nan")), "x: image 0 of the batch holds NaN"),
        (torch.full((2, 1, 4, 4), float("inf")), "NaN or infinity"),
        ([[0.0]], "x: got list, expected a torch.Tensor"),
        (torch.zeros(2, 1, 4, 4, device="meta"), "x: got torch.strided on meta, expected a dense"),
        (torch.zeros(2, 1, 4, 4).to_sparse(), "x: got torch.sparse_coo on cpu, expected a dense"),
        (torch.full((2, 1, 4, 4), 1e19), r"x: image 0 of the batch has norm 4e\+19, expected"),
        (torch.full((2, 1, 4, 4), 3e38), r"x: image 0 of the batch has norm"),
    ],
)
def test_a_bad_x_is_refused(denoiser, x, message):
    with pytest.raises(ArgumentError, match=message):
        denoiser(x, 1.0)


@pytest.mark.parametrize("sigma", [0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, 0.0])])
def test_sigma_must_be_finite_and_positive(denoiser, sigma):
    with pytest.raises(ArgumentError, match=r"sigma: got .* expected a finite number above 0"):
        denoiser(X, sigma)


@pytest.mark.parametrize(
    "sigma",
    [None, "a", 1j, torch.tensor(1j), [1.0, "a"], {}, 10**400, torch.ones((), device="meta"),
     True, [True, True], torch.tensor([True, True])],
)  # fmt: skip
def test_sigma_must_be_a_number(denoiser, sigma):
    with pytest.raises(ArgumentError, match=r"^sigma: got [^\n]*, expected [^\n]*number[^\n]*$"):
        denoiser(X, sigma)


@pytest.mark.parametrize("labels", ["a", 2**70, [None, 1], object(), torch.ones(2, device="meta")])
def test_labels_must_be_integers(denoiser, labels):
    for call in (lambda: denoiser(X, 1.0, labels), lambda: sample(denoiser, 2, labels=labels)):
        with pytest.raises(ArgumentError, match=r"^labels: got [^\n]*, expected [^\n]*$"):
            call()


EVERY = {
    "optimal": Optimal,
    "wiener": Wiener,
    "pca": PCA,
    "kamb": lambda s: Kamb(s, 3),
    "pspc": lambda s: PSPCSquare(s, 3),
    "golden": lambda s: GoldDiff(PCA(s)),
    "network-like": network_like,
    "mixture": lambda s: GaussianMixture(s, components=2),
    "patches": lambda s: PatchMixture(s, side=2, components=2, rank=2),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("sigma", [1e-320, 1e-30, 0.002, 1.0, 1e19, 1e200, 1.7e308])
def test_far_queries_give_finite_output_or_a_one_line_error(denoiser, name, sigma):
    built = EVERY[name](denoiser.store)
    for value in (0.0, 1.0, 1e3, 1e5):
        assert built(torch.full((1, 1, 4, 4), value), sigma).isfinite().all()
    for value in (1e10, 1e15, 1e17, 1e19, 3e38):  # accepted or refused, depending on sigma
        try:
            out = built(torch.full((1, 1, 4, 4), value), sigma)
        except ArgumentError as error:
            out = torch.zeros(())
            message = str(error)
            assert re.fullmatch("x: image 0 of the batch has norm [^\n]*", message)
        assert out.isfinite().all()


@pytest.mark.parametrize("make", [*EVERY.values(), recommended, lambda s: create("pca", s)])
@pytest.mark.parametrize("store", [None, X])
def test_a_store_of_another_type_is_refused(make, store):
    with pytest.raises(ArgumentError, match=r"store: got \w+, expected an ImageStore or the path"):
        make(store)


@pytest.mark.parametrize("make", [*EVERY.values(), recommended, lambda s: create("pca", s)])
def test_a_path_without_a_store_is_refused(make):
    with pytest.raises(StoreError, match="store: digits does not exist"):
        make("digits")


def test_other_bad_arguments_are_refused(denoiser, tmp_path):
    x, pixels = torch.zeros(1, 1, 4, 4), torch.zeros(2, 1, 4, 4)
    for call, message in [
        (lambda: PCA(denoiser.store, "a"), "mask_threshold: got 'a', expected 0 to 1"),
        (lambda: GaussianMixture(denoiser.store, shrinkage="a"), "shrinkage: got 'a'"),
        (lambda: GoldDiff(denoiser, seed=-1), "seed: got -1, expected an integer from 0"),
        (lambda: sample(denoiser, 10**12), "memory: n = 1,000,000,000,000 images would take about"),
        (lambda: ImageStore.open("a\0b"), r"path: got 'a\\x00b', expected a file or folder"),
        (lambda: ImageStore.open(None), "path: got None, expected a file or folder"),
        (lambda: ImageStore.build(pixels, "a\0b"), "path: got"),
        (lambda: load_oracle("a\0b"), "path: got"),
        (lambda: novelty(x.to("meta"), denoiser.store), "images: got torch.strided on meta"),
        (lambda: metrics.mse("a", x), "images: got str, expected a torch.Tensor"),
        (lambda: AnalyticUNet(denoiser)(x, "a"), "timestep: got 'a', expected one number"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()


def test_sigma_must_be_one_number_or_one_per_query(denoiser):
    with pytest.raises(
        ArgumentError, match=r"sigma: got shape \(3,\), expected one number or \(2,\)"
    ):
        denoiser(X, torch.ones(3))


def test_a_class_with_no_images_is_refused(denoiser):
    with pytest.raises(
        ArgumentError, match=r"labels: got 7, a class with no images; .* classes 0, 1"
    ):
        denoiser(X, 1.0, labels=7)


def test_labels_of_the_wrong_length_or_type_are_refused(denoiser):
    with pytest.raises(ArgumentError, match=r"labels: got shape \(3,\)"):
        denoiser(X, 1.0, labels=[0, 1, 0])
    with pytest.raises(ArgumentError, match=r"labels: got torch\.float32"):
        denoiser(X, 1.0, labels=torch.tensor([0.0, 1.0]))


def test_labels_are_refused_by_a_store_without_labels(make_store, smooth_images):
    with pytest.raises(ArgumentError, match="the store has no labels"):
        Optimal(make_store(smooth_images(5, (1, 4, 4))))(X, 1.0, labels=0)


def test_an_empty_batch_gives_an_empty_batch(denoiser):
    assert denoiser(torch.zeros(0, 1, 4, 4), 1.0).shape == (0, 1, 4, 4)


def test_half_precision_queries_give_float32(denoiser):
    assert denoiser(X.half(), 1.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        (PCA, {"mask_threshold": -0.1}, "mask_threshold: got -0.1, expected 0 to 1"),
        (PCA, {"mask_threshold": 1.01}, "mask_threshold: got 1.01, expected 0 to 1"),
        (PCA, {"mask_threshold": float("nan")}, "mask_threshold: got nan"),
        (PCA, {"weighting": "sws"}, "weighting: got 'sws', expected 'ss' or 'wss'"),
        (PCA, {"batch_size": 0}, "batch_size: got 0"),
        (SCFDM, {"smoothing": -1}, "smoothing: got"),
        (SCFDM, {"copies": 0}, "copies: got"),
        (SCFDM, {"seed": -1}, "seed: got"),
        (GaussianMixture, {"components": 0}, "components: got 0, expected an integer of 1 or more"),
        (GaussianMixture, {"components": 2.5}, "components: got 2.5"),
        (GaussianMixture, {"rank": 0}, "rank: got 0"),
        (GaussianMixture, {"rank": True}, "rank: got True"),
        (GaussianMixture, {"shrinkage": -1}, "shrinkage: got -1"),
        (GaussianMixture, {"shrinkage": float("nan")}, "shrinkage: got nan"),
        (PatchMixture, {"side": 0}, "side: got 0, expected an integer of 1 or more"),
        (PatchMixture, {"side": 5}, "side: got 5, expected at most 4"),
        (PatchMixture, {"components": 2.5}, "components: got 2.5"),
        (PatchMixture, {"rank": True}, "rank: got True"),
        (PatchMixture, {"shrinkage": -1}, "shrinkage: got -1"),
    ],
)
def test_bad_arguments_of_a_method_are_refused(denoiser, method, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        method(denoiser.store, **arguments)


@pytest.mark.parametrize("method", [Kamb, PatchMixture, PSPCSquare, PSPCFlex])
def test_methods_that_compare_patches_refuse_points(make_store, method):
    message = rf"{method.__name__} needs images .*, got data of shape \(2,\)"
    with pytest.raises(ArgumentError, match=message):
        method(make_store("moons", limit=9))


NUMBERS = {
    "scale": lambda d, value: guided(d, 0, value).scale,
    "noise": lambda d, value: log_likelihood(d.store, torch.nn.Identity(), X, value).tolist(),
    "noise of Gaussians": lambda d, value: (
        Wiener(d.store).given_measurement(torch.nn.Identity(), X, value).noise
    ),
    "softness": lambda d, value: restore(
        PCA(d.store), X[:1], torch.nn.Identity(), value, softness=value, steps=1
    ).images.tolist(),
    "novelty": lambda d, value: recommended(d.store, value).base.mask_threshold,
    "mask_threshold": lambda d, value: PCA(d.store, value).mask_threshold,
    "smoothing": lambda d, value: SCFDM(d.store, value).smoothing,
    "tol": lambda d, value: AdaptiveSchedule(value).tol,
    "memory_limit": lambda d, value: Optimal(d.store, value).memory_limit,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_be_a_0_dim_tensor_or_array(denoiser, name):
    use = NUMBERS[name]
    expected = use(denoiser, 0.5)
    for value in (torch.tensor(0.5), np.array(0.5), np.float32(0.5), torch.tensor(0.5).half()):
        assert use(denoiser, value) == expected
    for value in (torch.tensor([0.5]), torch.tensor(True), torch.tensor(1j), X.to("meta").sum()):
        with pytest.raises(ArgumentError, match=f"^{name.split()[0]}.*: got .*, expected "):
            use(denoiser, value)
