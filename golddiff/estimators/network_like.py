"""The denoiser nearest to a trained network: the median of golden and Gaussian posterior means.

Beyond the paper. Every part is a posterior mean E[x0 | x], under another prior fitted to the same
images:

- GoldDiff over PCA with narrow masks: each output value's own neighbourhood is matched against
  training images. Sharp, and made of pieces of real images, which need not fit.
- GoldDiff over PSPC-Square: squares of pixels are matched, and averaged where they overlap. Smooth
  where the squares disagree.
- A mixture of Gaussians of whole images (:mod:`golddiff.estimators.mixture`): whole, and blurred.
- Mixtures of Gaussians of patches (:mod:`golddiff.estimators.patch_mixture`), half an image wide,
  for each region of the image: they know more kinds, and where each lies.

They err in different directions, and each goes far astray in places where the others do not. The
median of each output value leaves the extremes out: where three say black, a fourth's grey haze has
no part. A weighted mean, its weights measured on images left out, takes six parts to come as near,
and keeps the haze (docs/results/likeness.md). No network is asked, and nothing is calibrated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.mixture import Components, GaussianMixture
from golddiff.estimators.patch_mixture import Patches, PatchMixture
from golddiff.estimators.pca import PCA
from golddiff.estimators.pspc import PSPCSquare
from golddiff.store.images import ImageStore, StoreOrPath
from golddiff.support import AnySupport, Prior
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32

# The name changes with what is kept in it and how that is found: an older file is not read.
KEPT = "network-like-10"
NARROW = 0.05  # threshold of the masks
WIDE = 0.005  # of points and of tiny images, which have no squares
# From here up an image is hardly seen through the noise, and few training images, drawn nearly at
# random, tell less of the posterior mean than Gaussians that were fitted to all of them.
GOLDEN_BELOW = 6.0
K_MIN, K_MAX = 400, 800
SMALLEST = 4  # pixels a side that an image has for squares and patches to be parts
# Where more than such a share of the training images is black, outputs that are this near to black
# are black, and up to twice as far darker: else Gaussians leave a grey haze there. Photographs have
# no such share.
BLACK_SHARE, HAZE = 0.25, 0.08
# Squares are so many pixels wide at sigma 1, of an image's 32; at others by the root of sigma. The
# authors' list has 7, and narrower ones below: fewer whole strokes.
SQUARE = 8


def network_like(store: StoreOrPath, seed: int = 0) -> NetworkLike:
    """The denoiser whose samples are nearest to a trained network's, of those we know.

    Args:
        store: the training set: images, latents or points, with or without labels.
        seed: of the images that the golden subsets draw at random.
    """
    return NetworkLike(store, seed)


class FewImages:
    """The released schedule, at most 400 to 800 images a golden subset, however many there are."""

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k): how many of n images are screened and kept at a noise level."""
        return self._schedule(n).budgets(sigma, n)

    def supports(
        self, store: ImageStore, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The golden subset of each query (b, D)."""
        n = store.count_of(label)
        return self._schedule(n).supports(store, x, sigma, label, seed)

    @staticmethod
    def _schedule(n: int) -> PaperSchedule:
        k_min, k_max = (max(1, min(most, n // part)) for most, part in ((K_MIN, 20), (K_MAX, 10)))
        return PaperSchedule(k_min=k_min, k_max=k_max, variant="released")


class NetworkLike(Denoiser):
    """D(x) = the median of the parts' posterior means: of four, the mean of the middle two.

    The parts: GoldDiff over PSPC-Square and over PCA with narrow masks, the released schedule, at
    most 800 images a subset; the posterior means under a mixture of Gaussians of whole images, and
    under mixtures as priors of patches. From sigma 6 up the mixture of whole images alone. Points,
    and images below 4 x 4 pixels, have PCA with wide masks in place of squares, and no patches.
    Where the store holds pixels, each part is first clipped to their range. Of images that stand on
    black, what is within 0.08 of it is then black, and up to 0.16 darker, below sigma 6.

    The Gaussians are fitted at the first call and kept in the store's folder (where that may be
    written): seconds to a minute for images of 32 x 32, once a store.

    With ``labels`` all parts but the patches are the class's.

    Args:
        store: the training set.
        seed: of the images that the golden subsets draw at random.

    Attributes:
        golden: the part with narrow masks, which weighs training images and so has sources.
    """

    joined: Callable[..., Any] = staticmethod(np.median)  # of means (parts, b, D)

    def __init__(self, store: StoreOrPath, seed: int = 0) -> None:
        super().__init__(store)
        self.seed = seed
        store = self.store
        large = len(store.shape) == 3 and min(store.shape[1:]) >= SMALLEST
        squares = PSPCSquare(store, square_sizes(min(store.shape[1:]))) if large else None
        bases = squares or PCA(store, WIDE), PCA(store, NARROW)
        self._golden = [GoldDiff(base, FewImages(), seed) for base in bases]
        self.golden = self._golden[1]
        self._mixture = GaussianMixture(store)
        self._patches = PatchMixture(store) if large else None
        self._fitted = False

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """The median of the parts' posterior means (b, D)."""
        self.fit()
        means = np.stack([part.denoise(x, sigma, prior) for part in self.parts(sigma)])
        if self.store.is_pixels:
            means = means.clip(-1, 1)
        joined: F32 = self.joined(means, axis=0).astype(np.float32)
        if sigma < GOLDEN_BELOW and self._on_black:
            above = joined + 1
            joined = np.minimum(above, 2 * (above - HAZE)).clip(0) - 1  # no step: it may be rounded
        return joined

    @cached_property
    def _on_black(self) -> bool:
        """Whether the training images stand on black."""
        rows = np.arange(0, self.store.n, max(1, self.store.n // 1000))
        return self.store.is_pixels and float((self.store.values(rows) == -1).mean()) > BLACK_SHARE

    def parts(self, sigma: float) -> list[Denoiser]:
        """Those that run at a noise level."""
        if sigma >= GOLDEN_BELOW:
            return [self._mixture]
        patches = [] if self._patches is None else [self._patches]
        return [*self._golden, self._mixture, *patches]

    def fit(self) -> None:
        """Fit the Gaussians, or read them from the store's folder; the first call does."""
        if self._fitted:
            return
        kept = self.store.artifacts.load(KEPT)
        if kept is None:
            self.store.artifacts.save(KEPT, self._tensors())
        else:
            names = {field.name: f"mixture.{field.name}" for field in fields(Components)}
            self._mixture.keep(Components(**{name: kept[key] for name, key in names.items()}))
            if self._patches is not None:
                regions = range(len(self._patches.regions()))
                self._patches.keep([Patches.of_tensors(kept, region) for region in regions])
        self._fitted = True

    def with_seed(self, seed: int) -> NetworkLike:
        """The same with other random draws; masks and Gaussians are shared."""
        other = copy.copy(self)
        other.seed = seed
        other._golden = [GoldDiff(part.base, part.schedule, seed) for part in self._golden]
        other.golden = other._golden[1]
        return other

    @property
    def is_ready(self) -> bool:
        """Whether the Gaussians are fitted, here or in the store's folder."""
        return self._fitted or self.store.artifacts.head(KEPT) is not None

    def estimator_supports(
        self, x: F32, sigma: float, prior: Prior
    ) -> list[tuple[Estimator, AnySupport]]:
        """Refuses: see :attr:`golden` for a part that weighs images."""
        raise ArgumentError(
            "denoiser: part of what NetworkLike returns is a mixture of Gaussians, which has no "
            "sources; expected a method that weighs training images, such as its attribute golden"
        )

    def _tensors(self) -> dict[str, NDArray[Any]]:
        found = {f"mixture.{name}": array for name, array in vars(self._mixture.fitted()).items()}
        if self._patches is not None:
            for region, patches in enumerate(self._patches.fitted()):
                found |= patches.tensors(region)
        return found


def square_sizes(side: int) -> list[tuple[float, int]]:
    """(sigma, pixels) of the squares of so large images, a tenth of sigma apart."""
    sigmas = [80 * 0.9**i for i in range(90)]
    return [(sigma, min(side, max(3, round(SQUARE * sigma**0.5 * side / 32)))) for sigma in sigmas]
