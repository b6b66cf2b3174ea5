"""The cheapest way whose errors are small enough is found, and none is measured past its cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.adaptive import racing
from golddiff.adaptive.calibration import NOISED, SAMPLED
from golddiff.adaptive.enough import NearlyAllWithin
from golddiff.adaptive.plan import FULL, Kind, Plan, few_of
from golddiff.adaptive.racing import Option, Way, cheapest

WHOLE = Plan(FULL, 5000, 0.0)


class Looker:
    tiles, images = 1, 5000

    def __init__(self, choosing, needed):
        self.choosing, self.needed = choosing, needed

    def work(self, name, k):
        return self.choosing

    def square(self, k):
        return 0.0 if k >= self.needed else 1.0


class Probe:
    """One whose mean is its mean squared error."""

    kind = SAMPLED

    def square(self, mean):
        return mean


class NoneLeft:
    def __call__(self, squares):
        return bool((squares == 0).all())

    def refuses(self, squares):
        return False


none_left = NoneLeft()


class Chosen:
    """Stands for what estimators make of images: means by a function of how many."""

    def __init__(self, mean):
        self._mean = mean

    def mean(self, k):
        return self._mean(k), k

    def mean_of_few(self, k):
        return self._mean(few_of(k))


@pytest.fixture
def race(monkeypatch):
    """Race ways of (choosing, each, needed images): the plan, its work, and the k measured."""
    monkeypatch.setattr(racing, "_Chosen", lambda e, way, s, i, p: Chosen(square_of(way)))
    measured = []

    def square_of(way):
        def square(k):
            measured.append((way.kind, k, way.work(k)))
            return way.looker.square(k)

        return square

    def run(ways, full_cost=5000.0):
        measured.clear()
        made = [
            Way(Kind("nearest", side), Looker(choosing, needed), each)
            for side, (choosing, each, needed) in enumerate(ways, 1)
        ]
        options = [Option(way.looker.choosing, lambda way=way: way) for way in made]
        plan = cheapest(None, options, 1.0, [Probe()], none_left, WHOLE, full_cost)
        work = full_cost if plan == WHOLE else made[plan.kind.side - 1].work(plan.k)
        return plan, work, list(measured)

    return run


NUMBERS = st.tuples(st.floats(0, 2000), st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 9000))


def test_the_cheaper_of_two(race):
    plan, work, measured = race([(0.0, 1.0, 600), (50.0, 1.0, 100)])
    assert plan.kind.side == 2
    assert 100 <= plan.k <= 128
    others = [spent for kind, _, spent in measured if kind.side == 1]
    assert max(others) <= 2 * work


def test_more_images_where_they_take_next_to_nothing(race):
    plan, work, measured = race([(4000.0, 0.5, 40)])
    assert plan.k >= 8 * 40
    assert work <= racing.NEXT_TO_NOTHING * (4000.0 + 0.5 * 64)
    assert max(k for _, k, _ in measured) <= 64  # not measured again


def test_no_more_images_where_these_take_the_time(race):
    plan, _, measured = race([(0.0, 1.0, 100)])
    assert plan.k in [k for _, k, _ in measured]


def test_none_is_enough(race):
    plan, _, measured = race([(0.0, 1.0, 9000), (10.0, 2.0, 9000)])
    assert plan == WHOLE
    assert max(work for _, _, work in measured) < 5000


def test_what_costs_more_to_choose_than_all_is_not_made(race):
    plan, _, measured = race([(6000.0, 1.0, 10)])
    assert plan == WHOLE
    assert not measured


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_no_way_would_have_been_cheaper_by_more_than_the_steps_between_sizes(ways):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            racing,
            "_Chosen",
            lambda e, way, s, i, p: Chosen(lambda k: float(k < way.looker.needed)),
        )
        made = [
            Way(Kind("nearest", side), Looker(choosing, needed), each)
            for side, (choosing, each, needed) in enumerate(ways, 1)
        ]
        options = [Option(way.looker.choosing, lambda way=way: way) for way in made]
        plan = cheapest(None, options, 1.0, [Probe()], none_left, WHOLE, 5000.0)
    work = 5000.0 if plan == WHOLE else made[plan.kind.side - 1].work(plan.k)
    for way in made:
        needed = max(32, way.looker.needed)
        if needed <= Looker.images - 1:
            bound = way.work(int(1.25 * needed) + 1)
            assert work <= racing.NEXT_TO_NOTHING * bound + 1e-6
    if plan != WHOLE:
        assert plan.k >= made[plan.kind.side - 1].looker.needed


class Query:
    """One whose mean is off by ``off`` / sqrt(k) and nothing else."""

    def __init__(self, kind, off):
        self.kind, self.off = kind, off

    def mean(self, k):
        return np.full(4, self.off / k**0.5, np.float32)

    def square(self, mean):
        return float(np.mean(mean**2))


def settled(monkeypatch, queries, full_cost, checked=True, tol=0.05):
    """The plan for some queries, of 100 + k a query for k nearest images."""
    monkeypatch.setattr(racing, "_Chosen", lambda e, way, s, i, query: Chosen(query.mean))
    way = Way(Kind("nearest", 4), Looker(100.0, 0), 1.0)
    kinds = [np.flatnonzero([q.kind == kind for q in queries]) for kind in (NOISED, SAMPLED)]
    enough = NearlyAllWithin(tol, kinds)
    option = Option(100.0, lambda: way)
    return cheapest(None, [option], 1.0, queries, enough, WHOLE, full_cost, checked)


EASY, HARD = [Query(SAMPLED, 0.5)] * 6, [Query(NOISED, 10.0)] * 6


def test_hard_queries_are_weighed_with_all_images_where_they_can_be_told(monkeypatch):
    plan = settled(monkeypatch, [*EASY, *HARD], 1e6)
    assert plan.steady is not None
    assert EASY[0].off / plan.k**0.5 <= 0.05
    for query, is_steady in ((EASY[0], True), (HARD[0], False)):
        moved = query.mean(plan.k) - query.mean(few_of(plan.k))
        assert (np.mean(moved**2) <= plan.steady**2) == is_steady
    assert plan.error == pytest.approx(0.5 / plan.k**0.5)


def test_enough_for_all_is_preferred_where_it_costs_no_more(monkeypatch):
    assert settled(monkeypatch, EASY, 1e6).steady is None
    assert settled(monkeypatch, [*EASY, *HARD], 1e6, checked=False).steady is None


def test_only_what_sampling_meets_counts(monkeypatch):
    """Where points of a run are the hard ones, looking first would be lost work."""
    hard, easy = [Query(SAMPLED, 10.0)] * 6, [Query(NOISED, 0.5)] * 6
    assert settled(monkeypatch, [*hard, *easy], 3000.0) == WHOLE
