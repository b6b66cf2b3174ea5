import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.gpu import DEVICE

from golddiff.kernels import screen_torch, screen_triton  # isort: skip (after the check)
from golddiff.kernels.screen_torch import Proxies, pool_unit  # isort: skip

both = pytest.mark.parametrize("kernels", [screen_triton, screen_torch])


def pooled(n, d, area, seed=0):
    """Means of ``area`` 8-bit pixels, (n, d) float32, and the unit that they count in."""
    pixels = np.random.default_rng(seed).integers(0, 256, (n, d, area))
    unit = pool_unit(1 / 127.5, (1, d, area), (1, d, 1))
    return (pixels / 127.5 - 1).mean(axis=2).astype(np.float32), unit


@pytest.mark.parametrize("area", [1, 4, 16])
def test_proxies_of_8_bit_images_are_exact_in_float16(area):
    values, unit = pooled(300, 7, area)
    proxies = Proxies.of(values, unit, DEVICE)
    assert proxies.levels.dtype == torch.float16
    back = proxies.levels[:, :7].double().cpu().numpy() * proxies.unit
    np.testing.assert_allclose(back, values, atol=2e-7)


@pytest.mark.parametrize("values", [np.linspace(-1, 1, 60).reshape(10, 6), np.full((2, 3), 1e6)])
def test_values_that_float16_would_round_stay_float32(values):
    proxies = Proxies.of(values.astype(np.float32), 1 / 255, DEVICE)
    assert proxies.levels.dtype == torch.float32
    assert proxies.unit == 1.0


@both
@settings(max_examples=6)
@given(st.integers(1, 150), st.integers(1, 40), st.integers(1, 18), st.booleans(), st.booleans())
def test_distances_are_those_of_float64_less_the_querys_norm(kernels, n, d, b, some, floats):
    values, unit = pooled(n, d, 16)
    proxies = Proxies.of(values * (0.1234 if floats else 1), unit, DEVICE)
    generator = torch.Generator().manual_seed(n)
    x = (60 * torch.randn(b, d, generator=generator)).to(DEVICE)
    rows = torch.randperm(n, generator=generator)[: n // 2 + 1].to(DEVICE) if some else None
    found = kernels.proxy_distances(proxies, x, rows) * proxies.unit**2
    p = proxies.levels[:, :d].double() * proxies.unit
    p = p if rows is None else p[rows]
    exact = p.square().sum(dim=1) - 2 * x.double() @ p.T
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-3)


distances = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.0, -0.0]),
)


@both
@settings(max_examples=30)
@given(st.lists(distances, min_size=1, max_size=40), st.data())
def test_the_smallest_of_equals_the_first_are_kept_in_order(kernels, values, data):
    k = data.draw(st.integers(1, len(values)))
    table = torch.tensor([values, values[::-1]], dtype=torch.float32)
    expected = torch.argsort(table + 0.0, dim=1, stable=True)[:, :k].sort(dim=1).values
    assert torch.equal(kernels.smallest(table.to(DEVICE), k).cpu(), expected)


@both
def test_many_distances_take_several_blocks(kernels):
    table = torch.randn(2, 2500, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    expected = torch.argsort(table, dim=1, stable=True)[:, :1700].sort(dim=1).values
    assert torch.equal(kernels.smallest(table, 1700), expected)
