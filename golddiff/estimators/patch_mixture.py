"""Mixtures of Gaussians as the prior of patches, one mixture for each region of the image.

A mixture of whole images distinguishes only as many kinds as it has components. A hundred
components for a quarter of the image distinguish more kinds, and where they occur: sleeves appear
where sleeves are. A patch ignores the rest of the image, so at high noise, where only wide averages
are informative, Gaussians of whole images are better. Zoran & Weiss 2011 denoise photographs in
this way, with small patches and one prior for all positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from golddiff.denoiser import Denoiser
from golddiff.estimators.mixture import Components, cluster, denoised, fit
from golddiff.store.images import StoreOrPath
from golddiff.support import Prior
from golddiff.system.arguments import check_not_negative
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, I64, check_count, check_seed

MAX_IMAGES = 20_000  # images used for fitting
PATCHES_PER_COMPONENT = 200  # minimum on average
CLUSTERING_RANK = 48  # leading principal components used for clustering
IMAGES_PER_BATCH = 2000
MAX_DEFAULT_SIDE = 16  # upper limit of the default patch side in pixels
REGIONS = 3  # along each axis


@dataclass(frozen=True)
class Patches(Components):
    """The fitted prior of one region's patches, with a mixture of their leading coordinates."""

    mean: F64  # (d,) mean of the patches, d = C * side^2
    values: F64  # (d,) eigenvalues of their covariance, descending, >= 0
    vectors: F32  # (d, d) its eigenvectors in columns


