"""The denoiser nearest to a trained network: the median of golden and Gaussian posterior means.

Beyond the paper. Each part is a posterior mean E[x0 | x] under a different prior fitted to the
same images:

- GoldDiff over PCA with narrow masks matches each output value's neighbourhood against training
  images. Its pictures are sharp, but their pieces come from different images and may not fit.
- GoldDiff over PSPC-Square matches squares of pixels and averages them where they overlap. Its
  pictures are smooth where the squares disagree.
- A mixture of Gaussians of whole images (:mod:`golddiff.estimators.mixture`): coherent but blurred.
- Mixtures of Gaussians of patches (:mod:`golddiff.estimators.patch_mixture`), half an image wide
  and one per region, distinguish more kinds of content and where each occurs.

The parts err in different directions, and each has large errors where the others have none. The
median of each output value ignores these outliers: a grey haze of one part disappears where the
other three are black. A weighted mean with weights fitted on held-out images needs six parts to
be as close, and keeps the haze (docs/results/likeness.md). No network or calibration is used.

If mirrored images are as likely as the training images, the true posterior mean of a mirrored x is
the mirrored posterior mean of x. The medians of both are then averaged: their errors differ, and
partly cancel.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser, EstimatorSupports
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

# The artifact's name; a new version number, so that files of older code are not read.
ARTIFACT = "network-like-11"
NARROW = 0.05  # mask threshold of the part with narrow masks
WIDE = 0.005  # mask threshold that replaces squares for points and tiny images
# At this noise level and above, Gaussians fitted to all images estimate the posterior mean better
# than a golden subset, which is then almost a random sample.
GOLDEN_BELOW = 6.0
K_MIN, K_MAX = 400, 800  # images in a golden subset
MIN_SIDE = 4  # smallest image side in pixels for which squares and patches are parts
HAZE = 0.08  # distance from black within which outputs become black: the haze of the Gaussians
# Mirrored images count as likely if a mixture fitted to half of the images denoises the other half
# with an error at most this much larger when mirrored. At sigma 2 the ratio is 1.004 for CIFAR-10
# and ImageNet, 1.005 for faces, 1.03 for digits on photographs, 1.24 for garments, 1.33 for digits.
MIRRORED_SIGMA, MIRRORED_ERROR = 2.0, 1.015
MIRRORED_IMAGES = 500  # most images denoised for this
MIRRORED_FIT = 20_000  # most images that the mixture is fitted to
FEWEST_TO_MIRROR = 200  # smaller training sets are too few to tell
# Width of the squares at sigma 1 for images of side 32, scaled by sqrt(sigma). The authors' list
# has 7 at sigma 1 and smaller squares below, which preserve fewer whole strokes.
SQUARE = 8


def network_like(store: StoreOrPath, seed: int = 0) -> NetworkLike:
    """The denoiser whose samples are closest to those of a trained network, among our methods.

    Args:
        store: the training set: images, latents or points, with or without labels.
        seed: seed of the golden subsets' random draws.
    """
    return NetworkLike(store, seed)


@dataclass(frozen=True)
class FewImages:
    """The released schedule with k_min at most 400 and k_max at most 800, for any N."""

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k): the numbers of images, out of n, that are screened and kept."""
        return self._schedule(n).budgets(sigma, n)

    def supports(
        self, store: ImageStore, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The golden subset of each query (b, D)."""
        n = store.count_of(label)
        return self._schedule(n).supports(store, x, sigma, label, seed)

    @staticmethod
    def _schedule(n: int) -> PaperSchedule:
        k_min, k_max = max(1, min(K_MIN, n // 20)), max(1, min(K_MAX, n // 10))
        return PaperSchedule(k_min=k_min, k_max=k_max, variant="released")


class NetworkLike(Denoiser):
    """D(x) = the median of the parts' posterior means; for four, the mean of the middle two.

    The parts are GoldDiff over PSPC-Square and over PCA with narrow masks, both with the released
    schedule and at most 800 images in a subset, and the posterior means under a mixture of
    Gaussians of whole images and under mixtures of Gaussians of patches. At sigma 6 and above only
    the mixture of whole images is used. Points and images below 4 x 4 pixels use PCA with wide
    masks instead of squares, and no patches. If the store holds pixels, each part is clipped to
    [-1, 1]. If the training images have a black background, output values within 0.08 of black are
    set to black and values up to 0.16 are darkened, below sigma 6. If mirrored images are as likely
    as the training images, the output is averaged with the mirrored output for the mirrored x.

    The Gaussians are fitted at the first call and saved in the store's folder if it is writable:
    seconds to a minute for images of 32 x 32, once per store.

    With ``labels`` all parts except the patches are restricted to the class.

    Args:
        store: the training set.
        seed: seed of the golden subsets' random draws.

    Attributes:
        golden: the part with narrow masks, which weighs training images and so has sources.
        mirrors: whether outputs are averaged with mirrored ones; None before fitting.
    """

    mirrors: bool | None = None

    def __init__(self, store: StoreOrPath, seed: int = 0) -> None:
        super().__init__(store)
        self.seed = seed
        store = self.store
        large = len(store.shape) == 3 and min(store.shape[1:]) >= MIN_SIDE
        squares = PSPCSquare(store, square_sizes(min(store.shape[1:]))) if large else None
        bases = squares or PCA(store, WIDE), PCA(store, NARROW)
        self._golden = [GoldDiff(base, FewImages(), seed) for base in bases]
        self.golden = self._golden[1]
        self._mixture = GaussianMixture(store)
        self._patches = PatchMixture(store) if large else None

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """The median of the parts' posterior means (b, D), averaged with the mirrored one."""
        self.fit()
        combined = self._median(x, sigma, prior)
        if self.mirrors:
            shape = self.store.shape
            other = self._median(mirrored(x, shape), sigma, prior)
            combined = (combined + mirrored(other, shape)) / np.float32(2)
        if sigma < GOLDEN_BELOW and self.store.has_black_background:
            above = combined + 1
            combined = np.minimum(above, 2 * (above - HAZE)).clip(0) - 1  # continuous, no step
        return combined

    def _median(self, x: F32, sigma: float, prior: Prior) -> F32:
        means = np.stack([part.denoise(x, sigma, prior) for part in self.parts(sigma)])
        if self.store.is_pixels:
            means = means.clip(-1, 1)
        return np.median(means, axis=0).astype(np.float32)

    def parts(self, sigma: float) -> list[Denoiser]:
        """The parts that are used at a noise level."""
        if sigma >= GOLDEN_BELOW:
            return [self._mixture]
        patches = [] if self._patches is None else [self._patches]
        return [*self._golden, self._mixture, *patches]

    def fit(self) -> None:
        """Fit the Gaussians or load them from the store's folder; called by the first denoising."""
        if self.mirrors is not None:
            return
        saved = self.store.artifacts.load(ARTIFACT)
        if saved is None:
            mirrors = self._patches is not None and mirrored_is_likely(self.store)
            tensors = {"mirrors": np.array(mirrors), **_named("mixture", self._mixture.fitted())}
            for region, patches in enumerate(self._patches.fitted() if self._patches else []):
                tensors |= _named(f"patches.{region}", patches)
            self.store.artifacts.save(ARTIFACT, tensors)
        else:
            mirrors = bool(saved["mirrors"])
            self._mixture.set_fitted(_unnamed(Components, "mixture", saved))
            if self._patches is not None:
                regions = range(len(self._patches.regions()))
                fitted = [_unnamed(Patches, f"patches.{region}", saved) for region in regions]
                self._patches.set_fitted(fitted)
        self.mirrors = mirrors

    def with_seed(self, seed: int) -> NetworkLike:
        """A copy with another seed; masks and Gaussians are shared."""
        other = copy.copy(self)
        other.seed = seed
        other._golden = [GoldDiff(part.base, part.schedule, seed) for part in self._golden]
        other.golden = other._golden[1]
        return other

    @property
    def is_ready(self) -> bool:
        """Whether the Gaussians are in memory or in the store's folder."""
        return self.mirrors is not None or self.store.artifacts.head(ARTIFACT) is not None

    def estimator_supports(self, x: F32, sigma: float, prior: Prior) -> EstimatorSupports:
        """Raises ArgumentError; use :attr:`golden`, a part that weighs images."""
        raise ArgumentError(
            "denoiser: part of what NetworkLike returns is a mixture of Gaussians, which has no "
            "sources; expected a method that weighs training images, such as its attribute golden"
        )


def mirrored(x: F32, shape: tuple[int, ...]) -> F32:
    """Images (b, D) of a shape (C, H, W) with left and right exchanged."""
    return np.ascontiguousarray(x.reshape(-1, *shape)[..., ::-1]).reshape(x.shape)


def mirrored_is_likely(store: ImageStore) -> bool:
    """Whether a mixture of half of the pictures denoises the rest as well when mirrored."""
    if not store.is_pixels or store.n < FEWEST_TO_MIRROR:
        return False
    fitted_to = np.arange(0, store.n, 2 * -(-store.n // (2 * MIRRORED_FIT)))
    rest = np.arange(1, store.n, 2)
    images = store.values(rest[:: -(-len(rest) // MIRRORED_IMAGES)])
    mixture = GaussianMixture(store)
    mixture.set_fitted(mixture.fitted_to(fitted_to))
    noisy = images + MIRRORED_SIGMA * np.random.default_rng(0).standard_normal(
        images.shape, np.float32
    )

    def error(x: F32, x0: F32) -> float:
        clean = mixture.denoise(x, MIRRORED_SIGMA, None)
        return math.sqrt(np.square(clean - x0, dtype=np.float64).mean())

    flipped = error(mirrored(noisy, store.shape), mirrored(images, store.shape))
    return flipped <= MIRRORED_ERROR * error(noisy, images)


def _named(prefix: str, fitted: Components) -> dict[str, NDArray[Any]]:
    return {f"{prefix}.{name}": array for name, array in vars(fitted).items()}


def _unnamed(kind: Any, prefix: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """The inverse of :func:`_named`."""
    return kind(**{field.name: arrays[f"{prefix}.{field.name}"] for field in fields(kind)})


def square_sizes(side: int) -> list[tuple[float, int]]:
    """(sigma, square side in pixels) for images of a side, with sigmas in steps of a tenth."""
    sigmas = [80 * 0.9**i for i in range(90)]
    return [(sigma, min(side, max(3, round(SQUARE * sigma**0.5 * side / 32)))) for sigma in sigmas]
