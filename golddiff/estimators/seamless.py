"""Outputs without seams between neighbouring pixels whose values come from different images.

The same weights give the mean of each pixel and of its differences to the next pixel below and to
the right: m = E[x0] and g = E[grad x0]. A seam between two source images appears in m, but not in
g. The output fits both by least squares,

    u = argmin  lambda ||u - m||^2 + ||grad u - g||^2 = (lambda + L)^-1 (lambda m + grad^T g),

with L = grad^T grad, which the cosine transform diagonalises (Perez, Gangnet & Blake 2003 blend two
images in this way). If all weight is on one image, then g = grad m and u = m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn, idctn

from golddiff.system.numbers import F64

LAMBDA = 0.1  # larger values stay closer to m: 0.02 washes out colours, 0.3 leaves faint seams


@dataclass(frozen=True)
class Seamless:
    """Combines means of values and differences (b, V) into images (b, D); V = 3 D."""

    shape: tuple[int, ...]  # (C, H, W) of an image

    @property
    def n_values(self) -> int:
        """V, the number of means."""
        return 3 * math.prod(self.shape)

    def summands(self, values: NDArray[Any]) -> NDArray[Any]:
        """Images (k, D) with their differences down and right, 0 at the last pixel, (k, V)."""
        images = values.reshape(len(values), *self.shape)
        out = np.zeros((len(values), 3, *self.shape), values.dtype)
        out[:, 0] = images
        np.subtract(images[:, :, 1:], images[:, :, :-1], out=out[:, 1, :, :-1])
        np.subtract(images[..., 1:], images[..., :-1], out=out[:, 2, ..., :-1])
        return out.reshape(len(values), -1)

    def outputs(self, means: F64) -> F64:
        """The images u (b, D) that fit the means (b, V)."""
        m, down, right = means.reshape(len(means), 3, *self.shape).swapaxes(0, 1)
        adjoint = (np.roll(down, 1, 2) - down) + (np.roll(right, 1, 3) - right)  # grad^T
        return smoothed(LAMBDA * m + adjoint, LAMBDA).reshape(len(means), -1)

    def transposed(self, cotangents: F64) -> F64:
        """The transpose of the linear map :meth:`outputs`, from (b, D) to (b, V)."""
        b, d = cotangents.shape
        transposed = self.summands(smoothed(cotangents.reshape(b, *self.shape), LAMBDA))
        transposed[:, :d] *= LAMBDA
        return transposed


def smoothed(images: F64, flatness: float, power: float = 1.0) -> F64:
    """(flatness + L)^-power applied to images (b, C, H, W)."""
    eigenvalues = [2 - 2 * np.cos(np.pi * np.arange(n) / n) for n in images.shape[2:]]
    scale = (flatness + eigenvalues[0][:, None] + eigenvalues[1]) ** power
    spectrum = dctn(images, axes=(2, 3), norm="ortho") / scale
    return idctn(spectrum, axes=(2, 3), norm="ortho")
