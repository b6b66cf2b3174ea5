"""Under ``ulimit -v``: a refusal that names the number, before anything is computed."""

import pytest

from golddiff.cli import address_space
from golddiff.cli.address_space import check_address_space
from golddiff.system.errors import ArgumentError


@pytest.fixture
def store(make_store, smooth_images):
    return make_store(smooth_images(200, (3, 8, 8)))


def test_without_a_limit_nothing_is_refused(store):
    assert address_space.left() > 0
    check_address_space(store, 64)


def test_too_little_is_refused_with_the_number(store, monkeypatch):
    monkeypatch.setattr(address_space, "left", lambda: 100e6)
    with pytest.raises(ArgumentError, match=r"needs about 40\d MB.*100.* MB is left.*ulimit -v"):
        check_address_space(store, 1)


def test_enough_is_not_refused(store, monkeypatch):
    monkeypatch.setattr(address_space, "left", lambda: 410e6)
    check_address_space(store, 1)
