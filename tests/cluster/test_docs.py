"""The examples of the pages "add an estimator" and "add a support" also run over shards."""

import pytest

import golddiff
from golddiff.estimators.registry import create
from tests.docs.pages import DOCS, examples, run

TOLERANCE = 1e-5


@pytest.fixture
def namespace_of(tmp_path, monkeypatch):
    """namespace_of(page): the names that the page's examples define."""
    return lambda name: run(DOCS / name, tmp_path, monkeypatch)


def test_the_example_estimator_runs_over_shards(namespace_of, split_digits, digits, queries):
    example = namespace_of("add-an-estimator.md")["Pooled"]
    x, stores = queries(digits, 0.5, 2), (digits, split_digits)
    for schedule in (None, golddiff.PaperSchedule(), golddiff.PaperSchedule(variant="released")):
        whole, split = (example(store, 4) for store in stores)
        if schedule is not None:
            whole, split = (golddiff.GoldDiff(base, schedule) for base in (whole, split))
        assert (split(x, 0.5) - whole(x, 0.5)).abs().max() < TOLERANCE
    (expected,), (found,) = (example(s, 4).attribute(x[:1], 0.5) for s in stores)
    assert (expected.reconstruct() - found.reconstruct()).abs().max() < TOLERANCE
    whole, split = (create("adaptive-pooled", store, tol=0.05) for store in stores)
    assert (split(x, 0.5) - whole(x, 0.5)).abs().max() < TOLERANCE
    # The page promises one short file.
    assert len(examples(DOCS / "add-an-estimator.md")[0].strip().splitlines()) < 60


def test_the_example_support_runs_over_shards(namespace_of, split_digits, digits, queries):
    schedule = namespace_of("add-a-support.md")["HeadAndTail"](50, 50)
    x, stores = queries(digits, 2.0, 2), (digits, split_digits)
    for base in (golddiff.Optimal, golddiff.PCA, lambda s: golddiff.Kamb(s, 3)):
        whole, split = (golddiff.GoldDiff(base(s), schedule, seed=3) for s in stores)
        assert (split(x, 2.0, 4) - whole(x, 2.0, 4)).abs().max() < TOLERANCE
