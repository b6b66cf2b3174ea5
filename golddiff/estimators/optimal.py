"""Optimal: the exact empirical-Bayes denoiser, one logit per image (paper, Eq. 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from golddiff.denoiser import Estimator, EstimatorSupports
from golddiff.kernels.contributions import Contribution, values_at
from golddiff.kernels.rows import ROWS_PER_TASK, exact_distances, products_of, sums_of, weights_of
from golddiff.kernels.torch_kernels import whole_images
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore, Weigh
from golddiff.store.exact import FirstPass
from golddiff.store.posteriors import as_support
from golddiff.support import ABSENT, AnySupport, LogWeights, Prior, Support
from golddiff.system.numbers import F32, F64

# Images whose log posterior weight is lower are skipped: 10^7 of them change no result by 1e-6.
NEGLIGIBLE_LOG_WEIGHT = -30.0
# A prior rules out images whose posterior weight, relative to a heavy image, is at most exp(-60).
# They are left out if few remain: queries that share all images are weighed together.
RULED_OUT, FEW = 60.0, 1 / 16


class Optimal(Estimator):
    """D(x) = sum_i softmax_i(-||x - x_i||^2 / (2 sigma^2)) x_i.

    It minimises the training loss exactly, and so returns training images as sigma falls.
    Source: paper Eq. 2; De Bortoli 2022, Kamb & Ganguli 2024.

    Args:
        store: the training set.
        memory_limit: see :class:`golddiff.denoiser.Estimator`.

    Raises:
        ArgumentError: the store cannot be opened, or the limit is not a number above 0.
    """

    joint = True
    part_size = ROWS_PER_TASK

    def estimator_supports(self, x: F32, sigma: float, prior: Prior) -> EstimatorSupports:
        """This estimator, for each query over the images that the prior does not rule out.

        No image is nearer than ||x|| - R, with R the largest norm of an image. If a heavy image is
        much more probable than an image of log weight w could be at that distance, images below w
        are left out. Under a precise measurement few images remain.
        """
        everything = self.store.everything(prior)
        # The heaviest images may lie in a missing shard.
        if not (self.joint and isinstance(prior, LogWeights) and self.store.share == 1):
            return self, [everything] * len(x)
        gain, heavy, queries = precision(sigma), prior.heaviest, x.astype(np.float64)
        values = self.store.values(heavy.rows)
        likely = [
            (heavy.log_importance() - gain * np.square(values - q).sum(axis=1)).max()
            for q in queries
        ]
        nearest = (np.linalg.norm(queries, axis=1) - self.store.radius).clip(0) ** 2
        few = FEW * len(everything)
        # One at a time: the images that remain for a query may be nearly all.
        return self, [
            possible if len(possible := prior.above(w)) < few else everything
            for w in likely + gain * nearest - RULED_OUT
        ]

    def _denoise_groups(self, x: F32, groups: dict[tuple[float, Prior], list[int]]) -> F32:
        """See the base class; queries with different log weights share a pass over the images."""
        if len(self.priors) < 2 or not self.joint:
            return super()._denoise_groups(x, groups)
        out = np.empty_like(x)
        at_once = max(1, int(self.memory_limit // (8 * self.store.n)))  # of whose log weights
        for sigma in {level for level, _ in groups}:
            own = [(g, prior) for (level, prior), g in groups.items() if level == sigma]
            for pairs in (own[i : i + at_once] for i in range(0, len(own), at_once)):
                queries = [query for group, _ in pairs for query in group]
                supports = [s for g, p in pairs for s in self.estimator_supports(x[g], sigma, p)[1]]
                out[queries] = self.denoise_over(x[queries], sigma, _shared(supports, self.store.n))
        return out

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a part; the image is one location."""
        return self._weighed(x, sigma, part)[0]

    def weigh_with_logits(self, x: F32, sigma: float, part: Support) -> tuple[Posterior, F64]:
        """The results of :meth:`weigh` and :meth:`logits`, in one pass."""
        posterior, log_max, weights = self._weighed(x, sigma, part)
        return posterior, _logits(log_max, weights)

    def logits(self, x: F32, sigma: float, part: Support) -> F64:
        """Logits plus log importance weights of a part's images for queries (b, D), (b, k)."""
        with self.images.stored.resident(part.rows) as (loaded, rows):
            log_max, weights = weights_of(loaded, rows, part.log_importance(), x, precision(sigma))
        return _logits(log_max, weights)

    def _weighed(self, x: F32, sigma: float, part: Support) -> tuple[Posterior, F64, F64]:
        # Distances and sums in one pass, so that scattered rows are read from the file once.
        with self.images.stored.resident(part.rows) as (loaded, rows):
            log_max, weights = weights_of(loaded, rows, part.log_importance(), x, precision(sigma))
            sums = sums_of(loaded, rows, weights)
        total = weights.sum(axis=1, keepdims=True)
        return Posterior(log_max[:, None], total, sums), log_max, weights

    def moments(
        self, sigma: float, part: Support, x: F64, known: FirstPass, cotangent: F64 | None
    ) -> F64:
        """The variance, or the derivatives of u . mean, u a cotangent, over a part's images.

        With w_i the weights, m the mean, g = 1 / (2 sigma^2) and c_i = w_i u . (x_i - m), the
        derivative in x is 2 g sum_i c_i (x_i - m). The derivative in g is sum_i c_i s_i with
        s_i = dl_i/dg. Since c_i are float32 differences, their sum is not exactly 0, and a log
        weight of -1000 would amplify the residual. The sums of c_i and of w_i s_i allow the caller
        to centre s_i on its mean.

        Returns:
            Without a cotangent, the sums (b, D) of w_i (x_i - m)^2. With one, (b, D + 3): the
            derivative in x, then the sums of c_i s_i, c_i and w_i s_i.
        """
        prior, gain, mean = part.log_importance(), precision(sigma), known.mean
        logits = known.logits
        if logits is None:  # not cached by the first pass
            logits = self.logits(x.astype(np.float32), sigma, part)
        log_shares = logits - known.log_total
        kept = np.flatnonzero((log_shares > NEGLIGIBLE_LOG_WEIGHT).any(axis=0))
        log_shares = log_shares[:, kept]
        shares = np.exp(log_shares)
        with self.images.stored.resident(part.rows[kept]) as (loaded, rows):
            if cotangent is None:
                return sums_of(loaded, rows, shares, mean)
            pulls = shares * products_of(loaded, rows, cotangent, mean)
            sums = sums_of(loaded, rows, pulls)
        in_x = 2 * gain * (sums - pulls.sum(axis=1, keepdims=True) * mean)
        slopes = (log_shares - prior[..., kept]) / gain  # up to a constant common to all images
        terms = np.stack([pulls * slopes, pulls, shares * slopes], axis=1)
        return np.concatenate([in_x, terms.sum(axis=2)], axis=1)

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh:
        """:meth:`weigh` in torch."""
        return partial(whole_images, gain=precision(sigma))

    def working_bytes(self, images: int) -> tuple[int, int]:
        """One float32 image, and a posterior of each query."""
        return 4 * self.images.d, 8 * self.images.d

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,), with a single location; see the base class."""
        images = self.images
        for part in as_support(support).split(self.part_size):
            with images.stored.resident(part.rows) as (loaded, rows):
                distances = exact_distances(loaded, rows, x)
            logits = distances * -precision(sigma) + part.log_importance()
            yield Contribution(part.rows, logits[None], values_at(images, part.rows, pixel))


def _shared(supports: Sequence[AnySupport], n: int) -> list[AnySupport]:
    """The supports; those of all n images become one object, which holds all their log weights."""
    weights = [as_support(s).log_importance() for s in supports if len(s) == n]
    common = Support(np.arange(n), np.stack(weights) if weights else None)
    return [common if len(s) == n else s for s in supports]


def _logits(log_max: F64, weights: F64) -> F64:
    """The logits (b, k) of weights (b, k) that are relative to the largest."""
    with np.errstate(divide="ignore"):
        logits: F64 = np.log(weights).clip(min=ABSENT) + log_max[:, None]
    return logits
