"""Optimal: the exact empirical-Bayes denoiser, one logit an image (paper, Eq. 2)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from golddiff.denoiser import Estimator
from golddiff.kernels.contributions import Contribution, values_at
from golddiff.kernels.rows import ROWS_PER_TASK, exact_distances, products_of, sums_of, weights_of
from golddiff.kernels.terms import Known
from golddiff.kernels.torch_kernels import whole_images
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore, Weigh
from golddiff.store.posteriors import whole
from golddiff.support import ABSENT, AnySupport, Support
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import results_held

IMAGES_PER_CONTRIBUTION = 512
# Nats below the whole posterior: 10^7 images less likely together move nothing by 1e-6.
LIGHTEST = 30.0


class Optimal(Estimator):
    """D(x) = sum_i softmax_i(-||x - x_i||^2 / (2 sigma^2)) x_i.

    Source: paper Eq. 2; De Bortoli 2022, Kamb & Ganguli 2024. It minimises the training loss
    exactly, and so returns training images as sigma falls.

    Args:
        store: the training set.
        memory_limit: see :class:`golddiff.denoiser.Estimator`.

    Raises:
        ArgumentError: no store; a limit that is no number above 0.
    """

    provable = True
    one_logit = True
    joint = True
    part_size = ROWS_PER_TASK

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over some images; one location an image."""
        return self._weighed(x, sigma, part)[0]

    def weigh_with_logits(self, x: F32, sigma: float, part: Support) -> tuple[Posterior, F64]:
        """The same, and log weights and logits together, (b, k)."""
        made, log_max, weights = self._weighed(x, sigma, part)
        return made, _logits(log_max, weights)

    def logits(self, x: F32, sigma: float, part: Support) -> F64:
        """Log weights and logits together of queries (b, D) and some images, (b, k)."""
        with self.images.stored.resident(part.rows) as (here, places):
            found = weights_of(here, places, part.log_importance(), x, precision(sigma))
        return _logits(*found)

    def _weighed(self, x: F32, sigma: float, part: Support) -> tuple[Posterior, F64, F64]:
        # Distances and sums at once: rows that lie apart are read from the file once.
        with self.images.stored.resident(part.rows) as (here, places):
            log_max, weights = weights_of(here, places, part.log_importance(), x, precision(sigma))
            sums = sums_of(here, places, weights)
        total = weights.sum(axis=1, keepdims=True)
        return Posterior(log_max[:, None], total, sums), log_max, weights

    def squares(self, x: F64, sigma: float, part: Support, known: Known) -> F64:
        """The sums of w_i (x_i - m)^2 over some images, w_i the weights, (b, D)."""
        seen, below = self._seen(x, sigma, part, known)
        with self.images.stored.resident(part.rows[seen]) as (here, places):
            return sums_of(here, places, np.exp(below), known.mean.numpy())

    def pulled(self, x: F64, sigma: float, part: Support, known: Known, cotangent: F64) -> F64:
        """Derivatives of u . mean, u a cotangent: in x, and sums for that in g = 1 / (2 sigma^2).

        With w_i the weights and c_i = w_i u . (x_i - m) the first is 2 g sum_i c_i (x_i - m). The
        second is sum_i c_i s_i, s_i = dl_i/dg, but c_i are differences in float32, whose sum is not
        quite 0: next to one image's log weight of -1000 what remains would be much. So beside
        sum_i c_i s_i stand sum_i c_i and sum_i w_i s_i, to take s_i from its mean.

        Returns:
            (b, D + 3).
        """
        prior, gain = part.log_importance(), precision(sigma)
        mean, u = known.mean.numpy(), cotangent.astype(np.float32)
        seen, below = self._seen(x, sigma, part, known)
        with self.images.stored.resident(part.rows[seen]) as (here, places):
            along = products_of(here, places, u)
            pulls = np.exp(below) * (along - (u * mean).sum(axis=1, keepdims=True))
            sums = sums_of(here, places, pulls)
        in_x = 2 * gain * (sums - pulls.sum(axis=1, keepdims=True) * mean)
        slopes = (below - prior[seen]) / gain  # but for a number that all share
        terms = np.stack([pulls * slopes, pulls, np.exp(below) * slopes], axis=1)
        return np.concatenate([in_x, terms.sum(axis=2)], axis=1)

    def _seen(self, x: F64, sigma: float, part: Support, known: Known) -> tuple[I64, F64]:
        """Places (k,) of images that some query weighs, and the logs of their weights, (b, k)."""
        logits = known.logits
        if logits is None:  # not kept
            logits = self.logits(x.astype(np.float32), sigma, part)
        below = logits - known.log_total.numpy()
        seen = np.flatnonzero((below > -LIGHTEST).any(axis=0))
        return seen, below[:, seen]

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh:
        """As :meth:`weigh`, by torch."""
        return partial(whole_images, gain=precision(sigma))

    def working_bytes(self, images: int) -> tuple[int, int]:
        """Sums of the tasks in flight; two posteriors."""
        d = self.images.d
        return 4 * d, 4 * d * results_held() + 64 * d

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,), one location; see the base class."""
        images = self.images
        for part in whole(support).split(IMAGES_PER_CONTRIBUTION):
            with images.stored.resident(part.rows) as (here, places):
                distances = exact_distances(here, places, x)
            logits = distances * -precision(sigma) + part.log_importance()
            yield Contribution(part.rows, logits[None], values_at(images, part.rows, pixel))


def _logits(log_max: F64, weights: F64) -> F64:
    """Of weights (b, k) in units of the largest."""
    with np.errstate(divide="ignore"):
        found: F64 = np.log(weights).clip(min=ABSENT) + log_max[:, None]
    return found
