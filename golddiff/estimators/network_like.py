"""The denoiser nearest to a trained network: golden posteriors and Gaussian ones, weighed.

Beyond the paper. Every part is a posterior mean E[x0 | x], under another prior fitted to the same
images:

- GoldDiff over PCA, with three mask thresholds: each output value's own neighbourhood is matched
  against training images. Sharp, and made of pieces of real images, which need not fit together.
- A mixture of Gaussians (:mod:`golddiff.estimators.mixture`), and one Gaussian (what
  Wiener is): whole, and blurred.
- Where there is little noise, a mixture of Gaussians as the prior of patches
  (:mod:`golddiff.estimators.patch_mixture`): it knows a flat patch from an edge.

They err in different directions, so that their weighted mean errs less than any. Each weighs as its
error says, on images that none has seen (:mod:`golddiff.estimators.calibration`): no network is
asked, and there are no gradient steps. Where these images say that a mirror image is as likely as
the image, all parts use that (:mod:`golddiff.estimators.mirror`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.blend import Blend, Weights
from golddiff.estimators.calibration import (
    LeavingOut,
    denoising_errors,
    inverse_error_weights,
    is_symmetric,
    left_out,
)
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.mirror import Mirrored, Symmetrised
from golddiff.estimators.mixture import FITTED_TO, Components, GaussianMixture, sampled
from golddiff.estimators.patch_mixture import Patches, PatchMixture
from golddiff.estimators.pca import PCA
from golddiff.posterior import Float
from golddiff.store.images import ImageStore
from golddiff.support import AnySupport, Prior
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError

# The name changes with what is kept in it and how that is found: an older file is not read.
KEPT = "network-like-7"
THRESHOLDS = (0.005, 0.02, 0.05, 0.1)
LEVELS = (0.01, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0, 6.0, 16.0, 64.0)
# From here up an image is hardly seen through the noise, and few training images, drawn nearly at
# random, tell less of the posterior mean than Gaussians that were fitted to all of them.
GOLDEN_BELOW = 6.0
K_MIN, K_MAX = 400, 800
GOLDEN = 3  # parts that weigh training images, and come first
FIELDS = tuple(field.name for field in fields(Components))
ONE, PATCHES = GOLDEN + 1, GOLDEN + 2  # places among the parts
SMALLEST = 4  # pixels a side that an image has for patches to be a part


def network_like(store: ImageStore, seed: int = 0) -> NetworkLike:
    """The denoiser whose samples are nearest to a trained network's, of those we know.

    Args:
        store: the training set: images, latents or points, with or without labels.
        seed: of the images that the golden subsets draw at random.
    """
    return NetworkLike(store, seed)


class FewImages:
    """The released schedule, at most 400 to 800 images a golden subset, however many there are.

    The paper keeps N/20 to N/10; three parts with a sixth of that each take half the time of one
    with all of it on 50,000 images.
    """

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k): how many of n images are screened and kept at a noise level."""
        return self._schedule(n).budgets(sigma, n)

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The golden subset of each query (b, D)."""
        n = store.count_of(label)
        return self._schedule(n).supports(store, x, sigma, label, seed)

    @staticmethod
    def _schedule(n: int) -> PaperSchedule:
        k_min, k_max = (max(1, min(most, n // part)) for most, part in ((K_MIN, 20), (K_MAX, 10)))
        return PaperSchedule(k_min=k_min, k_max=k_max, variant="released")


class NetworkLike(Denoiser):
    """D(x) = sum_j w_j(sigma) D_j(x), each part D_j clipped to the range of pixels.

    The parts: GoldDiff over PCA with the released schedule, at most 800 images a subset, at three
    mask thresholds; the posterior means under a mixture of Gaussians and under one Gaussian; of
    images of 4 x 4 pixels or more, those under a mixture as the prior of patches. w_j is
    proportional to one over the root mean squared error of D_j on up to 32 images that all parts
    leave out; 0 for the golden parts from sigma 6 up, where a random subset tells less than
    Gaussians fitted to all images, and for the patches where they err more than the one Gaussian:
    there the noise is so much that the rest of the image tells more than the kind of patch. The
    thresholds are the three of least error among 0.005, 0.02, 0.05 and 0.1.

    Where the mixture errs no more when it is averaged with its own mirror image, images are as
    likely as their mirror images: then all parts but the golden ones are averaged so, and the
    second golden part compares the query with mirrored images, which doubles what these parts see.

    All this is found at the first call and kept in the store's folder with the Gaussians (where
    that may be written): seconds to a minute or two for images of 32 x 32, once a store. Stores of
    under 20 images have equal weights at all noise levels, no patches and no mirroring.

    With ``labels`` all parts but the patches are the class's, the weights those of the whole store.

    Args:
        store: the training set.
        seed: of the images that the golden subsets draw at random.
    """

    def __init__(self, store: ImageStore, seed: int = 0) -> None:
        super().__init__(store)
        self.seed = seed
        self._blend: Blend | None = None

    def denoise(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> NDArray[np.float32]:
        """The blend's posterior means (b, D)."""
        return self.blend.denoise(x, sigma, prior)

    def with_seed(self, seed: int) -> NetworkLike:
        """The same with other random draws; masks, mixture and weights are shared."""
        other = NetworkLike(self.store, seed)
        parts = [_reseeded(part, seed) for part in self.blend.denoisers]
        other._blend = Blend(parts, self.blend.weights)
        return other

    @property
    def is_ready(self) -> bool:
        """Whether the weights are known, here or in the store's folder."""
        return self._blend is not None or self.store.artifacts.head(KEPT) is not None

    @property
    def blend(self) -> Blend:
        """The parts with their weights; made at the first use."""
        if self._blend is None:
            self._blend = self._loaded() or self._made()
        return self._blend

    @property
    def golden(self) -> GoldDiff:
        """The best of the parts that weigh training images."""
        part = self.blend.denoisers[0]
        assert isinstance(part, GoldDiff)
        return part

    def estimator_supports(
        self, x: NDArray[np.float32], sigma: float, prior: Prior
    ) -> list[tuple[Estimator, AnySupport]]:
        """Refuses: see :attr:`golden` for a part that weighs images.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            "denoiser: part of what NetworkLike returns is a mixture of Gaussians, which has no "
            "sources; expected Optimal, PCA, Kamb or GoldDiff, such as its attribute golden"
        )

    def _loaded(self) -> Blend | None:
        kept = self.store.artifacts.load(KEPT)
        if kept is None:
            return None
        table, thresholds = kept.pop("table").tolist(), kept.pop("thresholds").tolist()
        gaussians, patches = self._gaussians(), self._patches()
        for name, part in gaussians.items():
            part.keep(Components(**{field: kept[f"{name}.{field}"] for field in FIELDS}))
        if patches is not None:
            patches.keep(Patches.of_tensors(kept))
        weights = [(row[0], row[1:]) for row in table]
        others = self._others(gaussians, patches, bool(kept["symmetric"]))
        return self._joined(thresholds, others, weights)

    def _made(self) -> Blend:
        gaussians, rows = self._gaussians(), left_out(self.store.n)
        if len(rows) == 0:
            others = self._others(gaussians, None, False)
            count = GOLDEN + len(others)
            return self._joined(THRESHOLDS[:GOLDEN], others, [(1.0, (1 / count,) * count)])
        patches = self._patches()
        symmetric = is_symmetric(gaussians["mixture"], rows, LEVELS)
        others = self._others(gaussians, patches, symmetric)
        golden, thresholds = self._golden_errors(rows)
        errors = np.hstack([golden, denoising_errors(others, rows, LEVELS)])
        weights = list(zip(LEVELS, part_weights(errors, LEVELS).tolist(), strict=True))
        self._save(thresholds, weights, symmetric, gaussians, patches)
        return self._joined(thresholds, others, weights)

    def _golden_errors(self, rows: NDArray[np.int64]) -> tuple[Float, list[float]]:
        """Errors (levels, 3) of the three best thresholds, and these; 1 where none has weight."""
        unseeing = LeavingOut(FewImages(), rows)
        golden = [GoldDiff(PCA(self.store, t), unseeing) for t in THRESHOLDS]
        levels = [sigma for sigma in LEVELS if sigma < GOLDEN_BELOW]
        errors = denoising_errors(golden, rows, levels)
        best = np.argsort(np.log(errors).mean(axis=0), kind="stable")[:GOLDEN]
        unused = np.ones((len(LEVELS) - len(levels), GOLDEN))
        return np.vstack([errors[:, best], unused]), [THRESHOLDS[i] for i in best]

    def _gaussians(self) -> dict[str, GaussianMixture]:
        rows = left_out(self.store.n)
        seen = np.setdiff1d(sampled(self.store.n, FITTED_TO), rows)
        return {
            "mixture": GaussianMixture(self.store, rows=seen),
            "one": GaussianMixture(self.store, components=1, shrinkage=0, rows=seen),
        }

    def _patches(self) -> PatchMixture | None:
        shape, rows = self.store.shape, left_out(self.store.n)
        if len(rows) == 0 or len(shape) != 3 or min(shape[1:]) < SMALLEST:
            return None
        seen = np.setdiff1d(sampled(self.store.n, FITTED_TO), rows)
        return PatchMixture(self.store, rows=seen)

    @staticmethod
    def _others(
        gaussians: dict[str, GaussianMixture], patches: PatchMixture | None, symmetric: bool
    ) -> list[Denoiser]:
        others = [*gaussians.values(), *([] if patches is None else [patches])]
        return [Symmetrised(part) if symmetric else part for part in others]

    def _joined(
        self, thresholds: Sequence[float], others: Sequence[Denoiser], weights: Weights
    ) -> Blend:
        golden: list[Denoiser] = [
            GoldDiff(PCA(self.store, t), FewImages(), self.seed) for t in thresholds
        ]
        if isinstance(others[0], Symmetrised):
            golden[1] = Mirrored(golden[1])
        return Blend([*golden, *others], weights)

    def _save(
        self,
        thresholds: Sequence[float],
        weights: Weights,
        symmetric: bool,
        gaussians: dict[str, GaussianMixture],
        patches: PatchMixture | None,
    ) -> None:
        tensors = {
            f"{name}.{field}": getattr(part.fitted(), field)
            for name, part in gaussians.items()
            for field in FIELDS
        }
        if patches is not None:
            tensors |= patches.fitted().tensors()
        tensors["table"] = np.array([[sigma, *row] for sigma, row in weights])
        tensors["thresholds"] = np.array(thresholds)
        tensors["symmetric"] = np.array(symmetric)
        self.store.artifacts.save(KEPT, tensors)


def _reseeded(part: Denoiser, seed: int) -> Denoiser:
    if isinstance(part, Mirrored):
        return Mirrored(_reseeded(part.denoiser, seed))
    return GoldDiff(part.base, part.schedule, seed) if isinstance(part, GoldDiff) else part


def part_weights(errors: Float, levels: Sequence[float]) -> Float:
    """Weights of three golden parts, mixture, one Gaussian, and patches where there are any.

    Args:
        errors: (levels, 5 or 6) mean squared errors, > 0.
        levels: the noise level of each row.

    Returns:
        The same shape; rows sum to 1.
    """
    weights = inverse_error_weights(errors)
    weights[np.asarray(levels) >= GOLDEN_BELOW, :GOLDEN] = 0
    if errors.shape[1] == PATCHES + 1:
        weights[errors[:, PATCHES] >= errors[:, ONE], PATCHES] = 0
    summed: Float = weights / weights.sum(axis=1, keepdims=True)
    return summed
