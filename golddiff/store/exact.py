"""The exact posterior over the images of a support: its spread, its draws, its derivatives.

With logits l_i(x) an image and location, weights w_i = exp(l_i) / sum_j exp(l_j) and mean
m = sum_i w_i v_i, the rest takes one more pass over the same images with known weights:

    variance                    sum_i w_i (v_i - m)^2
    derivative of u . m in x    sum_i w_i u . (v_i - m) dl_i/dx

Of Optimal the second is Cov[x0 | x] u / sigma^2; where each output has its own logits (PCA, Kamb),
each comes with its own weights. A pass is asked of the training set as a posterior is: an
estimator whose partial sums add up, wherever the images are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from golddiff.kernels.terms import Known, Terms
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.closed_form import main_directions
from golddiff.store.images import ImageStore
from golddiff.store.posterior_draw import Best, PosteriorDraw
from golddiff.store.posteriors import at_level, over
from golddiff.support import AnySupport, Support, TiledSupport, one_each, tile_of_each
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import results_held

FIRST, VARIANCE, PULL = "first", "variance", "pull"
KEPT_SHARE = 1 / 16  # of the memory limit: logits of one pass that are kept for the next


class SecondPass:
    """One pass over images for a posterior's sums, as an estimator that a training set is asked.

    A query is (D) x, and for all but the first pass (V) the means, (V) a cotangent and (L) the log
    of the sum of weights, in float64; at last its number. V is D, or what outputs are composed of.

    Args:
        estimator: weighs the images.
        what: which sums: the posterior's own, (V) the variance, or (D + 3) the derivative in x of
            the mean's product with the cotangent, and three sums for that in sigma, as
            :meth:`golddiff.estimators.optimal.Optimal.pulled` has them.
        kept: (b, N) the logits, which the first pass leaves here for those after it; None: they are
            found anew. It stays in this process.
    """

    def __init__(self, estimator: Any, what: str, kept: F64 | None = None) -> None:
        self.images, self.store, self.what = estimator.images, estimator.store, what
        self.memory_limit, self.in_flight = estimator.memory_limit, estimator.in_flight
        self._v = estimator.sums
        self._decoded = estimator.part_size  # images, at a time and thread
        self._itself = what != FIRST and estimator.joint  # nothing is decoded
        self.part_size = self._decoded * (4 if self._itself else 1)
        self._estimator, self._kept = estimator, kept
        self._ready: dict[float, Any] = {}

    def ready(self, sigma: float) -> Any:
        """The estimator, as it goes to wherever the images are."""
        if sigma not in self._ready:
            self._ready[sigma] = at_level(self._estimator, sigma)
        return self._ready[sigma]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_estimator": None, "_kept": None}

    def on_device(self, sigma: float, store: Any) -> None:
        """Nothing: it works on the processor."""

    def working_bytes(self, images: int) -> tuple[int, int]:
        """As the estimator's, in float64, with what derivatives keep; sums in flight and merged."""
        if self.what == FIRST and self._kept is not None:  # it weighs as it does by itself
            own: tuple[int, int] = self._estimator.working_bytes(images)
            return own
        part = 8 * (6 * self.images.d + 2 * self._v) * min(images, self._decoded)
        held = results_held(self.in_flight) + 4
        return part * torch.get_num_threads(), 8 * held * self._v

    def weigh(self, x: F64, sigma: float, part: Support) -> Posterior:
        """The sums of some images for queries (b, D + 2 V + L + 1)."""
        if self.what == FIRST and self._kept is not None:
            estimator, query = over(self.ready(sigma), self.images), x[:, : self.images.d]
            made, logits = estimator.weigh_with_logits(query.astype(np.float32), sigma, part)
            self._kept[_numbers(x), part.rows] = logits
            return made  # type: ignore[no-any-return]
        return self._sums(x, sigma, part, torch.from_numpy(part.log_importance())[:, None])

    def tiled_posterior(self, x: F64, sigma: float, support: TiledSupport) -> Posterior:
        """The sums of queries, each tile's outputs over the tile's images."""
        tiles = tile_of_each(self.images.shape, support.side)
        total: Posterior | None = None
        for part in Support(support.rows).split(self.part_size):
            weights = np.stack([support.of_tile(t, part.rows) for t in range(len(support.tiles))])
            sums = self._sums(x, sigma, part, torch.from_numpy(weights[tiles].T))
            total = sums if total is None else total.merge(sums)
        assert total is not None
        return total

    def _sums(self, x: F64, sigma: float, part: Support, prior: torch.Tensor) -> Posterior:
        estimator, d = over(self.ready(sigma), self.images), self.images.d
        packed = torch.from_numpy(np.asarray(x, np.float64))
        v = self._v
        ends = [d, d + v, d + 2 * v, x.shape[1] - 1]
        query, mean, cotangent, log_total, _ = packed.tensor_split(ends, dim=1)
        logits = None if self._kept is None else self._kept[_numbers(x), part.rows]
        known = Known(mean, log_total, logits)
        if self._itself and self.what == VARIANCE:
            return _plain(torch.from_numpy(estimator.squares(query.numpy(), sigma, part, known)))
        if self._itself:
            pulled = estimator.pulled(query.numpy(), sigma, part, known, cotangent.numpy())
            return _plain(torch.from_numpy(pulled))
        gain = torch.full((len(x), 1), precision(sigma), dtype=torch.float64, device="cpu")
        if self.what != PULL:
            with torch.no_grad():
                terms = estimator.terms(query, gain, sigma, part, known)
                if self.what == FIRST:
                    return _posterior(terms, prior, len(x), v)
                return _plain(_variance(terms, prior, known))
        with torch.enable_grad():
            inputs = query.clone().requires_grad_(), gain.requires_grad_()
            terms = estimator.terms(*inputs, sigma, part, known)
            score = _pulled(terms, prior, known, cotangent, inputs[1])
            slopes = torch.cat(torch.autograd.grad(score, inputs), dim=1)
            return _plain(torch.nn.functional.pad(slopes, (0, 2)))  # in float64 no rest is left


