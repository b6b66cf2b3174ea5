"""A mixture of Gaussians as the prior of small patches: flat here, an edge there, wherever it is.

Of a whole image a mixture knows the few hundred kinds that its components stand for; of a patch of
8 x 8 pixels a hundred components tell nearly all kinds. What a patch does not see is not used, so
at high noise, where only wide averages tell anything, the Gaussian of whole images does better.
Zoran & Weiss 2011 denoise photographs so.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.estimators.mixture import Components, cluster, denoised, fit
from golddiff.store.images import ImageStore
from golddiff.support import Prior
from golddiff.system.arguments import check_count
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, I64

FITTED_TO = 20_000  # images
PATCHES_AN_IMAGE = 5
PATCHES_A_COMPONENT = 500  # at least, on average
CLUSTERED_BY = 48  # leading principal components that patches are clustered by
IMAGES_AT_ONCE = 2000
ROWS_AND_COLUMNS = 16  # of patches, at most about so many: a step of 2 pixels at 32 x 32, 4 at 64


@dataclass(frozen=True)
class Patches:
    """What is fitted."""

    mean: F64  # (d,) of the patches' d = C * side^2 values
    eigenvalues: F64  # (d,) of their covariance, descending, >= 0
    eigenvectors: F64  # (d, d), in columns
    components: Components  # of their leading coordinates

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The same as arrays, for a file; every name begins with "patches."."""
        arrays = {"mean": self.mean, "values": self.eigenvalues, "vectors": self.eigenvectors}
        arrays |= vars(self.components)
        return {f"patches.{name}": array for name, array in arrays.items()}

    @classmethod
    def of_tensors(cls, tensors: dict[str, NDArray[Any]]) -> Patches:
        """Those of :meth:`tensors`, from among others."""
        fitted = {field.name: tensors[f"patches.{field.name}"] for field in fields(Components)}
        mean, values, vectors = (tensors[f"patches.{k}"] for k in ("mean", "values", "vectors"))
        return cls(mean, values, vectors, Components(**fitted))


