"""The pages on estimators and supports of one's own: their examples run over shards too."""

import pytest

import golddiff
from golddiff.estimators.registry import create
from tests.docs.pages import DOCS, examples, run

TOLERANCE = 1e-5


@pytest.fixture
def of_page(tmp_path, monkeypatch):
    """What the examples of a page define, once they have run on a single store."""
    return lambda name: run(DOCS / name, tmp_path, monkeypatch)


def test_the_example_of_an_estimator_runs_over_two_shards(of_page, two, digits, queries):
    example = of_page("add-an-estimator.md")["Pooled"]
    x = queries(digits, 0.5, 2)
    for schedule in (None, golddiff.PaperSchedule(), golddiff.PaperSchedule(variant="released")):
        one, many = (example(store, 4) for store in (digits, two))
        if schedule is not None:
            one, many = (golddiff.GoldDiff(base, schedule) for base in (one, many))
        assert (many(x, 0.5) - one(x, 0.5)).abs().max() < TOLERANCE
    (mine,), (theirs,) = (example(s, 4).attribute(x[:1], 0.5) for s in (digits, two))
    assert (mine.reconstruct() - theirs.reconstruct()).abs().max() < TOLERANCE
    one, many = (create("adaptive-pooled", store, tol=0.05) for store in (digits, two))
    assert (many(x, 0.5) - one(x, 0.5)).abs().max() < TOLERANCE
    # One file, as the page says, and short.
    assert len(examples(DOCS / "add-an-estimator.md")[0].strip().splitlines()) < 60


def test_the_example_of_a_support_works_over_two_shards(of_page, two, digits, queries):
    schedule = of_page("add-a-support.md")["HeadAndTail"](50, 50)
    x = queries(digits, 2.0, 2)
    for base in (golddiff.Optimal, golddiff.PCA, lambda s: golddiff.Kamb(s, 3)):
        one, many = (golddiff.GoldDiff(base(s), schedule, seed=3) for s in (digits, two))
        assert (many(x, 2.0, 4) - one(x, 2.0, 4)).abs().max() < TOLERANCE
