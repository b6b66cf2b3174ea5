"""What the examples load is kept for this run of the tests, and not in the user's cache."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def a_cache_of_its_own(tmp_path_factory):
    before = os.environ.get("GOLDDIFF_CACHE")
    os.environ["GOLDDIFF_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["GOLDDIFF_CACHE"]
    else:
        os.environ["GOLDDIFF_CACHE"] = before
