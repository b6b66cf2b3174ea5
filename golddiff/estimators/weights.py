"""One query's posterior weights, streamed: normalised where normalising needs all images first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Estimator
from golddiff.estimators.contributions import Contribution, Ranking
from golddiff.posterior import Float, Posterior
from golddiff.support import AnySupport

# Of an estimator's memory limit: terms that fit are kept between the two passes, not made again.
KEPT_SHARE = 0.25


class Weights:
    """The weight of every image at every location, a part of the images at a time.

    A first pass over the images, at once, finds what the weights sum to; iterating is the second.
    Memory stays within a part, and what is kept where all terms fit in a quarter of the
    estimator's ``memory_limit``.

    Args:
        estimator: what weighs.
        support: the images weighed.
        x: (D,) query.
        sigma: noise level.
        top: main sources to rank at each location.
        pixel: only the locations of this pixel, y * W + x.

    Attributes:
        top: sources ranked: ``top``, or the number of images where that is fewer.
        log_total: (L,) log of the sum of exp(logit).
        effective: (L,) exp of the entropy (in nats) of the images' weights at a location: N where
            N images weigh the same, 1 where one has all the weight.
    """

    def __init__(
        self,
        estimator: Estimator,
        support: AnySupport,
        x: NDArray[np.float32],
        sigma: float,
        top: int,
        pixel: int | None = None,
    ) -> None:
        self.top = min(top, len(support))
        self._parts: Callable[[], Iterator[Contribution]] = partial(
            estimator.store.contributions, estimator, x, sigma, support, self.top, pixel
        )
        self._kept: list[Contribution] | None = []
        kept_bytes, limit = 0, KEPT_SHARE * estimator.memory_limit
        sums: Posterior | None = None
        ranking: Ranking | None = None
        for part in self._parts():
            sums = _sums(part.logits) if sums is None else sums.merge(_sums(part.logits))
            ranking = ranking or Ranking.empty(len(part.logits), self.top)
            ranking = (
                ranking.offered(part.logits, part.rows)
                if part.best is None
                else ranking.merge(part.best)
            )
            kept_bytes += part.nbytes
            if kept_bytes > limit:
                self._kept = None
            elif self._kept is not None:
                self._kept.append(part)
        assert sums is not None
        assert ranking is not None  # a support has at least one image
        self.log_total = (sums.log_max + np.log(sums.total))[0]
        self.effective: Float = np.exp(self.log_total - sums.mean()[0])
        self._ranking = ranking.descending()

    def __iter__(self) -> Iterator[tuple[Contribution, Float]]:
        """Each part with its weights (L, k); over all parts a location's sum to 1."""
        for part in self._parts() if self._kept is None else self._kept:
            yield part, np.exp(part.logits - self.log_total[:, None])

    def ranked(self) -> Ranking:
        """The main sources of each location, their weights as scores, heaviest first."""
        best = self._ranking
        return Ranking(np.exp(best.scores - self.log_total[:, None]), best.rows, best.positions)


def _sums(logits: Float) -> Posterior:
    """The partial posterior over some images of their own logits: for their total and entropy.

    One row; the images' values at a location are their logits there (L, k), so that the mean is
    E[l], and the entropy log sum exp(l) - E[l].
    """
    highest = logits.max(axis=1)
    e = np.exp(logits - highest[:, None])
    weighted = (e * np.where(e > 0, logits, 0.0)).sum(axis=1)
    return Posterior(highest[None], e.sum(axis=1)[None], weighted[None])


def mean_effective(
    estimator: Estimator, support: AnySupport, x: NDArray[np.float32], sigma: float
) -> float:
    """The effective number of images of one query (D,), averaged over locations."""
    return float(Weights(estimator, support, x, sigma, top=1).effective.mean())
