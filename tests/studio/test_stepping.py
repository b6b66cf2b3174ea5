import itertools

import pytest
import torch

from golddiff.estimators.optimal import Optimal
from golddiff.estimators.wiener import Wiener
from golddiff.sampling import sample
from golddiff.studio.stepping import frames, levels, starting_point


@pytest.mark.parametrize("make", [Optimal, Wiener])
@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_step_by_step_is_the_sampler(make_store, smooth_images, make, sampler):
    store = make_store(smooth_images(40))
    expected = sample(make(store), 3, 6, sampler, seed=5)
    sigmas = levels(6, sampler, None)
    start = starting_point(3, store.shape, 5, sigmas, sampler, None)
    made = list(frames(make(store), start, sigmas, sampler, clip=True))
    assert [f.sigma for f in made] == pytest.approx(expected.sigmas)
    predicted = torch.stack([f.x0 for f in made])
    assert torch.allclose(predicted, expected.trajectory, atol=2e-4)
    if sampler == "ddim":
        assert torch.allclose(made[-1].x0, expected.images, atol=2e-4)


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
@pytest.mark.parametrize("start", [0.05, 0.7, 5.0])
def test_levels_from_an_image_begin_at_its_noise_and_fall(sampler, start):
    sigmas = levels(10, sampler, start)
    assert sigmas[0] == pytest.approx(start)
    assert all(a > b > 0 for a, b in itertools.pairwise(sigmas))
    assert 1 < len(sigmas) <= 10
    assert sigmas[-1] < 0.02


def test_one_step_from_an_image_is_one_level():
    assert levels(1, "ddim", 0.7) == [0.7]


def test_an_image_with_noise_is_the_image_plus_sigma_times_the_noise_of_the_seed():
    image = torch.full((1, 4, 4), 0.5)
    noise = torch.randn((2, 1, 4, 4), generator=torch.Generator().manual_seed(3))
    made = starting_point(2, (1, 4, 4), 3, [0.7, 0.1], "ddim", image)
    assert torch.allclose(made, image + 0.7 * noise)
