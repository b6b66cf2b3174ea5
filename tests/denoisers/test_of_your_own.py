"""Methods and schedules that a user writes: wrong results are refused and named."""

import numpy as np
import pytest
import torch

from golddiff import ArgumentError, GoldDiff, Optimal, create
from golddiff.denoiser import Denoiser
from golddiff.estimators import registry
from golddiff.posterior import Posterior
from golddiff.store.nearest import Pixels
from golddiff.support import Support

X = torch.zeros(2, 1, 4, 4)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(10, (1, 4, 4)))


@pytest.mark.parametrize(
    ("supports", "message"),
    [
        ([Support(np.array([0, 10]))] * 2, "support: got rows 0 to 10, expected 0 to 9"),
        ([Support(np.array([-1]))] * 2, "support: got rows -1 to -1, expected 0 to 9"),
        ([Support(np.array([0.0]))] * 2, "support: got rows of float64, expected an array"),
        ([Support(np.ones(10, bool))] * 2, "support: got rows of bool, expected an array"),
        ([Support([1, 2])] * 2, "support: got rows of list, expected an array"),
        ([Support(np.array([], np.int64))] * 2, "support: got no rows"),
        ([Support(np.array([1]), np.zeros(3))] * 2, r"got log weights \(3,\), expected \(1,\)"),
        ([Support(np.array([1, 2]), np.array([0, np.nan]))] * 2, r"NaN or \+inf, expected .* -inf"),
        ([Support(np.array([1, 2]), np.array([0, np.inf]))] * 2, r"NaN or \+inf, expected .* -inf"),
        ([np.arange(10)] * 2, "support: got ndarray, expected a golddiff.support.Support"),
        (None, "support: got NoneType, expected a golddiff.support.Support"),
        ([], "supports: got 0, expected one for each of"),
    ],
)
def test_bad_supports_are_refused_before_a_compiled_loop_reads_them(store, supports, message):
    class Schedule:
        def supports(self, store, x, sigma, label, seed):
            return supports and supports[: len(x)]

    golden = GoldDiff(Optimal(store), Schedule())
    for use in (golden, golden.posterior, golden.attribute):
        with pytest.raises(ArgumentError, match=message):
            use(X, 1.0)
    with pytest.raises(ArgumentError, match=message):
        golden.base.denoise_over(X.reshape(2, -1).numpy(), 1.0, supports)


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda x: None, "<class 'NoneType'>"),
        (lambda x: 0.5, "<class 'float'>"),
        (lambda x: x[0], r"\(16,\)"),
        (lambda x: x[:1], r"\(1, 16\)"),
        (lambda x: x.reshape(2, 1, 4, 4), r"\(2, 1, 4, 4\)"),
    ],
)
def test_the_shape_that_denoise_returns_is_checked(store, result, got):
    class Mine(Denoiser):
        def denoise(self, x, sigma, prior):
            return result(x)

    with pytest.raises(ArgumentError, match=rf"denoise: Mine returned {got}, expected \(2, 16\)"):
        Mine(store)(X, 1.0)


@pytest.mark.parametrize(
    "result",
    [
        None,
        (np.zeros((2, 1)), np.ones((2, 1)), np.zeros((2, 16))),
        Posterior(np.zeros((1, 1)), np.ones((1, 1)), np.zeros((1, 16))),  # of one query
        Posterior(np.zeros(2), np.ones(2), np.zeros((2, 16))),
        Posterior(np.zeros((2, 3)), np.ones((2, 3)), np.zeros((2, 16))),
    ],
)
def test_the_posterior_that_weigh_returns_is_checked(store, result):
    class Mine(Optimal):
        def weigh(self, x, sigma, part):
            return result

    with pytest.raises(ArgumentError, match=r"weigh: Mine returned .*, expected a Posterior of"):
        Mine(store)(X, 1.0)


def test_working_memory_may_be_nothing(store):
    class Mine(Optimal):
        def working_bytes(self, images):
            return 0, 0

    assert torch.equal(Mine(store)(X, 1.0), Optimal(store)(X, 1.0))


@pytest.mark.parametrize("label", [None, 1])
def test_supports_of_everything_are_used_like_those_that_list_their_rows(
    make_store, smooth_images, label
):
    store = make_store(smooth_images(10, (1, 4, 4)), labels=np.arange(10) % 2)

    class EverySecond:  # of the nearest, which are everything that there is
        def supports(self, store, x, sigma, label, seed):
            nearest = store.nearest(x, 10, Pixels(), store.everything(label))
            assert not np.concatenate([support.log_importance() for support in nearest]).any()
            return [support.at(slice(0, None, 2)) for support in nearest]

    (support, _) = GoldDiff(Optimal(store), EverySecond()).supports(X, 1.0, label)
    assert np.array_equal(support.rows, store.rows_of(label)[::2])


def test_a_repr_leaves_out_what_the_object_does_not_keep(store):
    class Mine(Denoiser):
        def __init__(self, store, side, weights=None):
            super().__init__(store)
            self.weights = weights

    assert repr(Mine(store, 4)) == f"Mine({store!r})"
    assert repr(Mine(store, 4, np.ones(2))) == f"Mine({store!r}, weights={np.ones(2)!r})"


def test_a_method_is_registered_under_the_name_by_which_it_is_found(store, monkeypatch):
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    monkeypatch.setattr(registry, "SHOWN", dict(registry.SHOWN))
    registry.register("My_Method", "Mine", Optimal)
    for name in ("my-method", "My_Method", "golddiff-my-method"):
        assert isinstance(create(name, store), Optimal | GoldDiff)
