"""Noise levels, their conversion, and the seeds made of them."""

import math

import numpy as np
import pytest
import torch

from golddiff.noise import (
    alpha_of_sigma,
    ddim_sigmas,
    edm_sigmas,
    seed_of_sigma,
    sigma_of_alpha,
)

LEVELS = [
    "0x1.e694155f1623bp+5",
    "0x1.9bc693fcd0fa7p+4",
    "0x1.80cb870b60699p+3",
    "0x1.8b1ab9249a1bep+2",
    "0x1.b8b3268fade2bp+1",
    "0x1.054258f1085f3p+1",
    "0x1.3d7b362c95043p+0",
    "0x1.727a8c0ce41e6p-1",
    "0x1.5e796f75b6c77p-2",
    "0x1.47b93c41797c4p-7",
]


def test_ddim_sigmas_are_the_ten_noise_levels_of_the_paper():
    sigmas = ddim_sigmas(10)
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    alphas = torch.cumprod(1 - betas, 0)[torch.arange(900, -1, -100)]
    assert sigmas == pytest.approx(((1 - alphas) / alphas).sqrt().tolist(), rel=1e-4)


def test_edm_levels_run_from_80_to_0_002():
    sigmas = edm_sigmas(10)
    assert (sigmas[0], sigmas[-1]) == (pytest.approx(80), pytest.approx(0.002))
    assert sigma_of_alpha(alpha_of_sigma(3.7)) == pytest.approx(3.7)


def test_noise_levels_and_their_bits_are_the_same_on_every_processor():
    """The last digits of torch.linspace differ between processors."""
    levels = ddim_sigmas(10)
    assert [level.hex() for level in levels] == LEVELS
    for level in levels:
        seed = seed_of_sigma(level)
        assert seed_of_sigma(level * (1 + 2e-7)) == seed == int(np.float64(level).view(np.uint64))
    assert seed_of_sigma(levels[3] * 1.001) != seed_of_sigma(levels[3])


@pytest.mark.parametrize("sigma", [0.7, 1 / 3, *edm_sigmas(30)])
def test_the_seed_of_a_noise_level_does_not_depend_on_its_rounding(sigma):
    """On some processors a power has another last digit, and a tensor is in float32."""
    seed = seed_of_sigma(sigma)
    assert (
        seed_of_sigma(math.nextafter(sigma, 0)) == seed_of_sigma(math.nextafter(sigma, 9)) == seed
    )
    assert seed_of_sigma(float(np.float32(sigma))) == seed
    assert seed_of_sigma(sigma * 1.001) != seed
