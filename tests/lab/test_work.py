import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import golddiff
from golddiff.kernels.kamb_counts import box_additions
from golddiff.kernels.mask_tree import mask_tree
from golddiff_lab.race.machine import Machine
from golddiff_lab.race.work import (
    Work,
    dense_pca_work,
    floor_seconds,
    kamb_work,
    step_work,
    tree_additions,
)


def additions_by_hand(mask, shape):
    """Additions of tiles of side 8, 4, 2, 1: the inputs that all outputs use and no tile above."""
    c, h, w = shape
    total = 0
    for channel in range(c):
        for side in (8, 4, 2, 1):
            for top in range(0, h, side):
                for left in range(0, w, side):

                    def used(size, channel=channel, top=top, left=left):
                        first, start = top // size * size, left // size * size
                        outputs = [
                            (channel * h + y) * w + x
                            for y in range(first, min(first + size, h))
                            for x in range(start, min(start + size, w))
                        ]
                        return set.intersection(
                            *({n for n in range(c * h * w) if mask[n, q]} for q in outputs)
                        )

                    above = used(2 * side) if side < 8 else set()
                    total += len(used(side) - above)
    return total


@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 5)),
    density=st.floats(0.3, 1.0),
    seed=st.integers(0, 99),
)
def test_additions_of_a_tree_are_those_counted_tile_by_tile(shape, density, seed):
    d = int(np.prod(shape))
    mask = np.random.default_rng(seed).random((d, d)) < density
    assert tree_additions(mask_tree(mask, shape)) == additions_by_hand(mask, shape)


class Counted:
    """A number that counts its additions: the set of terms that it is the sum of."""

    done = 0

    def __init__(self, terms):
        self.terms = terms

    def __add__(self, other):
        Counted.done += 1
        assert not self.terms & other.terms
        return Counted(self.terms | other.terms)


def summed_by_thirds(numbers, n, p):
    """What ``box_sum`` does, in plain Python: (sums of p consecutive numbers, additions)."""
    Counted.done = 0
    line, out, window, used, rest = list(numbers), [None] * n, 1, 0, p
    while rest:
        digit, rest = (rest, 0) if rest <= 7 else (rest % 3, rest // 3)
        for i in range(n):
            for j in range(digit):
                term = line[i + used + j * window]
                out[i] = term if out[i] is None else out[i] + term
        used += digit * window
        if rest:
            line = [
                line[i] + line[i + window] + line[i + 2 * window] for i in range(n + p - 3 * window)
            ]
            window *= 3
    return out, Counted.done


@given(n=st.integers(1, 12), p=st.integers(1, 70))
def test_additions_of_a_box_sum_are_those_done(n, p):
    numbers = [Counted({i}) for i in range(n + p - 1)]
    sums, done = summed_by_thirds(numbers, n, p)
    assert [s.terms for s in sums] == [set(range(i, i + p)) for i in range(n)]
    assert box_additions(n, p) == done


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(60, (2, 6, 6)))


X = torch.zeros(3, 2, 6, 6)
D = 72


def test_work_of_pca_grows_with_queries_and_images(store):
    pca = golddiff.PCA(store)
    work = step_work(pca, X, 1.0)
    assert work.operations == 3 * 60 * (tree_additions(pca.tree(1.0)) + 13 * D)
    assert work.bytes == 60 * D  # one pass for all queries, a byte a value


def test_work_of_optimal_counts_only_weights_that_are_not_negligible(store):
    high = step_work(golddiff.Optimal(store), X, 1e3)
    assert high.operations == 3 * 60 * D * (3 + 2)
    x = store.images([4])
    low = step_work(golddiff.Optimal(store), x, 1e-3)
    assert low.operations == 60 * D * 3 + 1 * D * 2
    assert (high.bytes, low.bytes) == (2 * 60 * D, (60 + 1) * D)


def test_work_of_a_golden_subset_is_screening_and_the_estimator_over_it(store):
    sizes = {"k_min": 10, "k_max": 20, "m_min": 30, "m_max": 40}
    schedule = golddiff.PaperSchedule(**sizes)
    m, k = schedule.budgets(1.0, 60)
    pca = golddiff.PCA(store)
    work = step_work(golddiff.GoldDiff(pca, schedule), X, 1.0)
    proxy = 2 * 1 * 1  # 6 x 6 pooled to a quarter
    screening = 3 * 3 * (60 * proxy + m * D)
    assert work.operations == screening + 3 * k * (tree_additions(pca.tree(1.0)) + 13 * D)
    assert work.bytes == 60 * proxy * 4 + 3 * m * D + 3 * k * D  # a pass a query


def test_a_subset_of_everything_needs_no_screening(store):
    everything = golddiff.PaperSchedule(k_min=60, k_max=60, m_min=60, m_max=60)
    pca = golddiff.PCA(store)
    assert step_work(golddiff.GoldDiff(pca, everything), X, 1.0) == step_work(pca, X, 1.0)


def test_the_released_schedule_draws_screens_and_keeps(store):
    schedule = golddiff.PaperSchedule(k_min=5, k_max=20, variant="released")
    m, k = schedule.budgets(0.5, 60)
    assert 20 < m < 60
    assert k < 20
    base = golddiff.Optimal(store)
    work = step_work(golddiff.GoldDiff(base, schedule), X, 0.5)
    assert work.bytes >= m * D * 4 + 3 * 20 * D + 3 * k * D  # proxies of side 6: all values


def test_work_of_kamb_by_hand_for_one_offset():
    class OneOffset:
        store = type("S", (), {"shape": (2, 4, 5), "d": 40, "flat": np.zeros(1, np.uint8)})

        def _axes(self, sigma):
            from golddiff.kernels.kamb_cpu import Axis

            return Axis.of(4, 3, "none"), Axis.of(5, 3, "none")

    each = 3 * 2 * 6 * 7 + 6 * (5 * 2) + 5 * (4 * 2) + 4 * 5 * (4 + 2 * 2)
    work = kamb_work(OneOffset(), 1.0, 3, 10)
    assert work.operations == 3 * 10 * each
    assert work.bytes == 10 * 40


def test_wiener_is_two_products_and_other_methods_may_tell_their_own(store):
    rank = store.factor().eigenvectors.shape[1]
    assert step_work(golddiff.Wiener(store), X, 1.0).operations == 4 * 3 * D * rank

    class Own(golddiff.Wiener):
        def step_work(self, x, sigma):
            return len(x) * 10, 5

    assert step_work(Own(store), X, 1.0) == Work(30, 5)


def test_a_schedule_without_a_formula_has_no_work(store):
    class Some:
        def budgets(self, sigma, n):
            return 10, 10

        def supports(self, *args):
            raise AssertionError

    assert step_work(golddiff.GoldDiff(golddiff.PCA(store), Some()), X, 1.0) is None


def test_dense_masks_are_products():
    work = dense_pca_work(2, 5, 7, 3)
    assert work.operations == 2 * 2 * 5 * 7 * 7 + 2 * 7 * 7 * 3
    assert work.bytes == 2 * 5 * 7 * 4
    assert work.rate == "float32_matrix"


def test_the_floor_is_the_slower_of_arithmetic_and_memory():
    machine = Machine(1, float32_matrix=100, bfloat16_matrix=1, float32_add=10,
                      float32_add_block=1, copy=1000)  # fmt: skip
    assert floor_seconds(Work(50, 1), machine) == 5
    assert floor_seconds(Work(50, 1, "float32_matrix"), machine) == 0.5
    assert floor_seconds(Work(50, 9000), machine) == 9
