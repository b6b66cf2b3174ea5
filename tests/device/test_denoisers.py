import math

import numpy as np
import pytest
import torch

import golddiff
from golddiff.device import DeviceStore, OnDevice, on_device
from golddiff.device.backend import torch_backend, triton_backend
from golddiff.device.graphs import recorded
from golddiff.device.masks import device_mask
from golddiff.device.plan import MemoryPlan
from golddiff.device.steps import step_on
from golddiff.device.support import DeviceSupport
from golddiff.errors import ArgumentError
from golddiff.estimators.masks import locality_mask
from golddiff.estimators.optimal import Optimal
from golddiff.support import Support

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STREAMED = MemoryPlan(False, 1 << 20, chunk_images=8, queries=2, total_bytes=0)

METHODS = {
    "optimal": lambda store: golddiff.Optimal(store),
    "pca": lambda store: golddiff.PCA(store, 0.05),
    "wss": lambda store: golddiff.PCA(store, 0.05, "wss", batch_size=7),
    "kamb": lambda store: golddiff.Kamb(store, 3),
    "kamb none": lambda store: golddiff.Kamb(store, 3, "none"),
    "wiener": lambda store: golddiff.Wiener(store),
    "golden text": lambda store: golddiff.GoldDiff(
        golddiff.PCA(store, 0.05), golddiff.PaperSchedule(0.2, 0.4, 0.5, 0.8)
    ),
    "golden released": lambda store: golddiff.GoldDiff(
        golddiff.Optimal(store), golddiff.PaperSchedule(0.2, 0.4, variant="released")
    ),
}


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(24, (3, 4, 4)), np.arange(24) % 3)


@pytest.fixture(scope="module", params=["resident", "streamed"])
def there(request, store):
    plan = STREAMED if request.param == "streamed" else None
    return DeviceStore(store, DEVICE, plan, torch_backend())


@pytest.mark.parametrize("method", METHODS)
def test_a_device_gives_what_the_cpu_gives(method, store, there, queries):
    denoiser = METHODS[method](store)
    device = OnDevice(denoiser, there)
    for sigma in (0.01, 0.5, 3.0, 60.0):
        x = queries(store, sigma, 3)
        for labels in (None, [0, 1, 0]):
            expected = denoiser(x, sigma, labels)
            # Of a class that is not the query's, the images compete at logits of -10,000 at the
            # lowest noise, where float32 itself is worth 1e-3.
            room = 2e-3 if sigma == 0.01 and labels else 5e-5
            torch.testing.assert_close(device(x, sigma, labels), expected, rtol=0, atol=room)


@pytest.mark.parametrize("method", ["optimal", "pca", "golden text", "golden released"])
def test_the_triton_kernels_do_too(method, store, queries):
    pytest.importorskip("triton", reason="needs Triton: pip install 'golddiff[gpu]'")
    denoiser = METHODS[method](store)
    device = OnDevice(denoiser, DeviceStore(store, DEVICE, None, triton_backend()))
    for sigma in (0.1, 8.0):
        x = queries(store, sigma, 2)
        torch.testing.assert_close(device(x, sigma), denoiser(x, sigma), rtol=0, atol=5e-4)


def test_queries_may_differ_in_noise_and_points_go_the_same_way(make_store, queries):
    points = make_store(torch.randn(30, 5, generator=torch.Generator().manual_seed(0)))
    there = DeviceStore(points, DEVICE, None, torch_backend())
    sigma = torch.tensor([0.1, 2.0, 0.1, 30.0])
    for denoiser in (golddiff.Optimal(points), golddiff.PCA(points), golddiff.Wiener(points)):
        x = queries(points, 1.0, 4)
        found = OnDevice(denoiser, there)(x, sigma)
        torch.testing.assert_close(found, denoiser(x, sigma), rtol=0, atol=5e-5)


def test_masks_made_on_a_device_are_the_cpus_in_tile_order(store):
    there = DeviceStore(store, DEVICE, None, torch_backend())
    order = there.order.cpu().numpy()
    for sigma in (0.05, 1.0, 20.0):
        mask = locality_mask(store.factor(), sigma, 0.05)
        found = device_mask(there, sigma, 0.05).cpu().numpy()
        assert (found == mask[order][:, order]).mean() > 0.999


