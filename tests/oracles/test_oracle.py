import numpy as np
import pytest
import torch

import golddiff
from golddiff.noise import ddim_sigmas
from golddiff.oracles.files import unet_arguments
from golddiff.oracles.oracle import Oracle
from golddiff.system.errors import ArgumentError


@pytest.fixture
def oracle(make_unet):
    return Oracle(**unet_arguments(make_unet(), 8, True, "test"))


@pytest.fixture
def conditional(make_unet):
    return Oracle(**unet_arguments(make_unet(classes=3), 8, True, "test"))


def x_of(b, seed=0):
    return torch.randn(b, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_batch_of_mixed_sigmas_matches_single_calls(oracle):
    x, sigmas = x_of(3), torch.tensor([0.3, 5.0, 60.0])
    batch = oracle(x * sigmas[:, None, None, None], sigmas)
    for i in range(3):
        alone = oracle(x[i : i + 1] * sigmas[i], float(sigmas[i]))
        # x0 = x - sigma eps. The order of the float32 sums in convolutions affects eps: some
        # hundred products of about 1, each rounded by 2^-24 = 6e-8.
        torch.testing.assert_close(
            batch[i : i + 1], alone, atol=1e-5 * float(1 + sigmas[i]), rtol=0
        )


def test_results_do_not_depend_on_the_batch_size(make_unet):
    network, x = make_unet(classes=3), x_of(5)
    labels = torch.tensor([0, 1, 2, 1, 0])
    arguments = unet_arguments(network, 8, True, "test")
    wide, narrow = (Oracle(**arguments, batch_size=b)(x, 1.0, labels) for b in (5, 2))
    torch.testing.assert_close(wide, narrow, atol=1e-5, rtol=1e-5)
    assert is_float32_without_gradients(wide)


def is_float32_without_gradients(images):
    return images.dtype == torch.float32 and not images.requires_grad


def test_float64_input_gives_float32_output(oracle):
    assert is_float32_without_gradients(oracle(x_of(2).double(), 1.0))
    assert oracle(x_of(0), 1.0).shape == (0, 1, 8, 8)


def test_no_label_uses_the_learned_null_class(conditional):
    x, t = x_of(2), torch.full((2,), 500)
    sigma = float(conditional.schedule.sigmas[500])
    with torch.no_grad():
        state = x / (1 + sigma**2) ** 0.5
        eps = conditional.network(state, t, torch.full((2,), 3))
    torch.testing.assert_close(conditional(x, sigma), x - sigma * eps, atol=1e-4, rtol=1e-4)
    assert (conditional(x, sigma) - conditional(x, sigma, 1)).abs().max() > 1e-3


def test_single_label_applies_to_every_image(conditional):
    x = x_of(2)
    assert torch.equal(conditional(x, 1.0, 2), conditional(x, 1.0, [2, 2]))


def test_network_without_null_class_requires_labels(conditional):
    conditional.no_class = None
    with pytest.raises(ArgumentError, match="labels: this network takes a class"):
        conditional(x_of(1), 1.0)


@pytest.mark.parametrize(
    ("x", "sigma", "labels", "message"),
    [
        (torch.zeros(2, 3, 8, 8), 1.0, None, r"x: got shape .* \(B, 1, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.int64), 1.0, None, "x: got torch.int64"),
        ([1.0], 1.0, None, "x: got list"),
        (np.zeros((2, 1, 8, 8)), 1.0, None, "x: got ndarray"),
        (torch.full((1, 1, 8, 8), float("nan")), 1.0, None, "x: holds NaN"),
        (torch.zeros(1, 1, 8, 8, device="meta"), 1.0, None, "x: got .*, expected a dense tensor"),
        (torch.zeros(1, 1, 8, 8).to_sparse(), 1.0, None, "x: got .*, expected a dense tensor"),
        (torch.zeros(2, 1, 8, 8), None, None, "sigma: got None"),
        (torch.zeros(2, 1, 8, 8), "a", None, "sigma: got 'a'"),
        (torch.zeros(2, 1, 8, 8), 1j, None, "sigma: got 1j"),
        (torch.zeros(2, 1, 8, 8), 0.0, None, "sigma: got 0.0"),
        (torch.zeros(2, 1, 8, 8), -1, None, "sigma: got -1.0"),
        (torch.zeros(2, 1, 8, 8), float("inf"), None, "sigma: got inf"),
        (torch.zeros(2, 1, 8, 8), 158.0, None, "sigma: got 158"),
        (torch.zeros(2, 1, 8, 8), torch.ones(3), None, r"sigma: got shape \(3,\)"),
        (torch.zeros(2, 1, 8, 8), 1.0, 3, "labels: got 3, expected 0 to 2"),
        (torch.zeros(2, 1, 8, 8), 1.0, [0, -1], "labels: got -1"),
        (torch.zeros(2, 1, 8, 8), 1.0, [0, 1, 2], r"labels: got shape \(3,\)"),
        (torch.zeros(2, 1, 8, 8), 1.0, 0.5, "labels: got torch.float64"),
        (torch.zeros(2, 1, 8, 8), 1.0, True, "labels: got True, expected integers"),
        (torch.zeros(2, 1, 8, 8), 1.0, "a", "labels: got 'a'"),
    ],
)
def test_bad_input_is_named(conditional, x, sigma, labels, message):
    with pytest.raises(ArgumentError, match=message):
        conditional(x, sigma, labels)


def test_unconditional_network_refuses_labels(oracle):
    with pytest.raises(ArgumentError, match="trained without classes"):
        oracle(x_of(1), 1.0, 0)


def test_sample_accepts_an_oracle_with_ddim_and_heun(oracle):
    result = golddiff.sample(oracle, 2, 3, seed=1)
    assert result.images.shape == (2, 1, 8, 8)
    assert result.images.abs().max() <= 1
    assert result.sigmas == ddim_sigmas(3)
    heun = golddiff.sample(oracle, 2, 2, sampler="heun", seed=1)
    assert bool(heun.images.isfinite().all())
