"""A few orthonormal coordinates of each training image: what ranking compares, not pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from golddiff.kernels.aligned import zeros
from golddiff.kernels.products import padded
from golddiff.store.images import ImageStore
from golddiff.store.proxy import pools, quarter_shape

COMPONENTS = 128
IMAGES_AT_ONCE = 2048


@dataclass(frozen=True)
class Coordinates:
    """Images as z_i = B (x_i - mean), with orthonormal rows B.

    Attributes:
        mean: (D,) float32.
        basis: (r, D) float32.
        z: (r, n) float32, an image a column; n is N rounded up as
            :func:`golddiff.kernels.products.padded` does, the columns past N are 0.
    """

    mean: NDArray[np.float32]
    basis: NDArray[np.float32]
    z: NDArray[np.float32]

    def first(self, count: int) -> Coordinates:
        """The first coordinates alone, sharing memory."""
        return Coordinates(self.mean, self.basis[:count], self.z[:count])

    def of(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """B v of some vectors (T, D), as (T, r)."""
        return (torch.from_numpy(vectors) @ torch.from_numpy(self.basis).T).numpy()


@dataclass(frozen=True)
class SparseCoordinates(Coordinates):
    """Coordinates whose basis is nearly all zeros, as that of pools.

    Attributes:
        rows: the basis again, without its zeros.
    """

    rows: csr_array

    def of(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """See :class:`Coordinates`; the zeros, nearly all of the basis, are not read."""
        made: NDArray[np.float32] = np.ascontiguousarray((self.rows @ vectors.T).T)
        return made


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


def pooled(store: ImageStore) -> Coordinates:
    """The paper's proxies, scaled to rows of length 1; points (D,) as they are.

    Where a side is no multiple of the proxy's, neighbouring pools share pixels, and the rows are
    only nearly orthogonal.
    """
    basis, lengths = pools(store.shape)
    z = zeros((len(basis), padded(store.n)))
    z[:, : store.n] = (store.proxies(quarter_shape(store.shape)) / lengths).T
    basis /= lengths[:, None]
    return SparseCoordinates(np.zeros(store.d, np.float32), basis, z, csr_array(basis))
