"""Denoisers over mirrored images: the posterior means they are, and what symmetry gives."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import golddiff
from golddiff.estimators.mirror import Mirrored, Symmetrised
from golddiff.system.errors import ArgumentError

SHAPE = (2, 3, 4)


@pytest.fixture(scope="module")
def images(smooth_images):
    return smooth_images(60, SHAPE)


@pytest.fixture(scope="module")
def store(make_store, images):
    return make_store(images, torch.arange(60) % 2)


@given(seed=st.integers(0, 2**32 - 1), sigma=st.floats(0.05, 50), label=st.sampled_from([None, 1]))
def test_mirrored_is_the_posterior_mean_over_mirrored_images(store, images, seed, sigma, label):
    chosen = images if label is None else images[label::2]
    x = torch.from_numpy(np.random.default_rng(seed).normal(0, 1 + sigma, (2, *SHAPE)))
    clean = chosen.flip(-1).double() / 127.5 - 1
    logits = -((x[:, None] - clean).flatten(2) ** 2).sum(2) / (2 * sigma**2)
    expected = torch.einsum("bn,nchw->bchw", logits.softmax(1), clean)
    found = Mirrored(golddiff.Optimal(store))(x.float(), sigma, label)
    assert (found - expected).abs().max() < 1e-4


def test_symmetrised_is_the_mean_of_both_and_its_own_mirror_image(store, queries):
    x = queries(store, 1.0)
    inner = golddiff.Wiener(store)
    both = Symmetrised(inner)
    expected = (inner(x, 1.0) + inner(x.flip(-1), 1.0).flip(-1)) / 2
    assert torch.allclose(both(x, 1.0), expected, atol=1e-6)
    assert torch.allclose(both(x.flip(-1), 1.0).flip(-1), both(x, 1.0), atol=1e-6)
    assert not torch.allclose(inner(x, 1.0), expected, atol=1e-3)


def test_over_a_symmetric_set_nothing_changes(make_store, images, queries):
    store = make_store(torch.cat([images, images.flip(-1)]))
    for inner in (golddiff.Optimal(store), golddiff.Wiener(store)):
        x = queries(store, 0.7)
        for wrapped in (Mirrored(inner), Symmetrised(inner)):
            assert torch.allclose(wrapped(x, 0.7), inner(x, 0.7), atol=1e-4)


def test_neither_is_made_of_anything_else(make_store, store):
    for kind in (Mirrored, Symmetrised):
        with pytest.raises(ArgumentError, match=r"denoiser: got ImageStore, expected a Denoiser"):
            kind(store)
        with pytest.raises(ArgumentError, match=r"is over points of shape \(2,\), expected images"):
            kind(golddiff.Optimal(make_store("moons")))
