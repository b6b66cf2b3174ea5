import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golddiff.estimators import reference
from tests.kernels.gpu import DEVICE, OFFSET, SCALE, random_rows, stored_images

from golddiff.kernels import masked_torch, masked_triton  # isort: skip (after the check)
from golddiff.kernels.mask_blocks import NARROW, WIDE, MaskBlocks, Tiling  # isort: skip
from golddiff.kernels.masked_terms import ONE_PART_FROM, terms  # isort: skip

SMALL = Tiling(inputs=16, outputs=32, images=16, warps=4)


class Problem:
    """Random images, masks and queries, and their posterior means in float64."""

    def __init__(self, d, k, b, sigma, tiling=SMALL, seed=0, shared=False):
        generator = torch.Generator().manual_seed(seed)
        block = max(tiling.inputs, tiling.outputs)
        self.d, self.sigma = d, sigma
        self.pixels, self.values = stored_images(generator, k + 3, d, -(-d // block) * block)
        self.rows = random_rows(generator, k + 3, k, 1 if shared else b)
        mask = (torch.rand(d, d, generator=generator) < 0.3) | torch.eye(d, dtype=torch.bool)
        self.mask = mask.numpy()
        self.blocks = MaskBlocks.of(mask.to(DEVICE), tiling)
        x = self.values[self.rows[:, 0].expand(b).cpu().numpy()]
        x = x + sigma * torch.randn(b, d, generator=generator).double().numpy()
        self.x = torch.from_numpy(x.astype(np.float32)).to(DEVICE)

    def partials(self, rows=None, log_weights=None, part_size=None, kernels=masked_triton):
        rows = self.rows if rows is None else rows
        queries = terms(self.x, self.sigma, SCALE, OFFSET, 127.5, None)
        return kernels.masked_partials(
            self.pixels, rows, log_weights, queries, self.blocks, SCALE, OFFSET, part_size
        )

    def exact(self):
        x = self.x.cpu().double().numpy()
        rows = self.rows.expand(len(x), -1).cpu().numpy()
        return np.stack(
            [
                reference.pca(q, self.sigma, self.values[r], self.mask)
                for q, r in zip(x, rows, strict=True)
            ]
        )


def tolerance(sigma):
    # Random pixels are the worst there are: unlike real ones they vary on their own.
    return 2e-3 if sigma >= ONE_PART_FROM else 5e-5


@settings(max_examples=12)
@given(
    d=st.integers(1, 40),
    k=st.integers(1, 24),
    b=st.integers(1, 2),
    sigma=st.sampled_from([0.01, 0.1, 0.7, 1.0, 2.0, 5.0, 12.0, 80.0]),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_the_equation_in_float64(d, k, b, sigma, shared, seed):
    problem = Problem(d, k, b, sigma, seed=seed, shared=shared)
    mean = problem.partials().merged().mean().cpu().numpy()
    np.testing.assert_allclose(mean, problem.exact(), atol=tolerance(sigma))
    twin = problem.partials(kernels=masked_torch).merged().mean().cpu().numpy()
    np.testing.assert_allclose(twin, problem.exact(), atol=5e-5)


@pytest.mark.parametrize("tiling", [WIDE, NARROW])
def test_the_tilings_in_use_equal_the_equation(tiling):
    problem = Problem(140, 70, 1, 0.5, tiling)
    mean = problem.partials().merged().mean().cpu().numpy()
    np.testing.assert_allclose(mean, problem.exact(), atol=5e-5)


def test_parts_of_a_support_merge_to_the_whole():
    problem = Problem(20, 37, 2, 0.7)
    parts = problem.partials(part_size=16)
    assert parts.log_max.shape == (3, 2, 20)
    whole = problem.partials(part_size=48).merged()
    for some, all_ in zip(vars(parts.merged()).values(), vars(whole).values(), strict=True):
        torch.testing.assert_close(some, all_, rtol=1e-4, atol=1e-4)


def test_a_log_weight_of_log_2_is_a_second_copy_and_of_minus_infinity_is_no_image():
    problem = Problem(12, 9, 1, 2.0)
    weights = torch.zeros((1, 9), device=DEVICE)
    weights[0, 2], weights[0, 5] = np.log(2), -torch.inf
    kept = [0, 1, 2, 2, 3, 4, 6, 7, 8]
    weighted = problem.partials(log_weights=weights).merged().mean()
    copied = problem.partials(rows=problem.rows[:, kept]).merged().mean()
    torch.testing.assert_close(weighted, copied, rtol=1e-5, atol=1e-5)


def test_a_support_with_no_image_left_says_so():
    problem = Problem(5, 3, 1, 1.0)
    nothing = problem.partials(log_weights=torch.full((1, 3), -torch.inf, device=DEVICE)).merged()
    assert bool(torch.isneginf(nothing.log_max).all())
    assert float(nothing.total.abs().max()) == 0
    other = problem.partials().merged()
    torch.testing.assert_close(nothing.merge(other).mean(), other.mean())


@pytest.mark.parametrize("kernels", [masked_triton, masked_torch])
def test_a_far_query_at_the_lowest_noise_overflows_nothing(kernels):
    problem = Problem(6, 4, 1, 0.002)
    problem.x = problem.x * 1e6
    assert bool(torch.isfinite(problem.partials(kernels=kernels).merged().mean()).all())


def test_rows_shorter_than_the_masks_blocks_are_refused():
    problem = Problem(40, 4, 1, 1.0)
    problem.pixels = problem.pixels[:, :40].contiguous()
    with pytest.raises(ValueError, match="pixels: got rows of 40"):
        problem.partials()
