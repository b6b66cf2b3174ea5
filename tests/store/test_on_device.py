"""Torch code, on a GPU if there is one, gives the results of the compiled CPU code."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import golddiff
from golddiff.cluster.shard import Shard
from golddiff.estimators.masks import locality_mask
from golddiff.estimators.pca import PCA
from golddiff.kernels import torch_kernels
from golddiff.kernels.mask_tree import dense_mask
from golddiff.kernels.torch_kernels import lowest, mask_dtype, mask_sums
from golddiff.store import device
from golddiff.store.device import DeviceStore
from golddiff.store.nearest import Pixels, Pooled
from golddiff.store.posteriors import for_one_level
from golddiff.support import Support
from reliability.reference import optimal
from tests.conftest import float64_images

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

METHODS = {
    "optimal": lambda store: golddiff.Optimal(store),
    "pca": lambda store: golddiff.PCA(store, 0.05),
    "wss": lambda store: golddiff.PCA(store, 0.05, "wss", batch_size=7),
    "shared by pixels": lambda store: golddiff.PCA(store, 0.05, share="pixel"),
    "shared by squares": lambda store: golddiff.PCA(store, 0.05, share="4x4"),
    "seamless": lambda store: golddiff.PCA(store, 0.05, share="seamless"),
    "kamb": lambda store: golddiff.Kamb(store, 3),
    "kamb circular": lambda store: golddiff.Kamb(store, 3, "circular"),
    "kamb none": lambda store: golddiff.Kamb(store, 3, "none"),
    "pspc square": lambda store: golddiff.PSPCSquare(store, 3),
    "pspc flex": lambda store: golddiff.PSPCFlex(store, 0.5),
    "recommended": lambda store: golddiff.recommended(store),
    "wiener": lambda store: golddiff.Wiener(store),
    "golden text": lambda store: golddiff.GoldDiff(
        golddiff.PCA(store, 0.05), golddiff.PaperSchedule(0.2, 0.4, 0.5, 0.8)
    ),
    "golden released": lambda store: golddiff.GoldDiff(
        golddiff.Optimal(store), golddiff.PaperSchedule(0.2, 0.4, variant="released")
    ),
}


@pytest.fixture(scope="module")
def images(smooth_images):
    return smooth_images(24, (3, 4, 5))


@pytest.fixture(scope="module", params=["resident", "sent in parts"])
def store(request, make_store, images):
    base = make_store(images, np.arange(24) % 3)
    free = None if request.param == "resident" else 100.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "UPLOAD_BATCH", 10)
        patch.setattr(device, "WORK_BYTES", 4 * 60 * 9)  # 9 images at a time
        base.__dict__["_on_device"] = {DEVICE: DeviceStore(base, DEVICE, free)}
        assert base.__dict__["_on_device"][DEVICE].resident == (free is None)
        yield base


def test_all_names_of_a_device_mean_one_copy_of_the_images(store):
    optimal = golddiff.Optimal(store)
    names = [DEVICE, str(DEVICE), DEVICE.type]
    assert len({id(optimal.to(name).store) for name in names}) == 1
    assert golddiff.GoldDiff(optimal).to(DEVICE.type).store is optimal.to(DEVICE).store


def test_the_cpu_is_the_store_on_disk(make_store, images):
    """Regression: torch code on the CPU took 45 times as long as the compiled loops."""
    store = make_store(images)
    there = copy.copy(golddiff.Optimal(store))
    there.store = DeviceStore(store, torch.device("cpu"))
    there.store.device = torch.device("cuda:0")
    for denoiser in (golddiff.Optimal(store), there):
        assert denoiser.to("cpu").store is store


@pytest.mark.parametrize("device", ["gpu", "meta", "cpu:x", 1.5, "cuda:99"])
def test_a_device_that_does_not_exist_is_refused(make_store, images, device):
    with pytest.raises(golddiff.ArgumentError, match="device: got "):
        golddiff.Optimal(make_store(images)).to(device)


def test_a_denoiser_on_a_device_can_be_pickled_and_copied(store, queries):
    """Regression: an empty DeviceStore looked up its own ``store`` without end."""
    moved, x = golddiff.Optimal(store).to(DEVICE), queries(store, 1.0, 2)
    for copied in (pickle.loads(pickle.dumps(moved)), copy.deepcopy(moved), copy.copy(moved.store)):
        device = copied if isinstance(copied, DeviceStore) else copied.store
        assert isinstance(device, DeviceStore)
        assert device.device == DEVICE
    torch.testing.assert_close(pickle.loads(pickle.dumps(moved))(x, 1.0), moved(x, 1.0))


@pytest.mark.parametrize("method", METHODS)
def test_device_results_match_the_cpu(method, store, queries):
    denoiser = METHODS[method](store)
    moved = denoiser.to(DEVICE)
    for sigma in (0.01, 0.5, 3.0, 60.0):
        x = queries(store, sigma, 3)
        for labels in (None, [0, 1, 0]):
            # Float32 sums of 60 values in another order change distances by a relative 1e-6.
            # Images of another class are about 20 away: at sigma 0.01, logits near -10^5.
            tolerance = 0.1 if sigma == 0.01 and labels else 5e-5
            expected = denoiser(x, sigma, labels)
            torch.testing.assert_close(moved(x, sigma, labels), expected, rtol=0, atol=tolerance)


def test_high_noise_costs_no_digits(make_store, smooth_images, queries):
    """The squared noise that all distances have in common would cost two digits."""
    store = make_store(smooth_images(200, (3, 16, 16)))
    store.__dict__["_on_device"] = {DEVICE: DeviceStore(store, DEVICE, None)}
    for sigma in (2.0, 6.0, 60.0):
        x, images = queries(store, sigma, 3), float64_images(store)
        means = [optimal(query, sigma, images) for query in x.flatten(1).double().numpy()]
        moved = golddiff.PCA(store, 0.0).to(DEVICE)(x, sigma).reshape(3, -1).cpu()
        np.testing.assert_allclose(moved, means, rtol=0, atol=5e-6)


def test_three_bfloat16_products_keep_every_digit_of_a_masked_sum(monkeypatch):
    if mask_dtype(DEVICE) != torch.bfloat16:  # the product in tensor cores, as float32 does it
        mm = SimpleNamespace(dtype=lambda part, mask, dtype: part.to(dtype) @ mask.to(dtype))
        monkeypatch.setattr(torch_kernels, "aten", SimpleNamespace(mm=mm))
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(20, 300, generator=generator) * torch.logspace(-6, 6, 20)[:, None]
    mask = torch.randint(2, (300, 40), generator=generator)
    sums = mask_sums(terms.to(DEVICE), mask.to(DEVICE, torch.bfloat16)).cpu().double()
    size = terms.double().abs() @ mask.double()
    assert ((sums - terms.double() @ mask.double()).abs() / size).max() < 1e-6


@pytest.mark.parametrize("shape", [(), (3,)])
def test_log_weights_on_a_device_match_the_cpu(store, queries, shape):
    weights = np.random.default_rng(0).normal(0, 2, (*shape, store.n))
    optimal = golddiff.Optimal(store).given(weights)
    x = queries(store, 1.0, 3)
    torch.testing.assert_close(optimal.to(DEVICE)(x, 1.0), optimal(x, 1.0), rtol=0, atol=5e-5)


@pytest.mark.parametrize("method", ["optimal", "pca", "kamb"])
def test_posteriors_of_a_denoiser_on_a_device_are_those_of_the_cpu(method, store):
    """Halfway between two images, float32 changes the weights at low noise."""
    denoiser = METHODS[method](store)
    x = (store.images([3]) + store.images([7])) / 2
    for sigma in (0.5, 0.02, 0.005):
        there, here = (d.posterior(x, sigma) for d in (denoiser.to(DEVICE), denoiser))
        assert torch.equal(there.mean, here.mean)
        assert torch.equal(there.variance, here.variance)


@pytest.mark.parametrize("method", METHODS)
def test_a_shard_on_a_device_gives_the_results_of_the_cpu(method, store, queries):
    denoiser = METHODS[method](store)
    x = queries(store, 2.0, 2).reshape(2, -1).numpy()
    if not hasattr(denoiser, "estimator_supports") or method == "wiener":
        pytest.skip("weighs no images")
    estimator, supports = denoiser.estimator_supports(x, 2.0, None)
    results = []
    for place in ("cpu", DEVICE):
        shard = Shard(str(store.path), 1e9, 1, golddiff.__version__)
        shard.__dict__["store"] = store
        shard.__dict__["_on_device"] = (
            store if place == "cpu" else store.__dict__["_on_device"][DEVICE]
        )
        sent = for_one_level(estimator, 2.0)
        _, posterior = shard.posterior(sent, x, 2.0, supports)
        results.append(estimator.composed(posterior.mean(), 2.0))
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=5e-5)


@pytest.mark.parametrize("method", ["optimal", "pca", "recommended", "kamb", "pspc square"])
def test_autocast_has_no_effect_on_a_device(method, store, queries):
    moved, x = METHODS[method](store).to(DEVICE), queries(store, 0.3, 2).to(DEVICE)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        inside = moved(x, 0.3)
    assert torch.equal(inside, moved(x, 0.3))


@pytest.mark.parametrize("metric", [Pixels(), Pooled((3, 2, 2))], ids=str)
def test_nearest_images_on_a_device_match_the_cpu(metric, store, queries):
    device_store = store.__dict__["_on_device"][DEVICE]
    x = queries(store, 2.0, 3).reshape(3, -1).numpy()
    within = Support(np.arange(1, 24, 2), np.linspace(0, 1, 12))
    for result, expected in zip(
        device_store.nearest(x, 5, metric, within), store.nearest(x, 5, metric, within), strict=True
    ):
        np.testing.assert_array_equal(result.rows, expected.rows)
        np.testing.assert_array_equal(result.log_weights, expected.log_weights)


def test_lowest_breaks_ties_by_the_lower_index():
    distances = torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0, 5.0, 5.0]])
    assert lowest(distances, 4).tolist() == [[1, 2, 3, 5], [0, 1, 2, 3]]
    assert lowest(distances[:, :2], 3).tolist() == [[0, 1], [0, 1]]


def test_masks_beyond_device_memory_are_recomputed(make_store, images, queries):
    """A small device recomputes masks instead of raising an error."""
    store = make_store(images)
    store.__dict__["_on_device"] = {DEVICE: (device_store := DeviceStore(store, DEVICE, 60.0))}
    pca = PCA(store, 0.05)
    x = queries(store, 1.0, 1)
    for sigma in (1.0, 2.0, 1.0):
        torch.testing.assert_close(pca.to(DEVICE)(x, sigma), pca(x, sigma), rtol=0, atol=5e-5)
        assert len(device_store._cache) == 1
    mask = locality_mask(store.factor(), 1.0, 0.05)
    np.testing.assert_array_equal(dense_mask(pca.ready(1.0).tree, store.d), mask)


class OtherOptimal(golddiff.Optimal):
    """Overrides ``weigh`` only, so Optimal's torch code does not compute the same."""

    def weigh(self, x, sigma, part):
        return super().weigh(x, 2 * sigma, part)


