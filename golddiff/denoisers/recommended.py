"""The denoiser that we advise: a golden posterior and a mixture of Gaussians, weighed on the data.

Beyond the paper. Both halves are posterior means E[x0 | x], under two priors fitted to the same
images:

- GoldDiff over PCA: each output value's own neighbourhood is matched against training images.
  Sharp, and made of pieces of real images, which need not fit together.
- A mixture of Gaussians (:mod:`golddiff.denoisers.mixture`): whole, and blurred.

They err in different directions, so that a weighted mean errs less than either. The weights at each
noise level, and the threshold of the masks, are those of least squared denoising error on training
images that neither half has seen (:mod:`golddiff.calibration` says why that error, which needs no
network, is the right one): least squares in closed form, no gradient steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from golddiff.calibration import Calibration, LeavingOut, calibrate
from golddiff.denoisers.base import Denoiser, Estimator
from golddiff.denoisers.blend import Blend, Weights
from golddiff.denoisers.golddiff import GoldDiff
from golddiff.denoisers.mixture import Components, GaussianMixture
from golddiff.denoisers.pca import PCA
from golddiff.errors import ArgumentError
from golddiff.schedules import PaperSchedule
from golddiff.store import ImageStore
from golddiff.store_build import add_file
from golddiff.support import Support

# The name changes with what is kept in it and how that is found: an older file is not read.
KEPT = "recommended-1.safetensors"
LEFT_OUT = 32  # images to measure on; a tenth of a small store
FEWEST = 20  # images; with fewer there is nothing to measure on, and both halves weigh the same
THRESHOLDS = (0.005, 0.02, 0.1)
LEVELS = (0.01, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
K_MIN, K_MAX = 300, 600


def recommended(store: ImageStore, seed: int = 0) -> Recommended:
    """The denoiser whose samples are nearest to a trained network's, of those we know.

    Args:
        store: the training set: images, latents or points, with or without labels.
        seed: of the images that the golden subsets draw at random.
    """
    return Recommended(store, seed)


class FewImages:
    """The released schedule with at most 300 to 600 images a golden subset, however many there are.

    The paper keeps N/20 to N/10: beside a mixture, which sees all images, a tenth of that is as
    good on 50,000 images.
    """

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k): how many of n images are screened and kept at a noise level."""
        return self._schedule(n).budgets(sigma, n)

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> Sequence[Support]:
        """The golden subset of each query (b, D)."""
        n = len(store.rows_of(label))
        return self._schedule(n).supports(store, x, sigma, label, seed)

    @staticmethod
    def _schedule(n: int) -> PaperSchedule:
        k_min, k_max = (max(1, min(most, n // part)) for most, part in ((K_MIN, 20), (K_MAX, 10)))
        return PaperSchedule(k_min=k_min, k_max=k_max, variant="released")


class Recommended(Denoiser):
    """D(x) = w(sigma) D_golden(x) + (1 - w(sigma)) D_mixture(x), each clipped to the pixels' range.

    D_golden is GoldDiff over PCA with the released schedule, at most 600 images a subset; D_mixture
    the posterior mean under a mixture of Gaussians. The weight w and PCA's mask threshold are found
    at the first call, by least squares on up to 32 images that both halves leave out, and kept in
    the store's folder with the mixture (where that may be written): seconds to a minute, once a
    store. Stores of under 20 images have w = 1/2.

    With ``labels`` both halves are the class's, the weights those of the whole store.

    Args:
        store: the training set.
        seed: of the images that the golden subsets draw at random.
    """

    def __init__(self, store: ImageStore, seed: int = 0) -> None:
        super().__init__(store)
        self.seed = seed
        self._blend: Blend | None = None

    def denoise(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> NDArray[np.float32]:
        """The blend's posterior means (b, D)."""
        return self.blend.denoise(x, sigma, label)

    @property
    def is_ready(self) -> bool:
        """Whether the weights are known, here or in the store's folder."""
        return self._blend is not None or KEPT in self.store.manifest.files

    @property
    def blend(self) -> Blend:
        """The golden half and the mixture with their weights; made at the first use."""
        if self._blend is None:
            self._blend = self._loaded() or self._made()
        return self._blend

    @property
    def golden(self) -> GoldDiff:
        """The half that weighs training images."""
        half = self.blend.denoisers[0]
        assert isinstance(half, GoldDiff)
        return half

    def weighing(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> list[tuple[Estimator, Support]]:
        """Refuses: see :attr:`golden` for the half that weighs images.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            "denoiser: part of what Recommended returns is a mixture of Gaussians, which has no "
            "sources; expected Optimal, PCA, Kamb or GoldDiff, such as its attribute golden"
        )

    def _loaded(self) -> Blend | None:
        if KEPT not in self.store.manifest.files:
            return None
        kept = load_file(self.store.path / KEPT)
        table = kept.pop("table")
        threshold = float(kept.pop("threshold"))
        mixture = self._mixture()
        mixture.keep(Components(**kept))
        weights = [(row[0], row[1:]) for row in table.tolist()]
        return self._joined(threshold, mixture, weights)

    def _made(self) -> Blend:
        mixture, rows = self._mixture(), left_out(self.store.n)
        if len(rows) == 0:
            return self._joined(THRESHOLDS[0], mixture, [(1.0, (0.5, 0.5))])
        found: list[tuple[float, Calibration]] = []
        for threshold in THRESHOLDS:
            unseeing = GoldDiff(PCA(self.store, threshold), LeavingOut(FewImages(), rows))
            found.append((threshold, calibrate([unseeing, mixture], rows, LEVELS)))
        threshold, best = min(found, key=lambda pair: pair[1].mean_log_error())
        self._save(threshold, best.weights, mixture.fitted())
        return self._joined(threshold, mixture, best.weights)

    def _mixture(self) -> GaussianMixture:
        rows = left_out(self.store.n)
        seen = np.setdiff1d(np.arange(self.store.n), rows)
        return GaussianMixture(self.store, rows=seen)

    def _joined(self, threshold: float, mixture: GaussianMixture, weights: Weights) -> Blend:
        golden = GoldDiff(PCA(self.store, threshold), FewImages(), self.seed)
        return Blend([golden, mixture], weights)

    def _save(self, threshold: float, weights: Weights, fitted: Components) -> None:
        tensors = vars(fitted) | {
            "table": np.array([[sigma, *row] for sigma, row in weights]),
            "threshold": np.array(threshold),
        }
        with contextlib.suppress(OSError):
            add_file(self.store.path, self.store.manifest, KEPT, tensors)


def left_out(n: int) -> NDArray[np.int64]:
    """The rows, ascending, that the halves are measured on: up to 32, a tenth of few images."""
    if n < FEWEST:
        return np.empty(0, np.int64)
    drawn = np.random.default_rng(0).permutation(n)[: min(LEFT_OUT, n // 10)]
    rows: NDArray[np.int64] = np.sort(drawn)
    return rows
