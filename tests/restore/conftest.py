"""Images of the tests of restoring."""

import pytest

from tests.restore.operators_for_tests import SHAPE


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(60, SHAPE))


@pytest.fixture(scope="module")
def other(smooth_images):
    return smooth_images(3, SHAPE, seed=9).float() / 127.5 - 1
