"""PCA: one logit per output value, summed over the inputs in that value's covariance mask."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import DEFAULT_MEMORY_LIMIT, Estimator
from golddiff.estimators.masks import counts_of, tree_of
from golddiff.estimators.pca_float64 import recomputed
from golddiff.estimators.seamless import Seamless
from golddiff.estimators.shared import SIDES, Summands, UnitMasks, units_of
from golddiff.kernels.contributions import Contribution, log_sum_exp, outputs_at, values_at
from golddiff.kernels.lanes import BLOCK
from golddiff.kernels.mask_tree import MaskTree, dense_mask, mean_mask, output_masks, tile_trees
from golddiff.kernels.pca_cpu import add_resident, masked_posterior
from golddiff.kernels.pca_logits import masked_logits
from golddiff.kernels.pca_moments import masked_moments
from golddiff.kernels.stored import Stored
from golddiff.kernels.torch_kernels import mask_dtype, mask_sums, masked, with_differences
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore, Weigh
from golddiff.store.exact import FirstPass, Terms
from golddiff.store.images import ImageStore, StoreOrPath
from golddiff.store.posteriors import as_support
from golddiff.store.training_set import TrainingSet
from golddiff.support import (
    AnySupport,
    OfChannel,
    Side,
    Support,
    Supports,
    TiledSupport,
    grouped,
    per_query,
    pixels,
    tile_of_each,
)
from golddiff.system.arguments import check_number
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64, I64, check_count
from golddiff.system.parallel import for_each, map_ordered

TILE_ROWS_SHARE = 1 / 4  # share of the memory limit for image rows that all tiles read together
BYTES_PER_VALUE = 100  # working memory per output value of one batch's posterior
TILE_SIDES: tuple[Side, ...] = (8, OfChannel(8), 4)
ONE_DENSE = threading.Lock()  # at 64 x 64 a dense mask takes 1.2 GB: other threads wait for it
WIDTH_THRESHOLD = 0.02  # threshold of the masks whose width sets Kamb's default patch size


@dataclass
class Masks:
    """The masks of one noise level, one per output value; pickling drops the derived arrays."""

    tree: MaskTree  # the masks of all output values
    shape: tuple[int, ...]  # shape of an image
    _tiles: dict[Side, list[MaskTree]] = field(default_factory=dict)
    _dense: torch.Tensor | None = None

    def tiles(self, side: Side) -> list[MaskTree]:
        """One mask tree per square tile of the given side, row by row; cached."""
        if side not in self._tiles:
            self._tiles[side] = tile_trees(self.tree, self.shape, side)
        return self._tiles[side]

    def posterior(
        self, images: Any, part: Support, x: F32, sigma: float, summands: Summands
    ) -> Posterior:
        """The partial posterior of queries (b, D) over a part; each output is a location."""
        return masked_posterior(images.stored, part, x, sigma, self.tree)

    def moments(
        self, images: Any, part: Support, x: F64, sigma: float, known: FirstPass,
        cotangent: F64 | None, summands: Summands,
    ) -> F64:  # fmt: skip
        """The sums of :meth:`PCA.moments`; each output is a location."""
        with images.stored.resident(part.rows) as (loaded, rows):
            own = Support(rows, part.log_weights)
            return masked_moments(loaded, own, x, sigma, self.tree, known.in_float32(cotangent))

    def mean(self, side: Side | None) -> F32:
        """The mean mask of each tile's outputs (T, D), or of all outputs (1, D)."""
        trees = [self.tree] if side is None else self.tiles(side)
        return np.stack([mean_mask(tree, math.prod(self.shape)) for tree in trees])

    def logits_of(
        self, images: Any, x: F32, sigma: float, pixel: int | None
    ) -> Callable[[I64], F64]:
        """A function: image rows (k,) -> float64 logits (L, k) of one query, all or one pixel's."""
        tree = self.tree if pixel is None else output_masks(self.tree, outputs_at(images, pixel))
        return lambda rows: masked_logits(images.stored, rows, x, sigma, tree)

    def mask_product(
        self, store: DeviceStore | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function from squared differences (k, D) to their masked sums (k, D).

        In float32 on the device of a store, else in float64 on the CPU.
        """
        if store is None:
            return partial(torch.matmul, other=self.dense())
        # dense() would keep another 8 bytes an entry on the CPU for each noise level.
        dtype = mask_dtype(store.device)
        mask = store.cached(self, lambda: store.sent(dense_mask(self.tree, store.d)).to(dtype))
        return partial(mask_sums, mask=mask)

    def dense(self) -> torch.Tensor:
        """The masks (D, D), indexed [input, output], as float64 0 and 1; cached."""
        with ONE_DENSE:
            if self._dense is None:
                d = math.prod(self.shape)
                # 8 bytes an entry as float64, and two byte matrices while it is computed.
                require_memory(10 * d * d, f"the masks of {d:,} values", "use smaller images")
                self._dense = torch.from_numpy(dense_mask(self.tree, d)).double()
            return self._dense

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tiles": {}, "_dense": None}


class PCA(Estimator):
    """D(x)_q = sum_i softmax_i(-sum_n M_nq (x_n - x_in)^2 / (2 sigma^2)) x_iq.

    M is binary: M_nq = 1 where |W_nq / W_nn| is at least ``mask_threshold`` times the largest such
    entry of the matrix, and for n = q. Where a value hardly varies, W_nn below 1e-6 is replaced by
    1, and it may be missing from its own mask. W = C (C + sigma^2 I)^-1, with the covariance C of
    all training images (:func:`golddiff.estimators.masks.locality_mask`). With ``labels`` the class
    restricts the images but not the mask, as in the released code. Source: Lukoianov et al. 2025;
    paper Eq. 3.

    Args:
        store: the training set.
        mask_threshold: fraction of the largest entry that an entry must reach, in [0, 1].
            Released GoldDiff: 0.02 (MNIST, Fashion-MNIST, ImageNet), 0.03 (CIFAR-10, CelebA-HQ),
            0.04 (AFHQ).
        weighting: "ss", the exact softmax over all images, or "wss", Lukoianov's average of the
            softmax averages of consecutive batches in store order.
        batch_size: number of images in a batch of "wss".
        memory_limit: see :class:`golddiff.denoiser.Estimator`. Masks need memory beyond the limit,
            about 16 D^2 bytes while those of one sigma are computed.
        share: which output values share one softmax: "pixel" (the colours of a pixel), "2x2" or
            "4x4" (all values in a square of pixels). The shared logit is the mean of the values'
            own logits; for 16 values or more, the mean over every fifth, or above 32 x 32 RGB
            over four.
            "seamless": one softmax per pixel, with logits interpolated between those of "4x4", or
            beyond 64 x 64 of larger squares, about 16 to a side; outputs also fit the differences
            of neighbouring pixels, see :mod:`golddiff.estimators.seamless`. Only for images
            (C, H, W).
            None: each value has its own softmax.

    Raises:
        ArgumentError: an argument is out of range, or "seamless" is used with points.
    """

    def __init__(
        self,
        store: StoreOrPath,
        mask_threshold: float = 0.02,
        weighting: str = "ss",
        batch_size: int = 256,
        memory_limit: float = DEFAULT_MEMORY_LIMIT,
        share: str | None = None,
    ) -> None:
        super().__init__(store, memory_limit)
        if weighting not in ("ss", "wss"):
            raise ArgumentError(f"weighting: got {weighting!r}, expected 'ss' or 'wss'")
        if share not in (None, *SIDES):
            expected = ", ".join(map(repr, SIDES))
            raise ArgumentError(f"share: got {share!r}, expected {expected} or None")
        self.mask_threshold = check_number("mask_threshold", mask_threshold, "0 to 1", 0, 1)
        self.share = share
        if share == "seamless":
            if len(self.store.shape) != 3:
                raise ArgumentError("share: 'seamless' needs images (C, H, W), not points")
            self.seamless = Seamless(self.store.shape)
            self.n_values = self.seamless.n_values
        self.weighting = weighting
        self.merges = weighting == "ss"
        self.batch_size = check_count("batch_size", batch_size)
        if len(self.store.shape) == 3 and weighting == "ss" and share is None:
            self.tile_sides = tuple(s for s in TILE_SIDES if min(self.store.shape[1:]) > pixels(s))

    def make_ready(self, sigma: float) -> Masks | UnitMasks:
        """The masks of a noise level, computed from the covariance of all images."""
        if self.share is not None:
            units = units_of(self.store.shape, self.share)
            counts = counts_of(self.store, sigma, self.mask_threshold, units)
            return UnitMasks.of_counts(counts, self.store.shape, self.share)
        return Masks(tree_of(self.store, sigma, self.mask_threshold), self.store.shape)

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D); a location per output, or per shared pixel."""
        return self.ready(sigma).posterior(self.images, part, x, sigma, self.summands)

    def terms(self, x: torch.Tensor, gain: torch.Tensor, sigma: float, part: Support) -> Terms:
        """See ``Terms`` of ``golddiff.store.exact``."""
        values = torch.from_numpy(self.images.values(part.rows).astype(np.float64))
        summands = torch.from_numpy(self.summands(values.numpy()))
        mask_product = self.ready(sigma).mask_product()
        for q, query in enumerate(x):
            yield q, -gain[q] * mask_product((values - query).square()), summands

    def moments(
        self, sigma: float, part: Support, x: F64, known: FirstPass, cotangent: F64 | None
    ) -> F64:
        """The variance (b, V), or the derivatives of u . mean, (b, D + 3 L), over a part's images.

        As :meth:`golddiff.estimators.optimal.Optimal.moments`, with three sums for every location.
        """
        masks = self.ready(sigma)
        return masks.moments(self.images, part, x, sigma, known, cotangent, self.summands)

    def tiled_moments(
        self, sigma: float, support: TiledSupport, x: F64, known: FirstPass, cotangent: F64 | None
    ) -> F64:
        """:meth:`moments` with a separate support for each tile."""
        trees, sums = self.ready(sigma).tiles(support.side), np.zeros(())
        in_float32 = known.in_float32(cotangent)
        for loaded, parts in self._loaded_tiles(support):

            def moments(t: int, loaded: Stored = loaded, parts: list[Support] = parts) -> F64:
                return masked_moments(loaded, parts[t], x, sigma, trees[t], in_float32)

            for tile in map_ordered(moments, range(len(trees))):
                sums = sums + tile
        return sums

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh:
        """:meth:`weigh` in torch."""
        product = self.ready(sigma).mask_product(store)
        summands = self.seamless and partial(with_differences, shape=self.images.shape)
        return partial(masked, gain=precision(sigma), mask_product=product, summands=summands)

    def denoise_over(self, x: F32, sigma: float, supports: Supports) -> F32:
        """Posterior means (b, D) of queries (b, D); with "wss" averages over batches."""
        if self.weighting == "ss":
            return super().denoise_over(x, sigma, supports)
        out = np.empty_like(x)
        for support, queries in grouped(per_query(supports, len(x))):
            out[queries] = self._batch_average(x[queries], sigma, as_support(support))
        return out

    def means(self, x: F32, sigma: float, supports: Supports, posterior: Posterior) -> F64:
        """The means, recomputed in float64 where float32 leaves them uncertain."""
        # On a GPU a step would wait for the CPU.
        if self.share is None and isinstance(self.store, TrainingSet):
            return recomputed(self, x, sigma, supports, posterior)
        return posterior.mean()

    def _batch_average(self, x: F32, sigma: float, support: Support) -> F32:
        """The plain average (b, D) of the posterior means over consecutive batches of images."""
        batches = [_normalised(batch) for batch in support.split(self.batch_size)]
        size = BYTES_PER_VALUE * x.size  # bytes of one batch's posterior
        at_once = max(1, int(self.memory_limit // size))
        rounds = -(-len(batches) // at_once)
        total = np.zeros(x.shape)
        for i in range(rounds):
            selected = batches[i::rounds]  # strided over the store, so that all shards have work
            supports = [batch for batch in selected for _ in x]
            queries = np.tile(x, (len(selected), 1))
            posterior = self.store.posterior(self, queries, sigma, supports)
            means = self.composed(posterior.mean(), sigma)
            total += means.reshape(len(selected), *x.shape).sum(axis=0)
        return (total / len(batches)).astype(np.float32)

    def tiled_posterior(self, x: F32, sigma: float, support: TiledSupport) -> Posterior:
        """The partial posterior of queries (b, D); each tile's outputs use the tile's images."""
        trees = self.ready(sigma).tiles(support.side)
        sums = Posterior.empty(len(x), x.shape[1], x.shape[1], np.float32)
        for loaded, parts in self._loaded_tiles(support):

            def add(t: int, loaded: Stored = loaded, parts: list[Support] = parts) -> None:
                add_resident(loaded, parts[t], x, sigma, trees[t], sums)

            for_each(add, range(len(trees)))
        return sums.in_float64()

    def _loaded_tiles(self, support: TiledSupport) -> Iterator[tuple[Stored, list[Support]]]:
        """Parts of the images in memory, each with every tile's images among them.

        Tiles choose many images in common, and reading a row from the store's file takes longer
        than weighing one tile of it, so each row is read once for all tiles.
        """
        size = max(1, int(self.memory_limit * TILE_ROWS_SHARE // self.images.flat.strides[0]))
        for part in Support(support.rows).split(size):
            with self.images.stored.resident(part.rows) as (loaded, local_rows):
                yield loaded, [_loaded_subset(t, part.rows, local_rows) for t in support.tiles]

    def relevance(self, sigma: float, side: Side | None = None) -> F32:
        """The mean mask of each tile's outputs, (T, D); see the base class."""
        return self.ready(sigma).mean(side)

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,); each output (or pixel) is a location. See the base class.

        With "wss", each batch's logits are normalised by their log-sum-exp, so that all batches
        have equal weight, as in the average of their softmaxes.
        """
        images, tiles, masks = self.images, None, self.ready(sigma)
        logits_of = masks.logits_of(images, x, sigma, pixel)
        if isinstance(support, TiledSupport):
            tiles = tile_of_each(images.shape, support.side)
            tiles = tiles if pixel is None else tiles[outputs_at(images, pixel)]

        def task(part: Support) -> Contribution:
            logits = logits_of(part.rows)
            if isinstance(support, TiledSupport) and tiles is not None:
                logits += support.log_weights_of(part.rows)[tiles]
            else:
                logits += part.log_importance()
            if self.weighting == "wss":
                logits -= log_sum_exp(logits)[:, None]
            values = values_at(images, part.rows, pixel)
            return Contribution(part.rows, logits, self.summands(values, pixel))

        size = self.batch_size if self.weighting == "wss" else BLOCK
        listed = Support(support.rows) if isinstance(support, TiledSupport) else as_support(support)
        yield from map_ordered(task, listed.split(size))

    def summands(self, values: NDArray[Any], pixel: int | None = None) -> NDArray[Any]:
        """The values (k, V) that are weighted and summed for images (k, D); at one pixel (k, C)."""
        unchanged = self.seamless is None or pixel is not None
        return values if unchanged else self.seamless.summands(values)

    def working_bytes(self, images: int) -> tuple[int, int]:
        """A block of images, or with ``share`` a part, and a posterior of each query."""
        d = self.images.d
        if self.share is not None:
            part = 4 * (5 * d + self.n_values) * min(images, self.part_size)
            return part, 36 * self.n_values
        return BLOCK * d * (4 + self.images.flat.itemsize), 36 * d


def _loaded_subset(tile: Support, chunk: I64, local_rows: I64) -> Support:
    """The tile's images among a chunk of rows (k,), as rows of the loaded array."""
    first, last = np.searchsorted(tile.rows, [chunk[0], chunk[-1] + 1])
    subset = tile.at(slice(first, last))
    return Support(local_rows[np.searchsorted(chunk, subset.rows)], subset.log_weights)


def _normalised(batch: Support) -> Support:
    """The batch with its largest log weight at 0, so that no "wss" batch underflows float32."""
    weights = batch.log_weights
    return batch if weights is None else Support(batch.rows, weights - weights.max())


def mask_width(store: ImageStore, sigma: float, mask_threshold: float = WIDTH_THRESHOLD) -> float:
    """Mean number of input values in an output value's mask."""
    return float(mean_mask(tree_of(store, sigma, mask_threshold), store.d).sum(dtype=np.float64))
