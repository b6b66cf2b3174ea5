"""A device gives what the processor gives: plain torch, here on the processor or on a GPU."""

import copy
import pickle

import numpy as np
import pytest
import torch

import golddiff
from golddiff.estimators.masks import locality_mask
from golddiff.estimators.pca import PCA
from golddiff.kernels.mask_tree import dense_mask, mask_tree
from golddiff.kernels.torch_kernels import lowest
from golddiff.store.device import DeviceStore
from golddiff.store.nearest import Pixels, Pooled
from golddiff.support import Support

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

METHODS = {
    "optimal": lambda store: golddiff.Optimal(store),
    "pca": lambda store: golddiff.PCA(store, 0.05),
    "wss": lambda store: golddiff.PCA(store, 0.05, "wss", batch_size=7),
    "kamb": lambda store: golddiff.Kamb(store, 3),
    "kamb circular": lambda store: golddiff.Kamb(store, 3, "circular"),
    "kamb none": lambda store: golddiff.Kamb(store, 3, "none"),
    "pspc square": lambda store: golddiff.PSPCSquare(store, 3),
    "pspc flex": lambda store: golddiff.PSPCFlex(store, 0.5),
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
    made = make_store(images, np.arange(24) % 3)
    free = None if request.param == "resident" else 100.0
    made.__dict__["_on_device"] = {DEVICE: DeviceStore(made, DEVICE, free)}
    assert made.__dict__["_on_device"][DEVICE].resident == (free is None)
    return made


def test_a_denoiser_on_a_device_pickles_and_copies(store, queries):
    """Both ended in a RecursionError: an empty DeviceStore asked itself for its store."""
    there, x = golddiff.Optimal(store).to(DEVICE), queries(store, 1.0, 2)
    for made in (pickle.loads(pickle.dumps(there)), copy.deepcopy(there), copy.copy(there.store)):
        device = made if isinstance(made, DeviceStore) else made.store
        assert isinstance(device, DeviceStore)
        assert device.device == DEVICE
    torch.testing.assert_close(pickle.loads(pickle.dumps(there))(x, 1.0), there(x, 1.0))


@pytest.mark.parametrize("method", METHODS)
def test_a_device_gives_what_the_processor_gives(method, store, queries):
    denoiser = METHODS[method](store)
    there = denoiser.to(DEVICE)
    for sigma in (0.01, 0.5, 3.0, 60.0):
        x = queries(store, sigma, 3)
        for labels in (None, [0, 1, 0]):
            # float32 distances of 60 values, summed in another order, differ by 1e-6 of themselves.
            # Of another class than the query's they are some 20, so at 0.01 logits of -10^5.
            room = 0.1 if sigma == 0.01 and labels else 5e-5
            expected = denoiser(x, sigma, labels)
            torch.testing.assert_close(there(x, sigma, labels), expected, rtol=0, atol=room)


@pytest.mark.parametrize("metric", [Pixels(), Pooled((3, 2, 2))], ids=str)
def test_the_nearest_images_are_the_processors(metric, store, queries):
    there = store.__dict__["_on_device"][DEVICE]
    x = queries(store, 2.0, 3).reshape(3, -1).numpy()
    within = Support(np.arange(1, 24, 2), np.linspace(0, 1, 12))
    for found, expected in zip(
        there.nearest(x, 5, metric, within), store.nearest(x, 5, metric, within), strict=True
    ):
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.log_weights, expected.log_weights)


def test_of_equal_distances_the_first_are_lowest():
    distances = torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0, 5.0, 5.0]])
    assert lowest(distances, 4).tolist() == [[1, 2, 3, 5], [0, 1, 2, 3]]
    assert lowest(distances[:, :2], 3).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 9, 8), (30,)])
def test_a_tree_gives_back_its_mask(shape):
    d = int(np.prod(shape))
    mask = np.random.default_rng(0).random((d, d)) < 0.3
    np.testing.assert_array_equal(dense_mask(mask_tree(mask, shape), d), mask)


def test_masks_that_find_no_room_are_made_again(make_store, images, queries):
    """Nothing is refused where a device is small."""
    made = make_store(images)
    made.__dict__["_on_device"] = {DEVICE: (there := DeviceStore(made, DEVICE, 60.0))}
    pca = PCA(made, 0.05)
    x = queries(made, 1.0, 1)
    for sigma in (1.0, 2.0, 1.0):
        torch.testing.assert_close(pca.to(DEVICE)(x, sigma), pca(x, sigma), rtol=0, atol=5e-5)
        assert len(there._cache) == 1
    mask = locality_mask(made.factor(), 1.0, 0.05)
    np.testing.assert_array_equal(dense_mask(pca.ready(1.0).tree, made.d), mask)


class OtherOptimal(golddiff.Optimal):
    """Weighs in a way of its own, with no torch code for it: Optimal's would be another method."""

    def weigh(self, x, sigma, part):
        return super().weigh(x, 2 * sigma, part)


class OwnOptimal(OtherOptimal):
    """Says itself that it has none."""

    def on_device(self, sigma, store):
        return None


@pytest.mark.parametrize("method", [OtherOptimal, OwnOptimal])
def test_a_method_without_torch_code_runs_on_the_processor(store, queries, method):
    denoiser, x = method(store), queries(store, 1.0, 2)
    torch.testing.assert_close(denoiser.to(DEVICE)(x, 1.0), denoiser(x, 1.0), rtol=0, atol=0)
    assert golddiff.Optimal(store).to(DEVICE).store is not store


@pytest.mark.parametrize("guarantee", [False, True])
def test_adaptive_supports_stay_on_the_processor(store, queries, guarantee):
    schedule = golddiff.AdaptiveSchedule(0.05, guarantee=guarantee)
    denoiser, x = golddiff.GoldDiff(golddiff.Optimal(store), schedule), queries(store, 1.0, 2)
    torch.testing.assert_close(denoiser.to(DEVICE)(x, 1.0), denoiser(x, 1.0), rtol=0, atol=0)


class OwnGolden(golddiff.GoldDiff):
    """A subclass stays what it is."""


def test_a_subclass_and_its_schedules_settings_stay_as_they_are(store):
    class Settings(EveryThird):
        settings = "not to be taken for a schedule"

    schedule = Settings()
    there = OwnGolden(golddiff.Optimal(store), schedule).to(DEVICE)
    assert type(there) is OwnGolden
    assert there.schedule is schedule


class EveryThird:
    def budgets(self, sigma, n):
        return n, n // 3

    def supports(self, store, x, sigma, label, seed):
        return [Support(store.rows_of(label)[::3])] * len(x)


def test_it_takes_the_denoisers_place_in_a_sampler(store):
    denoiser = METHODS["golden text"](store)
    there, here = (golddiff.sample(d, 2, steps=3).images for d in (denoiser.to(DEVICE), denoiser))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-3)


def test_bad_input_is_told_as_on_the_processor(store):
    there = METHODS["optimal"](store).to(DEVICE)
    with pytest.raises(golddiff.ArgumentError, match="labels: got 7"):
        there(torch.zeros(2, 3, 4, 5), 1.0, 7)