def _numbers(x: F64) -> I64:
    """(b, 1) of queries, where they lie among what is kept."""
    return x[:, -1:].astype(np.int64)


def _posterior(terms: Terms, prior: torch.Tensor, b: int, d: int) -> Posterior:
    total: Posterior | None = None
    for queries, images, logits, values in terms:
        weighted = logits + prior[images]
        top = weighted.amax(dim=1)
        weights = torch.exp(weighted - top[:, None])
        sums = _spread_sum(weights, values)
        some = Posterior(*(array.numpy() for array in (top, weights.sum(dim=1), sums)))
        total = total or Posterior.empty(b, top.shape[1], d)
        total.add_to(range(b)[queries], some)
    assert total is not None
    return total


def _spread_sum(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum over images of weights (b, m, L) times values (m, V), channel by channel: (b, V)."""
    by_channel = values.reshape(len(values), -1, weights.shape[2])
    return torch.einsum("bml,mcl->bcl", weights, by_channel).reshape(len(weights), -1)


def _weights(logits: torch.Tensor, prior: torch.Tensor, log_total: torch.Tensor) -> torch.Tensor:
    return torch.exp(logits.detach() + prior - log_total[:, None])


def _variance(terms: Terms, prior: torch.Tensor, known: Known) -> torch.Tensor:
    mean, out = known.mean, torch.zeros_like(known.mean)
    for queries, images, logits, values in terms:
        weights = _weights(logits, prior[images], known.log_total[queries])
        out[queries] += _spread_sum(weights, (values - mean[queries]) ** 2)
    return out


def _pulled(
    terms: Terms, prior: torch.Tensor, known: Known, cotangent: torch.Tensor, gain: torch.Tensor
) -> torch.Tensor:
    """A number whose derivative is that of the mean's product with the cotangent."""
    score = cotangent.new_zeros(())
    # Weights times differences to the mean add up to 0: what all logits share may be left out.
    shared = known.log_total * (gain / gain.detach())
    for queries, images, logits, values in terms:
        u, centre = cotangent[queries], known.mean[queries]
        weights = _weights(logits, prior[images], known.log_total[queries])
        off = (u * (values - centre)).reshape(len(values), -1, weights.shape[2]).sum(dim=1)[None]
        score = score + ((weights * off) * (logits - shared[queries][:, None])).sum()
    return score


def _plain(sums: torch.Tensor) -> Posterior:
    """Sums that are added as they are."""
    one = np.ones((len(sums), 1))
    return Posterior(np.zeros_like(one), one, sums.detach().numpy())


class ImagesPosterior:
    """The posterior of queries (b, D) that share a noise level, each over its support.

    ``log_prior`` is the log of the sum of the weights that all images have before x is seen. An
    estimator whose mean is not that of one posterior is refused: PCA with "wss", SCFDM.
    """

    def __init__(
        self,
        estimator: Any,
        x: F32,
        sigma: float,
        supports: AnySupport | Sequence[AnySupport],
        log_prior: float,
    ) -> None:
        if not estimator.merges:
            raise ArgumentError(
                f"posterior: the mean of {type(estimator).__name__} is not that of one posterior; "
                "expected Optimal, Kamb, or PCA with weighting 'ss'"
            )
        self.estimator, self.x, self.sigma, self.supports = estimator, x, sigma, supports
        self._log_prior = log_prior
        size = 8 * len(x) * estimator.store.n
        single = isinstance(estimator.store, ImageStore) and estimator.joint
        few = single and size <= KEPT_SHARE * estimator.memory_limit
        self._kept = np.empty((len(x), estimator.store.n)) if few else None

    @cached_property
    def _first(self) -> Posterior:
        if self.estimator.joint and self._kept is None:
            found: Posterior = self.estimator.store.posterior(
                self.estimator, self.x, self.sigma, self.supports
            )
            return found
        b = len(self.x)
        unknown = [np.zeros((b, 2 * self.estimator.sums)), np.full((b, 1), -np.inf)]
        return self._asked(FIRST, np.concatenate([self.x, *unknown], axis=1))

    def mean(self) -> F64:
        """(b, D)."""
        found: F64 = self.estimator.composed(self._first.mean(), self.sigma)
        return found

    def variance(self) -> F64:
        """(b, D) of each output."""
        b, d = self.x.shape
        return self._second(VARIANCE, np.zeros((b, self.estimator.sums))).weighted[:, :d]

    def pull(self, cotangent: F64) -> tuple[F64, F64]:
        """Derivatives of the mean's product with a cotangent (b, D): in x (b, D), in sigma (b,)."""
        joining = self.estimator.joining
        cotangent = cotangent if joining is None else joining.transposed(cotangent)
        found, d = self._second(PULL, cotangent).weighted, self.x.shape[1]
        in_gain, rest, mean_slope = found[:, d:].T
        in_gain = in_gain - rest * mean_slope
        return found[:, :d], in_gain * (-2 * precision(self.sigma) / self.sigma)

    def _second(self, what: str, cotangent: F64) -> Posterior:
        first = self._first
        log_total = first.log_max + np.log(first.total)
        packed = np.concatenate([self.x, first.mean(), cotangent, log_total], axis=1)
        return self._asked(what, packed)

    def _asked(self, what: str, queries: F64) -> Posterior:
        numbered = np.concatenate([queries, np.arange(len(queries))[:, None]], axis=1)
        found: Posterior = self.estimator.store.posterior(
            SecondPass(self.estimator, what, self._kept), numbered, self.sigma, self.supports
        )
        return found

    def log_density(self) -> F64:
        """(b,) log of p_sigma(x) = sum_i p_i N(x; x_i, sigma^2 I), in nats.

        Raises:
            ArgumentError: an estimator without a joint posterior.
        """
        self._whole("log density")
        first, d = self._first, self.x.shape[1]
        log_total = (first.log_max + np.log(first.total))[:, 0]
        noise = d * (math.log(self.sigma) + 0.5 * math.log(2 * math.pi))
        density: F64 = log_total - self._log_prior - noise
        return density

    def times(self, vectors: F64) -> F64:
        """The posterior's covariance times vectors (b, D)."""
        return self.pull(vectors)[0] * self.sigma**2

    def directions(self, k: int) -> tuple[F64, F64]:
        """The covariance's k largest eigenvalues (b, k), descending, and eigenvectors (b, k, D)."""
        self._whole("directions")
        b, d = self.x.shape
        values, vectors = zip(
            *(main_directions(self._of(i).times, d, k) for i in range(b)), strict=True
        )
        return np.stack(values), np.stack(vectors)

    def draw(self, n: int, seed: int, places: Sequence[int]) -> F32:
        """(n, b, D) images drawn by their weights; each query's hang on its place alone."""
        self._whole("draws")
        drawing = PosteriorDraw(self.estimator, self.sigma, n, seed, tuple(places))
        best: Best = self.estimator.store.answer(drawing, self.x, self.supports)
        values: F32 = self.estimator.store.values(best.rows.T.ravel())
        return values.reshape(n, len(self.x), -1)

    def _of(self, query: int) -> ImagesPosterior:
        """That of one query."""
        made, one = copy.copy(self), slice(query, query + 1)
        made.x, made.supports = self.x[one], one_each(self.supports, len(self.x))[one]
        made._kept = None if self._kept is None else self._kept[one]
        made.__dict__["_first"] = self._first.of([query])
        return made

    def _whole(self, what: str) -> None:
        if not self.estimator.joint:
            raise ArgumentError(
                f"{what}: {type(self.estimator).__name__} weighs images anew for every output, so "
                "its outputs have no joint posterior; expected Optimal, Wiener or GaussianMixture"
            )
