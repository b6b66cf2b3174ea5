"""PCA's outputs in float64, where the rounding of float32 would decide which image has the weight.

At low noise, an image unlike all training images has logits of -1e5 and below. Rounded to float32,
they are off by as much as the best two differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from golddiff.kernels.mask_tree import MaskTree, output_masks
from golddiff.kernels.pca_logits import masked_logits
from golddiff.posterior import Posterior
from golddiff.support import Support, Supports, TiledSupport, per_query
from golddiff.system.numbers import F32, F64, I64

TOL = 1e-4  # estimated error of a mean in float32 above which it is computed in float64


def recomputed(pca: Any, x: F32, sigma: float, supports: Supports, posterior: Posterior) -> F64:
    """The means (b, D) of a posterior in float32, the uncertain ones recomputed in float64."""
    means, uncertain = posterior.mean(), posterior.rounding() > TOL
    for query in np.flatnonzero(uncertain.any(axis=1)).tolist():
        support = per_query(supports, len(x))[query]
        if not isinstance(support, TiledSupport):
            outputs = np.flatnonzero(uncertain[query])
            some = _SomeOutputs(pca, sigma, outputs)
            exact = pca.store.posterior(some, x[query : query + 1], sigma, support)
            means[query, outputs] = exact.mean()[0]
    return means


class _SomeOutputs:
    """PCA for some outputs (L,) of one query, run by a training set like an estimator."""

    def __init__(self, pca: Any, sigma: float, outputs: I64) -> None:
        self.images, self.store = pca.images, pca.store
        self.part_size, self.memory_limit = pca.part_size, pca.memory_limit
        self._outputs, self._tree = outputs, output_masks(pca.ready(sigma).tree, outputs)

    def ready(self, sigma: float) -> MaskTree:
        """The masks of the outputs, which shards receive."""
        return self._tree

    def working_bytes(self, images: int) -> tuple[int, int]:
        """The float64 logits and values of one part, and the sums."""
        outputs = len(self._outputs)
        return 16 * outputs * min(images, self.part_size), 24 * outputs

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of one query (1, D) over a part."""
        logits = masked_logits(self.images.stored, part.rows, x[0], sigma, self._tree)
        logits += part.log_importance()
        values = self.images.stored.values(part.rows, self._outputs).astype(np.float64)
        return Posterior.of_logits(logits, values)