class PatchMixture(Denoiser):
    """The weighted mean of E[x0_q | patch of x] over the patches that contain output value q.

    A patch of x is a patch of x0 plus the same noise, so under a mixture of Gaussians its posterior
    mean is that of :class:`golddiff.estimators.mixture.GaussianMixture`. Patches overlap by half.
    The image has 3 x 3 regions (fewer if it has fewer patches). Each region has its own prior,
    fitted to one patch of each image: a random one of the region, shifted by at most a pixel. The
    components differ within the ``rank`` leading principal components of a region's patches; on the
    rest they share one Gaussian. A patch weighs less at values farther from its centre.

    Labels are ignored. Fitting takes some seconds.

    Args:
        store: images (C, H, W), pixels or latents.
        side: side of a patch, at most H and W; default half the image's smaller side, at most 16.
        components: maximum per region; fewer if they would average under 200 patches.
        rank: maximum rank.
        shrinkage: a number of patches; see :class:`golddiff.estimators.mixture.GaussianMixture`.
        seed: seed of the clustering and of the choice of patches, from at most 20,000 images.

    Raises:
        ArgumentError: the store holds points, or an argument is out of range.
    """

    needs_images = True

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
        smaller = min(self.store.shape[1:])
        side = max(1, min(MAX_DEFAULT_SIDE, smaller // 2)) if side is None else side
        side = check_count("side", side)
        if side > smaller:
            raise ArgumentError(f"side: got {side}, expected at most {smaller}, the images' side")
        self.shrinkage = check_not_negative("shrinkage", shrinkage)
        self.side, self.seed = side, check_seed(seed)
        self.components = check_count("components", components)
        self.rank = check_count("rank", rank)
        self._fitted: list[Patches] | None = None

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Weighted means (b, D) of the posterior means of patches."""
        p = self.side
        images = x.reshape(-1, *self.store.shape)
        windows = np.lib.stride_tricks.sliding_window_view(images, (p, p), axis=(2, 3))
        triangle = 1 - np.abs(2 * np.arange(p) + 1 - p) / (p + 1)
        window = np.outer(triangle, triangle).astype(np.float32)  # largest at the centre
        sums, weights = np.zeros_like(images), np.zeros(images.shape[2:], np.float32)
        for fitted, (tops, lefts) in zip(self.fitted(), self.regions(), strict=True):
            selected = windows[:, :, tops][:, :, :, lefts].transpose(0, 2, 3, 1, 4, 5)
            patches = selected.reshape(-1, len(fitted.mean))
            vectors = fitted.vectors.astype(np.float64)
            clean = denoised(patches, sigma, fitted.mean, fitted.values, vectors, fitted)
            clean = clean.reshape(selected.shape)
            for (i, top), (j, left) in product(enumerate(tops), enumerate(lefts)):
                area = np.s_[..., top : top + p, left : left + p]
                sums[area] += clean[:, i, j] * window
                weights[area] += window
        return (sums / weights).reshape(x.shape)

    def regions(self) -> list[tuple[I64, I64]]:
        """The first rows and the first columns of the patches of each region."""
        rows, columns = (
            [part for part in np.array_split(_starts(size, self.side), REGIONS) if len(part)]
            for size in self.store.shape[1:]
        )
        return list(product(rows, columns))

    def fitted(self) -> list[Patches]:
        """The priors of the regions, fitted at the first call and cached."""
        if self._fitted is None:
            generator = np.random.default_rng([7, self.seed])
            self._fitted = [self._fit(drawn) for drawn in self._random_patches(generator)]
        return self._fitted

    def set_fitted(self, fitted: list[Patches]) -> None:
        """Set the priors instead of fitting them."""
        self._fitted = fitted

    def _fit(self, drawn: F32) -> Patches:
        """The prior of one region's patches (n, d)."""
        mean = drawn.mean(axis=0, dtype=np.float64)
        # In float64, so that a patch's cluster does not depend on the rounding of a BLAS kernel.
        centred = drawn - mean
        covariance = centred.T @ centred / max(len(drawn) - 1, 1)
        eigenvalues, eigenvectors = np.linalg.eigh(covariance)
        # eigh sorts ascending, and rounding leaves tiny negative values without variance.
        eigenvalues, eigenvectors = eigenvalues[::-1].clip(min=0), eigenvectors[:, ::-1]
        r = min(self.rank, len(eigenvalues))
        z = (centred @ eigenvectors[:, :r]).astype(np.float32)
        clusters = min(self.components, max(1, len(z) // PATCHES_PER_COMPONENT))
        members = cluster(z[:, :CLUSTERING_RANK], clusters, self.seed)
        return Patches(
            **vars(fit(z, members, self.shrinkage)),
            mean=mean,
            values=np.ascontiguousarray(eigenvalues),
            vectors=np.ascontiguousarray(eigenvectors, np.float32),
        )

    def _random_patches(self, generator: np.random.Generator) -> Iterator[F32]:
        """Random patches (n, d) of each region in turn, one per image."""
        rows = np.arange(self.store.n)
        if len(rows) > MAX_IMAGES:
            rows = np.sort(generator.choice(rows, MAX_IMAGES, replace=False))
        batches = [rows[i : i + IMAGES_PER_BATCH] for i in range(0, len(rows), IMAGES_PER_BATCH)]
        regions = self.regions()
        corners = [[self._random_corners(r, len(b), generator) for r in regions] for b in batches]
        for region in range(len(regions)):
            pairs = zip(batches, corners, strict=True)
            yield np.concatenate([self._cut(batch, *corner[region]) for batch, corner in pairs])

    def _random_corners(
        self, region: tuple[I64, I64], n: int, generator: np.random.Generator
    ) -> list[I64]:
        """First rows and columns (n,) of random patches of a region, shifted by at most a pixel."""
        return [
            (generator.choice(starts, n) + generator.integers(-1, 2, n)).clip(0, size - self.side)
            for starts, size in zip(region, self.store.shape[1:], strict=True)
        ]

    def _cut(self, rows: I64, tops: I64, lefts: I64) -> F32:
        """One patch of each image, (n, d)."""
        images = self.store.values(rows).reshape(-1, *self.store.shape)
        sides = (self.side, self.side)
        windows = np.lib.stride_tricks.sliding_window_view(images, sides, axis=(2, 3))
        return windows[np.arange(len(rows)), :, tops, lefts].reshape(len(rows), -1)


def _starts(size: int, side: int) -> I64:
    """The first positions of patches along an axis: every half side, and flush with the end."""
    return np.unique(np.append(np.arange(0, size - side + 1, max(1, side // 2)), size - side))
