"""Mixtures of Gaussians as the prior of patches, one for each region of the image.

Of a whole image a mixture knows the few hundred kinds that its components stand for; of a quarter
of it a hundred components tell more kinds, and at one place: a sleeve lies where sleeves lie. What
a patch does not see is not used, so at high noise, where only wide averages tell anything, the
Gaussians of whole images do better. Zoran & Weiss 2011 denoise photographs so, with small patches
that are alike wherever they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.estimators.mixture import Components, cluster, denoised, fit
from golddiff.store.images import StoreOrPath
from golddiff.support import Prior
from golddiff.system.arguments import as_number
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, I64, check_count, check_seed

FITTED_TO = 20_000  # images
PATCHES_A_COMPONENT = 200  # at least, on average
CLUSTERED_BY = 48  # leading principal components that patches are clustered by
IMAGES_AT_ONCE = 2000
LARGEST = 16  # side of a patch, in pixels, where nobody asks for a larger one
REGIONS = 3  # along each axis


@dataclass(frozen=True)
class Patches:
    """What is fitted, of one region."""

    mean: F64  # (d,) of the patches' d = C * side^2 values
    eigenvalues: F64  # (d,) of their covariance, descending, >= 0
    eigenvectors: F32  # (d, d), in columns
    components: Components  # of their leading coordinates

    def tensors(self, region: int) -> dict[str, NDArray[Any]]:
        """The same as arrays, for a file; every name begins with "patches." and the region."""
        arrays: dict[str, NDArray[Any]] = dict(vars(self.components))
        arrays |= {"mean": self.mean, "values": self.eigenvalues, "vectors": self.eigenvectors}
        return {f"patches.{region}.{name}": array for name, array in arrays.items()}

    @classmethod
    def of_tensors(cls, tensors: dict[str, NDArray[Any]], region: int) -> Patches:
        """Those of :meth:`tensors`, from among others."""
        mean, values, vectors = (
            tensors[f"patches.{region}.{name}"] for name in ("mean", "values", "vectors")
        )
        fitted = {f.name: tensors[f"patches.{region}.{f.name}"] for f in fields(Components)}
        return cls(mean, values, vectors, Components(**fitted))


class PatchMixture(Denoiser):
    """The mean of E[x0_q | the patch of x] over the patches that hold the output value q.

    A patch of x is a patch of x0 with the same noise, so under a mixture of Gaussians as the prior
    of patches its posterior mean is that of :class:`golddiff.estimators.mixture.GaussianMixture`.
    Patches overlap by half. The image has 3 x 3 regions (fewer where it has fewer patches), each
    with a prior of its own, fitted to a patch of each image: one of the region's, moved by a pixel
    at most. The components differ within the ``rank`` leading principal components of a region's
    patches; on the rest all share the Gaussian of these. The patches that hold a value weigh as
    near as it lies to their middle.

    The class of an image has no part in it. Fitting takes some seconds.

    Args:
        store: images (C, H, W), pixels or latents.
        side: of a patch, at most H and W; default half of an image's smaller side, at most 16.
        components: at most, a region; fewer where that would leave under 200 patches each.
        rank: at most.
        shrinkage: in patches; see :class:`golddiff.estimators.mixture.GaussianMixture`.
        seed: of the patches drawn, from at most 20,000 images, and the clustering.

    Raises:
        ArgumentError: a store of points; an argument outside its range.
    """

    def __init__(
        self,
        store: StoreOrPath,
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
        side = max(1, min(LARGEST, smaller // 2)) if side is None else side
        side = check_count("side", side)
        if side > smaller:
            raise ArgumentError(f"side: got {side}, expected at most {smaller}, the images' side")
        if not 0 <= as_number(shrinkage) < np.inf:
            raise ArgumentError(f"shrinkage: got {shrinkage!r}, expected a number of patches, >= 0")
        self.side, self.shrinkage, self.seed = side, shrinkage, check_seed(seed)
        self.components = check_count("components", components)
        self.rank = check_count("rank", rank)
        self._fitted: list[Patches] | None = None

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Means (b, D) over patches of their posterior means."""
        p = self.side
        images = x.reshape(-1, *self.store.shape)
        windows = np.lib.stride_tricks.sliding_window_view(images, (p, p), axis=(2, 3))
        nearness = _nearness(p)
        sums, weights = np.zeros_like(images), np.zeros(images.shape[2:], np.float32)
        for fitted, (tops, lefts) in zip(self.fitted(), self.regions(), strict=True):
            found = windows[:, :, tops][:, :, :, lefts].transpose(0, 2, 3, 1, 4, 5)
            patches = found.reshape(-1, len(fitted.mean))
            clean = self._clean(fitted, patches, sigma).reshape(found.shape)
            for (i, top), (j, left) in product(enumerate(tops), enumerate(lefts)):
                here = np.s_[..., top : top + p, left : left + p]
                sums[here] += clean[:, i, j] * nearness
                weights[here] += nearness
        out: F32 = (sums / weights).reshape(x.shape)
        return out

    def regions(self) -> list[tuple[I64, I64]]:
        """Where the patches of each region begin: rows and columns."""
        rows, columns = (
            [part for part in np.array_split(_places(size, self.side), REGIONS) if len(part)]
            for size in self.store.shape[1:]
        )
        return list(product(rows, columns))

    def fitted(self) -> list[Patches]:
        """The priors of patches, by region; made at the first call and kept."""
        if self._fitted is None:
            generator = np.random.default_rng([7, self.seed])
            self._fitted = [self._fit(drawn) for drawn in self._drawn(generator)]
        return self._fitted

    def keep(self, fitted: list[Patches]) -> None:
        """Take the priors as given, instead of fitting them."""
        self._fitted = fitted

    @staticmethod
    def _clean(fitted: Patches, patches: F32, sigma: float) -> F32:
        """Posterior means of patches (n, d)."""
        shrinkage = fitted.eigenvalues / (fitted.eigenvalues + sigma**2)
        vectors = fitted.eigenvectors.astype(np.float64)
        return denoised(patches, sigma, fitted.mean, vectors, shrinkage, fitted.components)

    def _fit(self, drawn: F32) -> Patches:
        """The prior of one region's patches (n, d)."""
        mean = drawn.mean(axis=0, dtype=np.float64)
        # In float64: to which cluster a patch is nearest must not hang on a kernel's rounding.
        centred = drawn - mean
        covariance = centred.T @ centred / max(len(drawn) - 1, 1)
        eigenvalues, eigenvectors = np.linalg.eigh(covariance)
        # Ascending, and rounding leaves tiny negative ones where there is no variance.
        eigenvalues, eigenvectors = eigenvalues[::-1].clip(min=0), eigenvectors[:, ::-1]
        r = min(self.rank, len(eigenvalues))
        z = (centred @ eigenvectors[:, :r]).astype(np.float32)
        clusters = min(self.components, max(1, len(z) // PATCHES_A_COMPONENT))
        members = cluster(z[:, :CLUSTERED_BY], clusters, self.seed)
        return Patches(
            mean, np.ascontiguousarray(eigenvalues), np.ascontiguousarray(eigenvectors, np.float32),
            fit(z, members, self.shrinkage),
        )  # fmt: skip

    def _drawn(self, generator: np.random.Generator) -> Iterator[F32]:
        """Patches (n, d) of one region after the other, one an image, drawn at random."""
        rows = np.arange(self.store.n)
        if len(rows) > FITTED_TO:
            rows = np.sort(generator.choice(rows, FITTED_TO, replace=False))
        batches = [rows[i : i + IMAGES_AT_ONCE] for i in range(0, len(rows), IMAGES_AT_ONCE)]
        regions = self.regions()
        near = [[self._near(at, len(part), generator) for at in regions] for part in batches]
        for region in range(len(regions)):
            pairs = zip(batches, near, strict=True)
            yield np.concatenate([self._cut(part, *corners[region]) for part, corners in pairs])

    def _near(self, region: tuple[I64, I64], n: int, generator: np.random.Generator) -> list[I64]:
        """Rows and columns (n,) where patches begin: a region's, moved by a pixel at most."""
        return [
            (generator.choice(places, n) + generator.integers(-1, 2, n)).clip(0, size - self.side)
            for places, size in zip(region, self.store.shape[1:], strict=True)
        ]

    def _cut(self, rows: I64, tops: I64, lefts: I64) -> F32:
        """A patch of each image, (n, d)."""
        images = self.store.values(rows).reshape(-1, *self.store.shape)
        sides = (self.side, self.side)
        windows = np.lib.stride_tricks.sliding_window_view(images, sides, axis=(2, 3))
        patches: F32 = windows[np.arange(len(rows)), :, tops, lefts].reshape(len(rows), -1)
        return patches


def _places(size: int, side: int) -> I64:
    """Where patches begin along an axis: every half of a side, and at its end."""
    return np.unique(np.append(np.arange(0, size - side + 1, max(1, side // 2)), size - side))


def _nearness(side: int) -> F32:
    """(side, side) weights, largest in the middle, all above 0."""
    along = 1 - np.abs(2 * np.arange(side) + 1 - side) / (side + 1)
    weights: F32 = np.outer(along, along).astype(np.float32)
    return weights
