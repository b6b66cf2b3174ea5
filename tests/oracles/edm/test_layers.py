"""Each layer against its definition, written out in NumPy and float64."""

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
    """Float64, with random parameters."""
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
def test_resampling_is_the_filter_and_every_second_pixel(taps, half_side):
    x = noise(2, 3, 2 * half_side, 2 * half_side)
    down = layers.Conv2d(3, 3, 0, down=True, resample_filter=taps).double()
    up = layers.Conv2d(3, 3, 0, up=True, resample_filter=taps).double()
    # The filter itself is kept in float32, as in the files.
    np.testing.assert_allclose(down(x), direct.down(x.numpy(), taps), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(up(x), direct.up(x.numpy(), taps), rtol=1e-5, atol=1e-6)
    assert down(x).shape[2:] == (half_side, half_side)
    assert up(x).shape[2:] == (4 * half_side, 4 * half_side)


@pytest.mark.parametrize("taps", [(1, 1), (1, 3, 3, 1)])
def test_resampling_keeps_a_constant_image_inside(taps):
    flat = torch.ones(1, 2, 8, 8)
    for options in ({"up": True}, {"down": True}):
        made = layers.Conv2d(2, 2, 0, resample_filter=taps, **options)(flat)
        torch.testing.assert_close(made[:, :, 1:-1, 1:-1], torch.ones_like(made)[:, :, 1:-1, 1:-1])


@pytest.mark.parametrize("kernel", [1, 3])
def test_resampling_comes_before_the_convolution(kernel):
    x, taps = noise(1, 2, 6, 6), (1, 1)
    layer = filled(layers.Conv2d(2, 3, kernel, down=True, resample_filter=taps))
    expected = direct.conv(direct.down(x.numpy(), taps), *map(np.asarray, layer.parameters()))
    np.testing.assert_allclose(layer(x), expected, **CLOSE)


@pytest.mark.parametrize("taps", [(1, 1), (1, 3, 3, 1)])
def test_in_the_residual_path_the_convolution_comes_first(taps):
    x = noise(2, 3, 8, 8)
    layer = filled(layers.ConvThenDown(3, 4, 3, down=True, resample_filter=taps))
    weight, bias = (p.numpy() for p in layer.parameters())
    wide = direct.conv(x.numpy(), weight, padding=1 + (len(taps) - 1) // 2)
    expected = direct.down(wide, taps, padding=0) + bias[:, None, None]
    np.testing.assert_allclose(layer(x), expected, **CLOSE)
    assert expected.shape == (2, 4, 4, 4)


@pytest.mark.parametrize("channels", [4, 12, 128, 160])
def test_group_norm_has_groups_of_at_least_four_channels(channels):
    x = 3 * noise(2, channels, 3, 3) + 1
    layer = filled(layers.group_norm(channels, 1e-6))
    weight, bias = (p.numpy() for p in layer.parameters())
    np.testing.assert_allclose(layer(x), direct.group_norm(x.numpy(), weight, bias, 1e-6), **CLOSE)


@pytest.mark.parametrize("endpoint", [True, False])
def test_positional_embedding_has_geometric_frequencies(endpoint):
    levels = noise(5) * 3
    made = layers.PositionalEmbedding(16, endpoint=endpoint)(levels)
    expected = np.concatenate(direct.positional(levels.numpy(), 16, endpoint), axis=1)
    np.testing.assert_allclose(made, expected, **CLOSE)


def test_fourier_embedding_uses_the_frequencies_of_the_file():
    layer = layers.FourierEmbedding(6).double()
    layer.freqs.copy_(torch.tensor([0.25, 0.5, 1.0]))
    made = layer(torch.tensor([1.0], dtype=torch.float64))
    np.testing.assert_allclose(made, [[0, -1, 1, 1, 0, 0]], atol=1e-12)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_is_softmax_over_all_pixels(heads):
    x = noise(2, 8, 3, 3)
    block = filled(layers.UNetBlock(8, 8, 5, heads=heads))
    t = direct.Tensors(tensors(block), "")
    qkv = t.conv("qkv", t.norm("norm2", x.numpy(), 1e-5))
    # Neighbouring channels of qkv are q, k and v of one channel, heads in blocks.
    expected = np.empty((2, 8, 9))
    size = 8 // heads
    for image in range(2):
        for head in range(heads):
            own = qkv[image].reshape(24, 9)[3 * size * head : 3 * size * (head + 1)]
            made = direct.attention(own[0::3], own[1::3], own[2::3])
            expected[image, size * head : size * (head + 1)] = made
    np.testing.assert_allclose(block._attention(x).reshape(2, 8, 9), expected, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"up": True}, {"down": True}])
@pytest.mark.parametrize("out", [8, 12])
@pytest.mark.parametrize("song", [True, False])
def test_a_block_is_its_equation(options, out, song):
    x, emb = noise(2, 8, 4, 4), noise(2, 5, seed=1)
    more = (
        {"skip_scale": 0.5**0.5, "eps": 1e-6, "resample_proj": True, "adaptive_scale": False}
        if song
        else {}
    )
    block = filled(layers.UNetBlock(8, out, 5, heads=1, **options, **more))
    resample = direct.resampling(next(iter(options), ""), (1, 1))
    t = direct.Tensors(tensors(block), "")
    expected = direct.block(t, x.numpy(), emb.numpy(), song, resample, out)
    np.testing.assert_allclose(block(x, emb), expected, **CLOSE)


def test_channels_that_do_not_divide_into_heads_are_refused():
    with pytest.raises(ValueError, match="10 channels do not divide into 3 heads"):
        layers.UNetBlock(8, 10, 5, heads=3)
