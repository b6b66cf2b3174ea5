"""What shards do apart and the driver puts together: streams, batches, merging."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.cluster import streams
from golddiff.cluster.merging import FAN, Here, InGroups
from golddiff.cluster.pieces import Pieces, batches_of
from golddiff.cluster.streams import drawn_places, uniform_part
from golddiff.cluster.worker import pack, unpack
from golddiff.posterior import BatchAverage, Posterior
from golddiff.support import Support


@given(st.integers(0, 2**40), st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_parts_of_a_stream_are_the_stream(seed, sizes):
    whole = np.random.default_rng([2, seed]).random(sum(sizes), np.float32)
    starts = np.cumsum([0, *sizes])
    parts = [uniform_part((2, seed), int(a), n) for a, n in zip(starts, sizes, strict=False)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.data())
def test_a_draw_in_parts_is_the_single_stores(sizes, data):
    n = sum(sizes)
    count = data.draw(st.integers(0, n))
    expected = np.sort(np.random.default_rng([1, 5]).permutation(n)[:count])
    borders = itertools.pairwise(np.cumsum([0, *sizes]).tolist())
    parts = [drawn_places((1, 5), n, count, a, b) for a, b in borders]
    np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_a_draw_of_very_many_is_shared_out_by_size(monkeypatch):
    monkeypatch.setattr(streams, "SHUFFLED", 10)
    sizes, count = (1000, 3000, 1, 995, 5004), 2000
    borders = list(itertools.pairwise(np.cumsum([0, *sizes]).tolist()))
    shares = []
    for seed in range(60):
        parts = [drawn_places((seed, 9), 10_000, count, a, b) for a, b in borders]
        drawn = np.concatenate(parts)
        assert len(np.unique(drawn)) == len(drawn) == count  # exactly as many as were asked for
        for part, (a, b) in zip(parts, borders, strict=True):
            assert ((part >= a) & (part < b)).all()
        shares.append([len(part) for part in parts])
    expected = np.array(sizes) * count / 10_000
    # Hypergeometric: variance n (s/N) (1 - s/N) (N - n)/(N - 1).
    share = np.array(sizes) / 10_000
    spread = np.sqrt(count * share * (1 - share) * 0.8)
    off = (np.mean(shares, axis=0) - expected) / (spread / np.sqrt(60) + 1e-12)
    assert np.abs(off).max() < 4
    assert np.std(shares, axis=0)[0] == pytest.approx(spread[0], rel=0.4)
    # The same however the range is cut, and again.
    whole = drawn_places((3, 9), 10_000, count, 0, 10_000)
    assert len(whole) == count


def posterior_of(values, logits):
    log_max = logits.max(axis=0, keepdims=True)
    weights = np.exp(logits - log_max)
    return Posterior(log_max, weights.sum(0, keepdims=True), (weights * values).sum(0)[None])


@given(
    st.lists(st.integers(0, 17), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0),
    st.integers(1, 12),
)
def test_batches_cut_by_shards_average_as_whole_ones(sizes, batch):
    generator = np.random.default_rng(0)
    n, d = sum(sizes), 3
    values, logits = generator.normal(size=(2, n, d))
    expected = BatchAverage.empty(1, d)
    for start in range(0, n, batch):
        part = slice(start, start + batch)
        expected.add(posterior_of(values[part], logits[part]))
    merged = Pieces.empty(1, d)
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        pieces = Pieces.empty(1, d)
        rows = Support(np.arange(start, start + size))
        for number, part, whole in batches_of(rows, int(start), batch):
            pieces.add(number, posterior_of(values[part.rows], logits[part.rows]), whole)
        merged = merged.merge(pieces)
    np.testing.assert_allclose(merged.mean(), expected.mean(), rtol=1e-12)


class Task:
    """Stands for a Ray task: merges at once."""

    calls = 0

    def remote(self, *packed):
        from golddiff.cluster.worker import merged

        Task.calls += 1
        assert len(packed) <= FAN
        return merged(*packed)


@given(st.integers(1, 150), st.randoms(use_true_random=False))
def test_merging_does_not_depend_on_who_is_first(shards, random):
    generator = np.random.default_rng(shards)
    parts = [posterior_of(*generator.normal(size=(2, 4, 2))) for _ in range(shards)]
    order = list(range(shards))
    random.shuffle(order)
    missing = set(order[: shards // 3])
    results = []
    for sequence in (order, sorted(order)):
        fetched = []

        def fetch(ref, fetched=fetched):
            fetched.append(ref)
            return unpack(ref)

        merging = Here(shards, fetch) if shards <= FAN else InGroups(shards, fetch, Task())
        for shard in sequence:
            merging.add(shard, None if shard in missing else pack(parts[shard]))
        results.append(merging.result())
        assert len(fetched) <= FAN  # what reaches the driver
    there = [part for i, part in enumerate(parts) if i not in missing]
    expected = there[0]
    for part in there[1:]:
        expected = expected.merge(part)
    np.testing.assert_allclose(results[0].mean(), expected.mean(), rtol=1e-12)
    for name in ("log_max", "total", "weighted"):  # the same sums, to the last bit
        np.testing.assert_array_equal(getattr(results[0], name), getattr(results[1], name))
