"""MSE and r2 as defined in the papers."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from golddiff import metrics
from golddiff.system.errors import ArgumentError

A = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
B = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_mse_is_computed_on_pixels_from_0_to_1():
    expected = (((A - B) / 2) ** 2).flatten(1).mean(1)
    assert torch.allclose(metrics.mse_per_image(A, B).float(), expected)
    assert metrics.mse(A, B) == pytest.approx(float(expected.mean()))


def test_r2_is_1_minus_the_unexplained_share_of_variance():
    a, b = (((t + 1) / 2).flatten(1).double() for t in (A, B))
    expected = 1 - ((a - b) ** 2).sum(1) / (48 * b.var(1))
    assert torch.allclose(metrics.r2_per_image(A, B), expected)
    assert metrics.r2(A, A) == 1


def test_images_are_clipped_before_comparison():
    assert metrics.mse(A * 0 + 5, A * 0 + 1) == 0


def test_r2_of_a_constant_reference_is_nan():
    assert torch.isnan(metrics.r2(A, torch.zeros_like(A)))


def test_sharpness_and_speckle_follow_their_definitions():
    wide = torch.rand(4, 2, 7, 9, generator=torch.Generator().manual_seed(2)) * A.std()
    laplacian = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    for measure, of in (
        (metrics.sharpness, lambda v: ndimage.convolve(v, laplacian)),
        (metrics.speckle, lambda v: v - ndimage.median_filter(v, (1, 1, 3, 3))),
    ):
        inner = [np.abs(of(t.double().numpy())[..., 1:-1, 1:-1]).mean() for t in (A, wide)]
        assert measure(A, wide) == pytest.approx(inner[0] / inner[1])


def test_shapes_must_match():
    for measure, images in (
        (metrics.mse, A[:2]), (metrics.sharpness, A[:, 0]), (metrics.speckle, A[:, 0])
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="images: got shape"):
            measure(images, B)
    with pytest.raises(ArgumentError, match="expected"):  # no pixel has all its neighbours
        metrics.sharpness(A[:, :, :2], A[:, :, :2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("measure", [metrics.mse, metrics.r2])
def test_values_that_are_not_finite_are_refused(measure, value):
    """Clipped to pixels, infinity would count as white."""
    with pytest.raises(ArgumentError, match="reference: holds NaN or infinity"):
        measure(A, torch.full_like(A, value))


@pytest.mark.parametrize("measure", [metrics.mse, metrics.r2, metrics.sharpness, metrics.speckle])
def test_pixels_from_0_to_255_are_refused(measure):
    with pytest.raises(ArgumentError, match=r"images: got torch\.uint8, expected a floating-point"):
        measure(((A + 1) * 127).to(torch.uint8), B)
