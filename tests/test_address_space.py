"""Under ``ulimit -v``: smaller chunks with the same result, or a refusal that names the number."""

import math

import pytest
import torch

from golddiff import PCA, GoldDiff, network_like
from golddiff.cli import address_space
from golddiff.system.errors import ArgumentError


@pytest.fixture
def store(make_store, smooth_images):
    return make_store(smooth_images(200, (3, 8, 8)))


def test_without_a_limit_nothing_changes(store):
    assert math.isinf(address_space.left()) or address_space.left() > 0
    estimator = PCA(store)
    before = estimator.memory_limit
    address_space.fit(estimator, 1)
    assert estimator.memory_limit <= before


def test_smaller_chunks_give_the_same_images(store, queries, monkeypatch):
    x = queries(store, 1.0)
    for method in (PCA(store), GoldDiff(PCA(store)), network_like(store)):
        expected = method(x, 1.0)
        monkeypatch.setattr(address_space, "left", lambda: 540e6)
        address_space.fit(method, 1)
        assert address_space.estimators(method)
        assert all(e.memory_limit <= 70e6 for e in address_space.estimators(method))
        assert torch.equal(method(x, 1.0), expected)


def test_too_little_is_refused_with_the_number(store, monkeypatch):
    monkeypatch.setattr(address_space, "left", lambda: 100e6)
    with pytest.raises(ArgumentError, match=r"needs about 46\d.* MB.*100.* MB is left.*ulimit -v"):
        address_space.fit(GoldDiff(PCA(store)), 1)
