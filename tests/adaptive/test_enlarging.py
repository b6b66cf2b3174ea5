"""Error estimates of draws, their margins, and the best number of images per tile."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import f

from golddiff.posterior import Posterior
from golddiff.support import Support
from golddiff.supports import rule
from golddiff.supports.enlarging import DrawnImages, best_counts
from golddiff.supports.index.drawing import drawn, groups, uniform
from golddiff.supports.rule import DECAY

P = np.log2(DECAY)


@given(st.integers(1, 8), st.floats(1e-6, 1e2), st.integers(0, 999))
def test_best_counts_have_the_target_error_with_the_fewest_images(tiles, square, seed):
    generator = np.random.default_rng(seed)
    squares, sizes = generator.exponential(1, tiles) ** 2, generator.integers(1, 50, tiles)
    counts = 64 * 2 ** generator.integers(0, 6, tiles)
    shares = sizes / sizes.sum()

    def error(trial):
        return shares @ (squares * (trial / counts) ** -P)

    best = best_counts(squares, counts, sizes, square)
    assert np.isclose(error(best), square)
    for _ in range(20):
        trial = best * np.exp(generator.normal(0, 0.3, tiles))
        trial *= (error(trial) / square) ** (1 / P)  # the same error
        assert shares @ trial >= shares @ best * (1 - 1e-9)


def weighed(values):
    def posterior(support):
        weights = np.exp(support.log_importance())
        sums = weights @ values[support.rows]
        return Posterior(np.zeros((1, 1)), weights.sum()[None, None], sums[None])

    return lambda supports: Posterior.of_queries(
        list(map(posterior, supports)), range(len(supports))
    )


def test_the_estimate_includes_the_error_of_the_sample_drawn_from():
    """Many images are drawn twice. Each must keep its group, or the estimate misses a third."""
    rng = np.random.default_rng(0)
    population = rng.normal(size=(20_000, 40))
    proposal = np.full(1000, 1 / 1000, np.float32)

    def error_and_estimate(seed):
        sample = np.sort(rng.choice(len(population), 1000, replace=False))
        images = DrawnImages(
            lambda count, turn: drawn(proposal, sample, count, uniform((seed, turn), sample)),
            partial(groups, (seed,)),
            weighed(population),
            len(population) / len(sample),
        )
        for count in (300, 600, 900):
            images.enlarge(count)
        return np.square(images.mean() - population.mean(axis=0)).mean(), images.square()[0]

    errors, squares = zip(*map(error_and_estimate, range(60)), strict=True)
    assert np.mean(squares) == pytest.approx(np.mean(errors), rel=0.1)


@pytest.mark.parametrize("stands_for", [1, 20])
def test_images_drawn_with_certainty_have_no_error_unless_they_stand_for_others(stands_for):
    """Here the images drawn with probability 1/2 are equal, and each group has two of them."""
    values = np.array([[1.0], [2], [4], [8]] + [[0.0]] * 8)
    support = Support(np.arange(12), np.log([1.0] * 4 + [2.0] * 8))
    images = DrawnImages(lambda *_: support, lambda rows: rows % 4, weighed(values), stands_for)
    images.enlarge(12)
    assert images.mean() == pytest.approx([15 / 20])
    variance = np.var([1 / 5, 2 / 5, 4 / 5, 8 / 5], ddof=1) / 4  # of the mean of four groups
    assert images.square()[0] == pytest.approx(0 if stands_for == 1 else variance)


def test_the_support_of_several_rounds_has_the_same_mean():
    values = np.random.default_rng(0).normal(size=(9, 5))
    rounds = [Support(np.array([0, 2, 5]), np.log([1.0, 3, 2])), Support(np.arange(9), np.zeros(9))]
    images = DrawnImages(lambda _, turn: rounds[turn], lambda rows: rows % 4, weighed(values))
    for count in (3, 12):
        images.enlarge(count)
    support = images.support()
    assert support.rows.tolist() == list(range(9))
    weights = np.exp(support.log_importance())
    assert images.mean() == pytest.approx(weights @ values / weights.sum())


def test_a_tile_without_error_needs_no_images():
    best = best_counts(np.array([0.0, 1.0]), np.array([64, 64]), np.array([1, 1]), 0.5)
    assert best[0] == 0
    assert np.isclose(best[1], 64)


def test_margins_follow_the_f_quantile_and_samples_grow_16_fold():
    assert rule.margin(2) > rule.margin(6) > rule.margin(1000) > 1
    for d in (12, 24, 60, 100):
        assert rule.margin(d) == pytest.approx(f.ppf(0.95, d, 3 * d) ** 0.5, rel=0.08)
    assert rule.samples_of(5000, False) == rule.samples_of(50_000, True) == []
    assert rule.samples_of(50_000, False) == [8192]
    assert rule.samples_of(1_280_000, False) == [8192, 131_072]
    assert rule.samples_of(1_280_000, True) == [8192, 131_072]
