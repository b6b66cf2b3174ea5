import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.gpu import DEVICE, random_rows, stored_images

from golddiff.kernels import gather_torch, gather_triton  # isort: skip (after the check)

both = pytest.mark.parametrize("kernels", [gather_triton, gather_torch])


@both
@settings(max_examples=8)
@given(st.integers(1, 140), st.integers(1, 70), st.integers(1, 3), st.booleans(), st.integers(0, 9))
def test_distances_and_weighted_sums_equal_float64(kernels, d, k, b, shared, seed):
    generator = torch.Generator().manual_seed(seed)
    pixels, _ = stored_images(generator, 50, d, -(-d // 128) * 128)
    rows = random_rows(generator, 50, k, 1 if shared else b)
    x = (100 * torch.randn(b, d, generator=generator)).to(DEVICE)
    values = pixels[rows, :d].double()
    exact = (values - 127.5 - x[:, None].double()).square().sum(dim=2)
    found = kernels.squared_distances(pixels, rows, x, -127.5)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-3)

    weights = torch.rand(b, k, generator=generator).to(DEVICE)
    weights[:, : k // 2] = 0  # blocks of zeros are not read
    sums = kernels.weighted_sums(pixels, rows, weights, d)
    exact = (weights[:, :, None].double() * values).sum(dim=1)
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=1e-2)


@both
def test_float_images_too(kernels):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(9, 128, generator=generator).to(DEVICE)
    rows = random_rows(generator, 9, 5, 2)
    x = torch.randn(2, 128, generator=generator).to(DEVICE)
    exact = (pixels[rows] - x[:, None]).square().sum(dim=2)
    torch.testing.assert_close(kernels.squared_distances(pixels, rows, x, 0.0), exact)


def test_ragged_rows_are_refused():
    pixels = torch.zeros((3, 100), dtype=torch.uint8, device=DEVICE)
    rows = torch.zeros((1, 1), dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="pixels: got rows of 100"):
        gather_triton.squared_distances(pixels, rows, torch.zeros((1, 100), device=DEVICE), 0.0)