class OwnOptimal(OtherOptimal):
    """Declares that it has no torch code."""

    def on_device(self, sigma, store):
        return None


@pytest.mark.parametrize("method", [OtherOptimal, OwnOptimal])
def test_a_method_without_torch_code_runs_on_the_cpu(store, queries, method):
    denoiser, x = method(store), queries(store, 1.0, 2)
    torch.testing.assert_close(denoiser.to(DEVICE)(x, 1.0), denoiser(x, 1.0), rtol=0, atol=0)
    assert golddiff.Optimal(store).to(DEVICE).store is not store


@pytest.mark.parametrize("guarantee", [False, True])
def test_adaptive_supports_run_on_the_cpu(store, queries, guarantee):
    schedule = golddiff.AdaptiveSchedule(0.05, guarantee=guarantee)
    denoiser, x = golddiff.GoldDiff(golddiff.Optimal(store), schedule), queries(store, 1.0, 2)
    torch.testing.assert_close(denoiser.to(DEVICE)(x, 1.0), denoiser(x, 1.0), rtol=0, atol=0)


def test_adaptive_schedules_and_proofs_accept_denoisers_on_a_device(store, queries):
    """Regression: they were refused as if the store were in shards."""
    optimal, x = golddiff.Optimal(store), queries(store, 0.1, 2)
    for schedule in (golddiff.AdaptiveSchedule(0.05, guarantee=True), golddiff.PaperSchedule()):
        moved = golddiff.GoldDiff(optimal.to(DEVICE), schedule)
        mean, bound = moved.certified(x, 0.1)
        expected, cpu_bound = golddiff.GoldDiff(optimal, schedule).certified(x, 0.1)
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(bound, cpu_bound, rtol=0, atol=1e-2)


class OwnGolden(golddiff.GoldDiff):
    """A subclass without changes."""


def test_moving_to_a_device_keeps_subclass_and_schedule(store):
    class Settings(EveryThird):
        settings = "must not be read as a schedule"

    schedule = Settings()
    moved = OwnGolden(golddiff.Optimal(store), schedule).to(DEVICE)
    assert type(moved) is OwnGolden
    assert moved.schedule is schedule


class EveryThird:
    def budgets(self, sigma, n):
        return n, n // 3

    def supports(self, store, x, sigma, label, seed):
        return [Support(store.rows_of(label)[::3])] * len(x)


def test_samples_on_a_device_match_the_cpu(store):
    denoiser = METHODS["golden text"](store)
    moved, cpu = (golddiff.sample(d, 2, steps=3).images for d in (denoiser.to(DEVICE), denoiser))
    torch.testing.assert_close(moved, cpu, rtol=0, atol=1e-3)


def test_a_denoiser_on_a_device_refuses_bad_labels(store):
    moved = METHODS["optimal"](store).to(DEVICE)
    with pytest.raises(golddiff.ArgumentError, match="labels: got 7"):
        moved(torch.zeros(2, 3, 4, 5), 1.0, 7)
