"""The first principal components of every image: what all ways to search compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.kernels.aligned import zeros
from golddiff.kernels.gather import padded
from golddiff.store.images import ImageStore

COMPONENTS = 128
IMAGES_AT_ONCE = 2048


@dataclass(frozen=True)
class Coordinates:
    """Images as z_i = B (x_i - mean), with orthonormal rows B.

    Attributes:
        mean: (D,) float32.
        basis: (r, D) float32.
        z: (r, n) float32, an image a column; n is N rounded up as
            :func:`golddiff.kernels.gather.padded` does, the columns past N are 0.
    """

    mean: NDArray[np.float32]
    basis: NDArray[np.float32]
    z: NDArray[np.float32]

    def of(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """B v of some vectors (T, D), as (T, r)."""
        return (torch.from_numpy(vectors) @ torch.from_numpy(self.basis).T).numpy()


def principal(store: ImageStore) -> Coordinates:
    """The first principal components, at most ``COMPONENTS``."""
    factor = store.factor()
    mean = factor.mean.astype(np.float32)
    basis = np.ascontiguousarray(factor.eigenvectors[:, :COMPONENTS].T.astype(np.float32))
    z = zeros((len(basis), padded(store.n)))
    turned = torch.from_numpy(basis.T.copy())
    for start in range(0, store.n, IMAGES_AT_ONCE):
        part = slice(start, min(start + IMAGES_AT_ONCE, store.n))
        values = store.values(store.rows_of(None)[part]) - mean
        z[:, part] = torch.mm(torch.from_numpy(values), turned).numpy().T
    return Coordinates(mean, basis, z)
