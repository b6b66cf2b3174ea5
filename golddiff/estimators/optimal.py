"""Optimal: the exact empirical-Bayes denoiser, one logit an image (paper, Eq. 2)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import Estimator
from golddiff.kernels.contributions import Contribution, values_at
from golddiff.kernels.rows import ROWS_PER_TASK, exact_distances, sums_of, weights_of
from golddiff.kernels.terms import ABSENT, Known, Terms, WholeLogits
from golddiff.kernels.torch_kernels import whole_images
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore, Weigh
from golddiff.store.posteriors import whole
from golddiff.support import AnySupport, Support
from golddiff.system.parallel import results_held
from golddiff.system.residency import resident_rows

IMAGES_PER_CONTRIBUTION = 512
# Nats below the whole posterior: 10^7 images less likely together move nothing by 1e-6.
LIGHTEST = 30.0


class Optimal(Estimator):
    """D(x) = sum_i softmax_i(-||x - x_i||^2 / (2 sigma^2)) x_i.

    Source: paper Eq. 2; De Bortoli 2022, Kamb & Ganguli 2024. It minimises the training loss
    exactly, and so returns training images as sigma falls.
    """

    provable = True
    sums_its_terms = True
    part_size = ROWS_PER_TASK
    parts = 8  # of a golden subset, so that all threads have something to do

    def weigh(self, x: NDArray[np.float32], sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over some images; one location an image."""
        images = self.images
        # Distances and sums at once: rows that lie apart are read from the file once.
        with resident_rows(images.flat, part.rows) as (values, places):
            log_max, weights = weights_of(
                values, places, part.log_importance(), x, precision(sigma),
                images.scale, images.offset,
            )  # fmt: skip
            sums = sums_of(values, places, weights, images.scale, images.offset)
        return Posterior(log_max[:, None], weights.sum(axis=1, keepdims=True), sums)

    def terms(
        self, x: torch.Tensor, gain: torch.Tensor, sigma: float, part: Support, known: Known
    ) -> Terms:
        """See the base class; images of no weight are left out."""
        images, queries = self.images, x.detach().numpy().astype(np.float32)
        prior, least = part.log_importance(), known.log_total.numpy() - LIGHTEST
        with resident_rows(images.flat, part.rows) as (values, places):
            log_max, weights = weights_of(
                values, places, prior, queries, precision(sigma), images.scale, images.offset
            )
        with np.errstate(divide="ignore"):
            found = np.log(weights).clip(min=ABSENT) + log_max[:, None]
        seen = np.flatnonzero((found > np.maximum(least, ABSENT / 2)).any(axis=0))
        if len(seen) == 0:
            return
        shown = torch.from_numpy(images.values(part.rows[seen]))
        logits = torch.from_numpy(found[:, seen] - prior[seen])
        logits = WholeLogits.apply(x, gain, logits, shown, known.mean)  # type: ignore[no-untyped-call]
        yield slice(None), seen, logits[:, :, None], shown

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh:
        """As :meth:`weigh`, by torch."""
        return partial(whole_images, gain=precision(sigma))

    def working_bytes(self, images: int) -> tuple[int, int]:
        """Sums of the tasks in flight; two posteriors."""
        d = self.images.d
        return 4 * d, 4 * d * results_held() + 64 * d

    def contributions(
        self,
        x: NDArray[np.float32],
        sigma: float,
        support: AnySupport,
        top: int = 1,
        pixel: int | None = None,
    ) -> Iterator[Contribution]:
        """The terms of one query (D,), one location; see the base class."""
        images = self.images
        for part in whole(support).split(IMAGES_PER_CONTRIBUTION):
            with resident_rows(images.flat, part.rows) as (values, places):
                distances = exact_distances(values, places, x, images.scale, images.offset)
            logits = distances * -precision(sigma) + part.log_importance()
            yield Contribution(part.rows, logits[None], values_at(images, part.rows, pixel))