@pytest.mark.parametrize("seed", range(8))
def test_entries_just_at_the_threshold_are_in_on_every_device(make_store, seed):
    """Of two images M is a ratio of their differences, which are whole numbers."""
    rng = np.random.default_rng(seed)
    apart, sigma = rng.choice([0, 1, 2, 5, 10, 100], (2, 6, 6)), float(rng.uniform(0.05, 2))
    apart.flat[:2] = 1, 100
    two = make_store(np.stack([np.full((2, 6, 6), 20), 20 + apart]).astype(np.uint8))
    d = apart.ravel()
    wanted = (d[None, :] * 50 >= d[:, None] * 100) & (d > 0)[None, :] & (d > 0)[:, None]
    mask = locality_mask(two.factor(), sigma, 0.02)
    assert np.array_equal(mask, wanted)
    there = DeviceStore(two, DEVICE, None, torch_backend())
    order = there.order.cpu().numpy()
    assert np.array_equal(device_mask(there, sigma, 0.02).cpu().numpy(), mask[order][:, order])


class EveryOther:
    """A schedule that a device knows nothing of: supports of unlike sizes, one weighted."""

    def budgets(self, sigma, n):
        return n, n // 2

    def supports(self, store, x, sigma, label, seed):
        rows = store.rows_of(label)
        return [
            Support(rows[i::2], None if i else np.linspace(0, 1, len(rows[::2])))
            for i in range(len(x))
        ]


@pytest.mark.parametrize("base", ["optimal", "pca", "wss", "kamb"])
def test_supports_of_other_schedules_are_brought_over(base, store, there, queries):
    denoiser = golddiff.GoldDiff(METHODS[base](store), EveryOther())
    x = queries(store, 1.0, 2)
    found = OnDevice(denoiser, there)(x, 1.0, 0)
    torch.testing.assert_close(found, denoiser(x, 1.0, 0), rtol=0, atol=5e-5)


def test_supports_of_unlike_sizes_are_filled_up_with_nothing():
    support = DeviceSupport.of([Support(np.array([3, 5])), Support(np.array([4]))], DEVICE)
    assert support.rows.tolist() == [[3, 5], [4, 0]]
    assert support.log_weights is not None
    assert support.log_weights.tolist() == [[0, 0], [0, -math.inf]]
    shared = Support(np.array([1, 2]))
    assert DeviceSupport.of([shared, shared], DEVICE).rows.tolist() == [[1, 2]]


def test_it_takes_the_denoisers_place_in_a_sampler(store):
    denoiser = METHODS["golden text"](store)
    device = OnDevice(denoiser, DeviceStore(store, DEVICE, None, torch_backend()))
    there, here = (golddiff.sample(d, 2, steps=3).images for d in (device, denoiser))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-3)


def test_bad_input_is_told_as_on_the_cpu(store):
    device = OnDevice(METHODS["optimal"](store), DeviceStore(store, DEVICE))
    x = torch.zeros(2, 3, 4, 4)
    bad = x.clone()
    bad[1, 0, 0, 0] = torch.nan
    for arguments, words in (
        ((x[:, :2], 1.0), "x: got shape"),
        ((bad, 1.0), "x: image 1 of the batch holds NaN"),
        ((x, -1.0), "sigma: got -1.0"),
        ((x, 1.0, 9), "labels: got 9"),
    ):
        with pytest.raises(ArgumentError, match=words):
            device(*arguments)


def test_what_has_no_way_on_a_device_stays_on_the_cpu(store, make_store, smooth_images):
    class Own(Optimal):
        """May do anything."""

    assert on_device(Own(store), DEVICE) is None
    there = DeviceStore(store, DEVICE)
    with pytest.raises(ArgumentError, match="denoiser: Own does not run on a device"):
        OnDevice(Own(store), there)
    other = make_store(smooth_images(4, (3, 4, 4)))
    with pytest.raises(ArgumentError, match="there: is not the store"):
        OnDevice(golddiff.Optimal(other), there)


def test_one_upload_serves_all_denoisers_of_a_store(store):
    first, second = (on_device(METHODS[m](store), DEVICE) for m in ("optimal", "pca"))
    assert first is not None
    assert second is not None
    assert first.there is second.there


@pytest.mark.skipif(DEVICE.type == "cuda", reason="is about the CPU")
def test_no_launches_are_recorded_on_the_cpu(store):
    there = DeviceStore(store, DEVICE)
    step = step_on(METHODS["optimal"](store), there)
    assert recorded(step, DEVICE, resident=True) is step


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("method", ["pca", "golden text", "golden released"])
def test_recorded_launches_give_what_launches_give(method, store, queries):
    denoiser, there = METHODS[method](store), DeviceStore(store, DEVICE)
    graphed = OnDevice(denoiser, there, graphs=True)
    for seed in (1, 2):
        x = queries(store, 1.0, 3, seed)
        torch.testing.assert_close(graphed(x, 1.0), OnDevice(denoiser, there)(x, 1.0))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_query_on_a_gpu_is_denoised_there(store, queries):
    denoiser = METHODS["pca"](store)
    x = queries(store, 1.0)
    found = denoiser(x.to(DEVICE), 1.0)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), denoiser(x, 1.0), rtol=0, atol=1e-3)
