"""Splitting and merging over shards without Ray: supports, nearest images, posteriors."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.cluster.shard import pack
from golddiff.cluster.slices import Borders, expand_all
from golddiff.kernels.lowest import lowest
from golddiff.posterior import Posterior
from golddiff.store.nearest import Nearest, Neighbors, Pixels
from golddiff.support import RandomSample, RuleSupport, Support


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0),
    st.data(),
)
def test_the_parts_of_a_rule_support_join_to_the_whole(sizes, data):
    n = sum(sizes)
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    label = data.draw(st.sampled_from([None, *np.unique(labels).tolist()]))
    rows = np.arange(n) if label is None else np.flatnonzero(labels == label)
    count = data.draw(st.integers(0, len(rows)))
    sample = data.draw(st.sampled_from([None, RandomSample(count, (1, 5))]))
    expected = rows
    if sample is not None:  # the draw of a single store
        expected = np.sort(np.random.default_rng([1, 5]).permutation(rows)[:count])
    support = RuleSupport(len(rows), None, label, sample)
    parts, first = [], 0
    for start, stop in itertools.pairwise(np.cumsum([0, *sizes]).tolist()):
        own = rows[(rows >= start) & (rows < stop)] - start
        parts.append(replace(support, offset=first).rows_in(own) + start)
        first += len(own)
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    np.testing.assert_array_equal(support.rows_in(rows), expected)
    assert len(support) == len(expected)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 0),
    st.integers(1, 60),
    st.integers(1, 1000),
    st.integers(0, 2**32),
)
def test_the_merged_nearest_of_shards_equal_the_single_store(sizes, k, distinct, seed):
    generator = np.random.default_rng(seed)
    # Few distinct values give ties within and across shards.
    distances = generator.integers(0, distinct, (2, sum(sizes))).astype(float)
    weights = generator.normal(size=sum(sizes))
    answers = []
    for start, stop in itertools.pairwise(np.cumsum([0, *sizes]).tolist()):
        places = [lowest(tile[start:stop], k) for tile in distances]
        supports = [Support(start + p, weights[start:stop][p]) for p in places]
        parts = [tile[start:stop][p] for tile, p in zip(distances, places, strict=True)]
        answers.append([Neighbors(supports, parts)])
    (merged,) = Nearest(Pixels()).merge(answers, k)
    for tile, support in zip(distances, merged.tiles, strict=True):
        np.testing.assert_array_equal(support.rows, lowest(tile, k))
        np.testing.assert_array_equal(support.log_weights, weights[support.rows])


def test_queries_that_share_a_support_share_its_part_in_a_shard(digits):
    of_class, listed = digits.everything(7), Support(np.array([3, 5]))
    (parts,) = Borders([digits.n], [digits.class_counts]).parts([of_class, listed, of_class])
    a, b, c = expand_all(digits, pickle.loads(pack(parts)))
    assert a is c
    np.testing.assert_array_equal(a.rows, digits.rows_of(7))
    assert (b.rows.dtype, b.rows.tolist()) == (np.int64, [3, 5])
    absent_class = RuleSupport(9, digits.rows_of, 12)
    ((part,),) = Borders([digits.n], [{12: 9}]).parts([absent_class])
    (expanded,) = expand_all(digits, [part])
    assert len(expanded) == 0  # the class lies in other shards only


def test_rows_below_2_to_the_31_are_packed_in_four_bytes():
    for rows, row_bytes in ((np.arange(10_000), 4), (np.arange(10_000) + 2**31, 8)):
        packed = pack(Support(rows))
        assert len(packed) == pytest.approx(row_bytes * len(rows), rel=0.02)
        unpacked = pickle.loads(packed).rows
        assert unpacked.dtype == np.int64
        np.testing.assert_array_equal(unpacked, rows)


def posterior_of(values, logits):
    log_max = logits.max(axis=0, keepdims=True)
    weights = np.exp(logits - log_max)
    return Posterior(log_max, weights.sum(0, keepdims=True), (weights * values).sum(0)[None])


def test_partial_posteriors_of_some_queries_merge_exactly():
    values, logits = np.random.default_rng(0).normal(size=(2, 3, 40, 2))
    whole = [posterior_of(v, w) for v, w in zip(values, logits, strict=True)]
    total = Posterior.empty(3, 2, 2)
    for queries, part in (([2, 0], slice(0, 11)), ([0, 1, 2], slice(11, 40)), ([1], slice(0, 11))):
        parts = [posterior_of(values[q, part], logits[q, part]) for q in queries]
        total.add_to(queries, Posterior.of_queries(parts, range(len(parts))))
    for query, expected in enumerate(whole):
        np.testing.assert_allclose(total.of([query]).mean(), expected.mean(), rtol=1e-12)
    with pytest.raises(ZeroDivisionError):
        Posterior.empty(1, 1, 1).mean()
