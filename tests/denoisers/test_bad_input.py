"""Bad input is named, with what came and what is allowed."""

import pytest
import torch

from golddiff import PCA, Kamb, Optimal
from golddiff.store.weighing import queries_at_once
from golddiff.system.errors import ArgumentError


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
    ],
)
def test_x(denoiser, x, message):
    with pytest.raises(ArgumentError, match=message):
        denoiser(x, 1.0)


@pytest.mark.parametrize("sigma", [0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, 0.0])])
def test_sigma_is_finite_and_positive(denoiser, sigma):
    with pytest.raises(ArgumentError, match=r"sigma: got .* expected a finite number above 0"):
        denoiser(X, sigma)


def test_sigma_is_one_or_one_a_query(denoiser):
    with pytest.raises(
        ArgumentError, match=r"sigma: got shape \(3,\), expected one number or \(2,\)"
    ):
        denoiser(X, torch.ones(3))


def test_a_class_with_no_images(denoiser):
    with pytest.raises(
        ArgumentError, match=r"labels: got 7, a class with no images; .* classes 0, 1"
    ):
        denoiser(X, 1.0, labels=7)


def test_labels_of_the_wrong_length_or_type(denoiser):
    with pytest.raises(ArgumentError, match=r"labels: got shape \(3,\)"):
        denoiser(X, 1.0, labels=[0, 1, 0])
    with pytest.raises(ArgumentError, match=r"labels: got torch\.float32"):
        denoiser(X, 1.0, labels=torch.tensor([0.0, 1.0]))


def test_a_store_without_labels_has_no_classes(make_store, smooth_images):
    with pytest.raises(ArgumentError, match="the store has no labels"):
        Optimal(make_store(smooth_images(5, (1, 4, 4))))(X, 1.0, labels=0)


def test_an_empty_batch_gives_an_empty_batch(denoiser):
    assert denoiser(torch.zeros(0, 1, 4, 4), 1.0).shape == (0, 1, 4, 4)


def test_half_precision_queries_are_welcome(denoiser):
    assert denoiser(X.half(), 1.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_threshold": -0.1}, "mask_threshold: got -0.1, expected 0 to 1"),
        ({"mask_threshold": float("nan")}, "mask_threshold: got nan"),
        ({"weighting": "sws"}, "weighting: got 'sws', expected 'ss' or 'wss'"),
        ({"batch_size": 0}, "batch_size: got 0"),
    ],
)
def test_pca(denoiser, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        PCA(denoiser.store, **arguments)


class TestMemoryLimit:
    def test_a_smaller_limit_gives_the_same_images(self, make_store, smooth_images, queries):
        store = make_store(smooth_images(100, (1, 8, 8)))
        x = queries(store, 1.0, b=32)
        for estimator in (Optimal, PCA, lambda s, **k: Kamb(s, 3, **k)):
            fixed, each = estimator(store).working_bytes(100)
            tight = estimator(store, memory_limit=fixed + 3 * each)
            assert queries_at_once(tight, 100) == 3
            assert torch.equal(tight(x, 1.0), estimator(store)(x, 1.0))

    def test_one_that_cannot_hold_a_query_says_what_is_needed(self, denoiser):
        with pytest.raises(ArgumentError, match=r"memory_limit: got 1.0 kB, but one query"):
            Optimal(denoiser.store, memory_limit=1000)(X, 1.0)
        with pytest.raises(ArgumentError, match="memory_limit: got 0, expected bytes above 0"):
            Optimal(denoiser.store, memory_limit=0)
