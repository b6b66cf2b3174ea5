import pytest
import torch

import golddiff
from golddiff_lab import truth
from golddiff_lab.truth import describe, full_scans, key, one_pass, reference_of, rmse


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path))
    return tmp_path / "truth"


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(40))


def full_scan(reference, x, sigma, **options):
    """The full scan at one noise level."""
    return full_scans(reference, [(sigma, x)], **options)[0]


class Counting(golddiff.PCA):
    """PCA that counts the queries it weighs."""

    queried = 0

    def weigh(self, x, sigma, part):
        self.queried += len(x) if part.rows[0] == 0 else 0
        return super().weigh(x, sigma, part)


def test_a_repeated_full_scan_is_read_from_the_cache(store, queries, cache):
    pca, x = Counting(store), queries(store, 1.0)
    first = full_scan(pca, x, 1.0)
    assert first.allclose(golddiff.PCA(store)(x, 1.0), atol=1e-6)
    assert torch.equal(full_scan(pca, x, 1.0), first)
    assert pca.queried == len(x) == len(list(cache.iterdir()))


def test_batches_of_other_sizes_share_cache_entries(store, queries):
    pca, x = Counting(store), queries(store, 1.0)
    full_scan(pca, x[:2], 1.0)
    assert full_scan(pca, x, 1.0).allclose(golddiff.PCA(store)(x, 1.0), atol=1e-6)
    assert pca.queried == len(x)


def test_without_the_cache_nothing_is_read_or_written(store, queries, cache):
    pca, x = Counting(store), queries(store, 1.0)
    full_scan(pca, x, 1.0, use_cache=False)
    full_scan(pca, x, 1.0, use_cache=False)
    assert pca.queried == 2 * len(x)
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["cut", "bit", "text"])
def test_a_damaged_entry_is_recomputed(store, queries, cache, damage):
    pca, x = Counting(store), queries(store, 1.0, b=1)
    expected = full_scan(pca, x, 1.0)
    (file,) = cache.iterdir()
    data = bytearray(file.read_bytes())
    if damage == "bit":
        data[-1] ^= 1
    file.write_bytes({"cut": data[:-5], "bit": data, "text": b"no tensor"}[damage])
    assert torch.equal(full_scan(pca, x, 1.0), expected)
    assert pca.queried == 2
    full_scan(pca, x, 1.0)
    assert pca.queried == 2


def test_the_key_depends_on_store_query_sigma_and_settings(
    store, make_store, smooth_images, queries
):
    x = queries(store, 1.0)[0]
    other_store = make_store(smooth_images(40, seed=9))
    keys = [
        key(golddiff.PCA(store), x, 1.0),
        key(golddiff.PCA(store, 0.05), x, 1.0),
        key(golddiff.PCA(store), x, 1.0 + 1e-12),
        key(golddiff.PCA(store), x + 1e-6, 1.0),
        key(golddiff.PCA(other_store), x, 1.0),
        key(golddiff.Optimal(store), x, 1.0),
        key(golddiff.Kamb(store, 3), x, 1.0),
        key(golddiff.Kamb(store, 5), x, 1.0),
        key(golddiff.Kamb(store, 3, "none"), x, 1.0),
    ]
    assert len(set(keys)) == len(keys)


def test_a_copy_of_the_store_has_the_same_key(store, make_store, queries):
    copy = make_store(torch.from_numpy(store.flat.copy()).reshape(-1, *store.shape))
    x = queries(store, 1.0)[0]
    assert key(golddiff.PCA(copy), x, 1.0) == key(golddiff.PCA(store), x, 1.0)


def test_changed_code_changes_the_key(store, queries, monkeypatch):
    x = queries(store, 1.0)[0]
    before = key(golddiff.PCA(store), x, 1.0)
    monkeypatch.setattr(truth, "code", lambda names: "other")
    assert key(golddiff.PCA(store), x, 1.0) != before


def test_the_reference_is_the_full_scan_of_the_base(store):
    def reference(denoiser):
        return describe(reference_of(denoiser, None))

    assert reference(golddiff.GoldDiff(golddiff.Optimal(store)))["estimator"] == "Optimal"
    assert reference(golddiff.GoldDiff(golddiff.PCA(store, 0.1))) == {
        "estimator": "PCA",
        "mask_threshold": 0.1,
    }
    kamb = golddiff.GoldDiff(golddiff.Kamb(store, 5, "none"))
    assert reference(kamb) == {"estimator": "Kamb", "patch_sizes": 5, "boundary": "none"}
    # The average of batches is measured against the exact softmax.
    assert reference_of(golddiff.PCA(store, weighting="wss"), None).weighting == "ss"
    assert reference(golddiff.Wiener(store))["estimator"] == "PCA"
    assert reference_of(golddiff.Wiener(store), 0.07).mask_threshold == 0.07


def test_the_reference_of_scfdm_is_its_own_full_scan(store, queries):
    smoothed, x = golddiff.SCFDM(store, 0.5, copies=3), queries(store, 1.0)
    reference = reference_of(golddiff.GoldDiff(smoothed), None)
    assert describe(reference) == {
        "estimator": "SCFDM", "smoothing": 0.5, "copies": 3, "seed": 0,
    }  # fmt: skip
    assert torch.equal(full_scan(reference, x, 1.0), smoothed(x, 1.0))


def test_rmse_is_over_all_values():
    assert rmse(torch.zeros(2, 8), torch.full((2, 8), 0.5)) == 0.5


@pytest.mark.parametrize("make", [golddiff.Optimal, golddiff.PCA])
def test_one_pass_computes_every_full_scan(store, queries, make, monkeypatch):
    monkeypatch.setattr(truth, "ROWS_AT_ONCE", 15)
    levels = [(sigma, queries(store, sigma, b)) for sigma, b in ((20.0, 2), (1.0, 3))]
    for (sigma, x), out in zip(levels, one_pass(make(store), levels), strict=True):
        assert torch.allclose(out, make(store)(x, sigma), atol=2e-6)


def test_a_scan_that_takes_too_long_is_omitted_unless_cached(store, queries):
    optimal, x = golddiff.Optimal(store), queries(store, 1.0, 3)
    assert len(full_scan(optimal, x, 1.0, seconds=1e-9)) == 0
    first = full_scan(optimal, x, 1.0)
    assert torch.equal(full_scan(optimal, x, 1.0, seconds=1e-9), first)


def test_the_key_of_pca_depends_on_the_factor(queries, tmp_path, smooth_images):
    store = golddiff.ImageStore.build(smooth_images(60), tmp_path / "store")
    x = queries(store, 1.0, 1)[0]
    before = [key(make(store), x, 1.0) for make in (golddiff.Optimal, golddiff.PCA)]
    store.factors.estimate(30)
    after = [key(make(store), x, 1.0) for make in (golddiff.Optimal, golddiff.PCA)]
    assert before[0] == after[0]
    assert before[1] != after[1]
