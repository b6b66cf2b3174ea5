"""Pictures without seams: where an output's neighbours come from other images, edges do not.

Next to the value of each pixel that of its difference to the next one down and to the right is
estimated, under the same weights: m = E[x0] and g = E[grad x0]. Where sources change, the step
between two images is in m, and not in g. The output fits both by least squares,

    u = argmin  lambda ||u - m||^2 + ||grad u - g||^2 = (lambda + L)^-1 (lambda m + grad^T g),

with L = grad^T grad, which the cosine transform diagonalises (Perez, Gangnet & Blake 2003 join two
images so). Of one image alone g = grad m, and u = m.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn, idctn

from golddiff.system.numbers import F64

LAMBDA = 0.1  # the larger, the nearer to m: 0.02 washes colours out, 0.3 leaves a hint of seams


@dataclass(frozen=True)
class Seamless:
    """Joins means of values and of differences, (b, V), to images (b, D); V = 3 D."""

    shape: tuple[int, ...]  # of an image, (C, H, W)

    def given(self, values: NDArray[Any]) -> NDArray[Any]:
        """Images (k, D) and their differences down and right, 0 past the end: (k, V)."""
        images = values.reshape(len(values), *self.shape)
        down = np.diff(images, axis=2, append=images[:, :, -1:])
        right = np.diff(images, axis=3, append=images[..., -1:])
        return np.concatenate([a.reshape(len(values), -1) for a in (images, down, right)], axis=1)

    def joined(self, means: F64) -> F64:
        """The images u that fit means; differences past the end are 0 in them."""
        m, down, right = means.reshape(len(means), 3, *self.shape).swapaxes(0, 1)
        back = (np.roll(down, 1, 2) - down) + (np.roll(right, 1, 3) - right)  # grad^T
        return _solved(LAMBDA * m + back).reshape(len(means), -1)

    def transposed(self, cotangents: F64) -> F64:
        """The transpose of :meth:`joined`: (b, D) to (b, V)."""
        b, d = cotangents.shape
        found = self.given(_solved(cotangents.reshape(b, *self.shape)))
        found[:, :d] *= LAMBDA
        return found


def _solved(images: F64) -> F64:
    """(lambda + L)^-1 of images (b, C, H, W)."""
    eigenvalues = [2 - 2 * np.cos(np.pi * np.arange(n) / n) for n in images.shape[2:]]
    scale = LAMBDA + eigenvalues[0][:, None] + eigenvalues[1]
    found: F64 = idctn(dctn(images, axes=(2, 3), norm="ortho") / scale, axes=(2, 3), norm="ortho")
    return found
