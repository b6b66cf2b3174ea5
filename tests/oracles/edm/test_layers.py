"""Each layer against its definition in NumPy and float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff.oracles.edm import layers
from tests.oracles.edm import direct

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(module):
    """The module in float64, with random parameters."""
    module.double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(0.3 * noise(*parameter.shape, seed=seed))
    return module.requires_grad_(False)


def tensors(module):
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


@given(
    taps=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(lambda half: half + half[::-1]),
    half_side=st.integers(1, 4),
)
def test_resampling_matches_the_filter_definition(taps, half_side):
    x = noise(2, 3, 2 * half_side, 2 * half_side)
    down = layers.Conv2d(3, 3, 0, down=True, resample_filter=taps).double()
    up = layers.Conv2d(3, 3, 0, up=True, resample_filter=taps).double()
    # The layers store the filter in float32, as EDM's files do.
    np.testing.assert_allclose(down(x), direct.down(x.numpy(), taps), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(up(x), direct.up(x.numpy(), taps), rtol=1e-5, atol=1e-6)
    assert down(x).shape[2:] == (half_side, half_side)
    assert up(x).shape[2:] == (4 * half_side, 4 * half_side)


@pytest.mark.parametrize("channels", [4, 12, 128, 160])
def test_group_norm_has_groups_of_at_least_four_channels(channels):
    x = 3 * noise(2, channels, 3, 3) + 1
    layer = filled(layers.group_norm(channels, 1e-6))
    weight, bias = (p.numpy() for p in layer.parameters())
    np.testing.assert_allclose(layer(x), direct.group_norm(x.numpy(), weight, bias, 1e-6), **CLOSE)


def test_channels_that_do_not_divide_into_heads_are_refused():
    with pytest.raises(ValueError, match="10 channels do not divide into 3 heads"):
        layers.UNetBlock(8, 10, 5, adm=True, heads=3)
