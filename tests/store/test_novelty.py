"""Novelty: distances to the nearest training images, and the definition of a copy."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.store.novelty import SPACING, spacing, two_nearest
from golddiff.system.errors import ArgumentError


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(400, (3, 8, 8)))


def test_a_training_image_has_novelty_0_and_is_a_copy(store):
    rounded = store.images([3, 77]) + torch.tensor([0, 1e-7]).reshape(2, 1, 1, 1)
    result = golddiff.novelty(rounded, store)
    assert result.novelty.tolist() == [0, 0]
    assert result.nearest.tolist() == [3, 77]
    assert result.copies.all()


def test_novelty_accepts_a_path_and_prints_one_line(store):
    result = golddiff.novelty(store.images(range(30)), store.path)
    assert result.copies.all()
    assert repr(result).startswith("<Novelty: novelty 0.00 on average")
    assert "copies: 30 of 30" in repr(result)


def test_unseen_images_of_the_same_distribution_have_mean_novelty_1(store, smooth_images):
    unseen = smooth_images(300, (3, 8, 8), seed=5).float() / 127.5 - 1
    novelty, nearest = golddiff.novelty(unseen, store)
    assert 0.95 < float(novelty.mean()) < 1.05
    assert len(nearest) == 300


def test_a_copy_is_at_most_a_third_as_far_as_the_second_nearest(make_store):
    points = np.array([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]], np.float32)
    store = make_store(points)
    result = golddiff.novelty(torch.tensor([[0.24, 0.0], [0.26, 0.0], [0.5, 0.0]]), store)
    assert result.copies.tolist() == [True, False, False]  # 0.24 < 0.76 / 3, 0.26 > 0.74 / 3
    assert result.nearest.tolist()[:2] == [0, 0]


def test_the_two_nearest_are_exact_and_ties_go_to_the_lower_row(make_store, store, monkeypatch):
    monkeypatch.setattr("golddiff.store.novelty.QUERIES_AT_ONCE", 3)  # many parts
    big = make_store(np.random.default_rng(0).standard_normal((1500, 7)).astype(np.float32))
    x = torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
    rows, distances = two_nearest(big, x.numpy())
    assert torch.equal(golddiff.novelty(x, big).distances, torch.from_numpy(distances))
    exact = torch.cdist(x.double(), big.images().double()) / 7**0.5
    lowest = exact.topk(2, largest=False)
    assert rows.tolist() == lowest.indices.tolist()
    assert distances == pytest.approx(lowest.values.numpy(), rel=1e-5)
    repeated = make_store(np.repeat(np.eye(3, dtype=np.float32), 600, axis=0))
    assert two_nearest(repeated, np.eye(3, dtype=np.float32))[0].tolist() == [
        [0, 1],
        [600, 601],
        [1200, 1201],
    ]
    assert spacing(repeated) == pytest.approx((2 / 3) ** 0.5)  # however many are equal


def test_the_spacing_is_the_cached_mean_nearest_neighbour_distance(make_store):
    store = make_store(np.array([[0.0], [1.0], [3.0]], np.float32))
    assert spacing(store) == pytest.approx((1 + 1 + 2) / 3)
    reopened = golddiff.ImageStore.open(store.path)
    assert reopened.artifacts.load(SPACING) is not None
    assert spacing(reopened) == spacing(store)


@pytest.mark.parametrize("share", [0.2, 0.5, 1])
@pytest.mark.parametrize("times", [2, 40])
@pytest.mark.parametrize("grain", [0, 1])
def test_duplicates_change_neither_spacing_nor_copies(
    store, make_store, smooth_images, share, times, grain
):
    """Grain: 1 of 255 more or less, a fiftieth of the spacing, as when saved again as JPEG."""
    images, rng = smooth_images(400, (3, 8, 8)).numpy(), np.random.default_rng(0)
    again = np.tile(images[: int(share * 400)], (times - 1, 1, 1, 1)).astype(np.int64)
    again = np.clip(again + rng.integers(-grain, grain + 1, again.shape), 0, 255)
    repeated = make_store(np.concatenate([images, again.astype(np.uint8)]))
    assert spacing(repeated) == pytest.approx(spacing(store), rel=0.1)
    noise = torch.randn(100, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for level in (0, 0.1, 1):
        x = store.images(range(100)) + level * spacing(store) * noise
        expected, result = golddiff.novelty(x, store), golddiff.novelty(x, repeated)
        assert int(result.copies.sum()) == (100 if level < 1 else 0)
        mean = float(expected.novelty.mean())
        assert float(result.novelty.mean()) == pytest.approx(mean, rel=0.1, abs=0.1)


@pytest.mark.parametrize("n", [2, 30])
def test_one_image_repeated_has_a_spacing_of_1(make_store, n):
    store = make_store(np.full((n, 1, 4, 4), 100, np.uint8))
    lighter = torch.tensor([0, 0.5]).reshape(2, 1, 1, 1)
    result = golddiff.novelty(store.images([0]) + lighter, store)
    assert result.novelty.tolist() == pytest.approx([0, 0.5])
    assert result.copies.tolist() == [True, False]


def test_an_image_unlike_the_others_does_not_make_them_duplicates(make_store):
    points = np.random.default_rng(0).standard_normal((60, 20)).astype(np.float32) * 0.01
    usual = spacing(make_store(points))
    points[7] = 0.3
    assert spacing(make_store(points)) == pytest.approx(usual + 0.3 / 60, rel=0.1)


def test_pixels_far_outside_their_range_are_refused(store, make_store):
    with pytest.raises(ArgumentError, match="images: got values of 1 to 255, expected -1 to 1"):
        golddiff.novelty((store.images([0, 1]) + 1) * 127.5, store)
    golddiff.novelty(100 * torch.ones(1, 2), make_store(np.eye(2, dtype=np.float32)))
    one_column = torch.eye(store.shape[2])[:1].expand(1, *store.shape)
    golddiff.novelty(3 * one_column, store)  # single pixels of a sample may lie far outside


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 8, 7), "images: got shape"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "images: got torch.uint8"),
        (torch.zeros(0, 3, 8, 8), "images: got none"),
        (torch.full((1, 3, 8, 8), torch.nan), "images: got NaN"),
        ([1, 2], "images: got list"),
    ],
)
def test_bad_images_are_refused(store, images, message):
    with pytest.raises(ArgumentError, match=message):
        golddiff.novelty(images, store)


def test_a_store_of_one_image_is_refused(make_store):
    with pytest.raises(ArgumentError, match="holds one, expected two or more"):
        golddiff.novelty(torch.zeros(1, 2), make_store(np.zeros((1, 2), np.float32)))
