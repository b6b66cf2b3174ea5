"""Public functions refuse a wrong argument in one line that names it, whatever it is."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import golddiff
from golddiff import ArgumentError, Optimal, PaperSchedule
from golddiff.estimators.operators import kept, known_of
from golddiff.samplers import initial_noise, noise_levels


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(20, (3, 6, 6)), torch.arange(20) % 2)


VALUES = [None, True, -1, 0, 1.5, float("nan"), "abc", [1, 2], torch.ones(3), object()]


@pytest.mark.parametrize(
    ("name", "allowed", "call"),
    [
        ("n", [], lambda store, n: initial_noise(n, store.shape, 0)),
        ("shape", [[1, 2]], lambda store, shape: initial_noise(2, shape, 0)),
        ("seed", [0], lambda store, seed: initial_noise(2, store.shape, seed)),
        ("start", [None, 1.5], lambda store, start: noise_levels(3, "heun", start)),
        ("start", [1.5], lambda store, level: _sample(store, start=(_zeros(store), level))),
        ("columns", [None], lambda store, columns: _sample(store).grid(columns)),
        ("sigma", [1.5], lambda store, sigma: PaperSchedule().budgets(sigma, 100)),
        ("n", [], lambda store, n: PaperSchedule().budgets(1.0, n)),
        ("mask", [], lambda store, mask: kept(mask)),
        ("upscale", [], lambda store, factor: known_of(_picture(), store.shape, upscale=factor)),
        ("share", [None], lambda store, share: golddiff.PCA(store, share=share)),
        ("batch", [], lambda store, b: golddiff.evaluate(Optimal(store), Optimal(store), batch=b)),
        ("count", [], lambda store, count: _attribution(store).top_images(count)),
        ("denoiser", [], lambda store, d: golddiff.pixel_sources(d, _zeros(store), 1.0, 0, 0)),
        ("denoiser", [], lambda store, d: golddiff.write_report(_sample(store), d, "a.html")),
        ("samples", [], lambda store, s: golddiff.write_report(s, Optimal(store), "a.html")),
        ("save_directory", ["abc"], lambda store, path: _unet(store).save_pretrained(path)),
        ("pretrained_model", [], lambda store, path: golddiff.AnalyticUNet.from_pretrained(path)),
    ],
)
def test_a_wrong_argument_is_named(store, name, allowed, call):
    for value in VALUES:
        if not any(type(value) is type(a) and value == a for a in allowed):
            with pytest.raises(ArgumentError, match=rf"^{name}"):
                call(store, value)


@pytest.mark.parametrize("error", [KeyError("a"), ZeroDivisionError(), AssertionError("b")])
def test_an_operator_that_fails_is_named(store, error):
    def operator(images):
        raise error

    with pytest.raises(ArgumentError, match="operator: fails on"):
        golddiff.log_likelihood(store, operator, torch.zeros(1, 3), 0.1)


def test_rows_of_images_may_be_a_tensor_that_numpy_cannot_read(store):
    with pytest.raises(ArgumentError, match="indices: got float32"):
        store.images(torch.ones(2, requires_grad=True))
    with pytest.raises(ArgumentError, match=r"indices: got .* on meta"):
        store.images(torch.ones(2, dtype=torch.int64, device="meta"))


def test_numpy_integers_are_settings_of_an_evaluation_and_reach_its_json(store):
    settings = {name: np.int64(2) for name in ("n", "steps", "seed", "batch")}
    found = golddiff.evaluate(Optimal(store), Optimal(store), **settings)
    assert json.loads(json.dumps(found.figures()))["seed"] == 2


def _picture():
    return Image.new("RGB", (12, 12))


def _zeros(store):
    return torch.zeros(store.shape)


def _sample(store, **arguments):
    return golddiff.sample(Optimal(store), 1, 1, **arguments)


def _attribution(store):
    return Optimal(store).attribute(torch.zeros(1, *store.shape), 1.0)[0]


def _unet(store):
    return golddiff.AnalyticUNet(Optimal(store))