class PatchMixture(Denoiser):
    """The mean of E[x0_q | the patch of x] over the patches that hold the output value q.

    A patch of x is a patch of x0 with the same noise, so under a mixture of Gaussians as the prior
    of patches (the same one wherever the patch lies) its posterior mean is that of
    :class:`golddiff.estimators.mixture.GaussianMixture`. The components differ within the ``rank``
    leading principal components of all patches; on the rest all share the Gaussian of all patches.
    The patches that hold a value weigh as near as it lies to their middle.

    The class of an image has no part in it. Fitting takes some seconds.

    Args:
        store: images (C, H, W), pixels or latents.
        side: of a patch, at most H and W; default 8, half of an image's smaller side where that is
            less.
        components: at most; fewer where that would leave under 500 patches each.
        rank: at most.
        shrinkage: in patches; see :class:`golddiff.estimators.mixture.GaussianMixture`.
        seed: of the patches drawn, from at most 20,000 images, and the clustering.

    Raises:
        ArgumentError: a store of points; an argument outside its range.
    """

    def __init__(
        self,
        store: ImageStore,
        side: int | None = None,
        components: int = 100,
        rank: int = 64,
        shrinkage: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__(store)
        if len(self.store.shape) != 3:
            raise ArgumentError(f"store: holds points of shape {self.store.shape}, expected images")
        smaller = min(self.store.shape[1:])
        side = max(1, min(8, smaller // 2)) if side is None else side
        for name, value in (("side", side), ("components", components), ("rank", rank)):
            check_count(name, value)
        if side > smaller:
            raise ArgumentError(f"side: got {side}, expected at most {smaller}, the images' side")
        if not isinstance(shrinkage, int | float | np.floating) or not 0 <= shrinkage < np.inf:
            raise ArgumentError(f"shrinkage: got {shrinkage!r}, expected a number of patches, >= 0")
        self.side, self.components, self.rank, self.shrinkage = side, components, rank, shrinkage
        self.seed = seed
        self._fitted: Patches | None = None

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Means (b, D) over patches of their posterior means."""
        fitted, p = self.fitted(), self.side
        images = x.reshape(-1, *self.store.shape)
        tops, lefts = (_places(size, p) for size in images.shape[2:])
        windows = np.lib.stride_tricks.sliding_window_view(images, (p, p), axis=(2, 3))
        found = windows[:, :, tops][:, :, :, lefts].transpose(0, 2, 3, 1, 4, 5)
        clean = self._clean(fitted, found.reshape(-1, len(fitted.mean)), sigma).reshape(found.shape)
        nearness = _nearness(p)
        sums, weights = np.zeros_like(images), np.zeros(images.shape[2:], np.float32)
        for i, top in enumerate(tops):
            for j, left in enumerate(lefts):
                here = np.s_[..., top : top + p, left : left + p]
                sums[here] += clean[:, i, j] * nearness
                weights[here] += nearness
        out: F32 = (sums / weights).reshape(x.shape)
        return out

    def fitted(self) -> Patches:
        """The prior of patches; made at the first call and kept."""
        if self._fitted is None:
            self._fitted = self._fit()
        return self._fitted

    def keep(self, fitted: Patches) -> None:
        """Take the prior as given, instead of fitting it."""
        self._fitted = fitted

    @staticmethod
    def _clean(fitted: Patches, patches: F32, sigma: float) -> F32:
        """Posterior means of patches (n, d)."""
        shrinkage = fitted.eigenvalues / (fitted.eigenvalues + sigma**2)
        return denoised(
            patches, sigma, fitted.mean, fitted.eigenvectors, shrinkage, fitted.components
        )

    def _fit(self) -> Patches:
        drawn = self._drawn(np.random.default_rng([7, self.seed]))
        mean = drawn.mean(axis=0, dtype=np.float64)
        drawn -= mean.astype(np.float32)
        covariance = (drawn.T @ drawn).astype(np.float64) / max(len(drawn) - 1, 1)
        eigenvalues, eigenvectors = np.linalg.eigh(covariance)
        # Ascending, and rounding leaves tiny negative ones where there is no variance.
        eigenvalues, eigenvectors = eigenvalues[::-1].clip(min=0), eigenvectors[:, ::-1]
        r = min(self.rank, len(eigenvalues))
        z = drawn @ eigenvectors[:, :r].astype(np.float32)
        clusters = min(self.components, max(1, len(z) // PATCHES_A_COMPONENT))
        members = cluster(z[:, :CLUSTERED_BY], clusters, self.seed)
        return Patches(
            mean, np.ascontiguousarray(eigenvalues), np.ascontiguousarray(eigenvectors),
            fit(z, members, self.shrinkage),
        )  # fmt: skip

    def _drawn(self, generator: np.random.Generator) -> F32:
        """Patches (n, d), each from a place of its own, drawn at random."""
        rows = np.arange(self.store.n)
        if len(rows) > FITTED_TO:
            rows = np.sort(generator.choice(rows, FITTED_TO, replace=False))
        p, (channels, height, width) = self.side, self.store.shape
        patches = []
        for i in range(0, len(rows), IMAGES_AT_ONCE):
            part = rows[i : i + IMAGES_AT_ONCE]
            images = self.store.values(part).reshape(-1, channels, height, width)
            windows = np.lib.stride_tricks.sliding_window_view(images, (p, p), axis=(2, 3))
            each = np.repeat(np.arange(len(part)), PATCHES_AN_IMAGE)
            tops = generator.integers(0, height - p + 1, len(each))
            lefts = generator.integers(0, width - p + 1, len(each))
            patches.append(windows[each, :, tops, lefts].reshape(len(each), -1))
        return np.concatenate(patches)


def _places(size: int, side: int) -> I64:
    """Where patches begin along an axis: every other pixel or so, and at its end."""
    step = max(1, min(side // 2, -(-size // ROWS_AND_COLUMNS)))
    return np.unique(np.append(np.arange(0, size - side + 1, step), size - side))


def _nearness(side: int) -> F32:
    """(side, side) weights, largest in the middle, all above 0."""
    along = 1 - np.abs(2 * np.arange(side) + 1 - side) / (side + 1)
    weights: F32 = np.outer(along, along).astype(np.float32)
    return weights
