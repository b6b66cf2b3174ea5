"""PCA: one logit an output value, over the inputs that the data's covariance ties it to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import DEFAULT_MEMORY_LIMIT, Estimator
from golddiff.estimators.kept_masks import tree_of
from golddiff.estimators.seamless import Seamless
from golddiff.estimators.shared import SIDES, Given, UnitMasks
from golddiff.estimators.tiles import add_tiles
from golddiff.kernels.contributions import Contribution, log_sum_exp, outputs_at, values_at
from golddiff.kernels.gather import BLOCK
from golddiff.kernels.mask_tiles import cut, mean_mask, mean_width
from golddiff.kernels.mask_tree import MaskTree, dense_mask
from golddiff.kernels.pca_cpu import Sums, masked_posterior
from golddiff.kernels.pca_logits import BLOCK as LOGITS_BLOCK
from golddiff.kernels.pca_logits import branches, masked_logits
from golddiff.kernels.terms import Known, Terms, pixel_terms
from golddiff.kernels.torch_kernels import masked
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore, Weigh
from golddiff.store.images import ImageStore, StoreOrPath
from golddiff.store.posteriors import whole
from golddiff.support import (
    AnySupport,
    OfChannel,
    Side,
    Support,
    TiledSupport,
    grouped,
    one_each,
    pixels,
    tile_of_each,
)
from golddiff.system.arguments import as_number
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64, I64, check_count
from golddiff.system.parallel import map_ordered, results_held

TILES_ROWS = 1 / 4  # of the memory limit: rows that are read for all tiles together
BYTES_A_VALUE = 100  # of one batch's posterior, made and joined
TILE_SIDES: tuple[Side, ...] = (8, OfChannel(8), 4)
TILE_SIDES_OF_ONE_CHANNEL: tuple[Side, ...] = (8, 4)
MEASURED_AT = 0.02  # threshold of the masks whose width is Kamb's patch size


@dataclass
class Masks:
    """The masks of one noise level, each output's own; a copy elsewhere cuts the tiles' itself."""

    tree: MaskTree  # of whole images
    shape: tuple[int, ...]  # of an image
    _tiles: dict[Side, list[MaskTree]] = field(default_factory=dict)
    _dense: torch.Tensor | None = None

    def tiles(self, side: Side) -> list[MaskTree]:
        """A tree for each square tile of a side, row by row; made once."""
        if side not in self._tiles:
            self._tiles[side] = cut(self.tree, self.shape, side)
        return self._tiles[side]

    def posterior(
        self, images: Any, part: Support, x: F32, sigma: float, given: Given
    ) -> Posterior:
        """The partial posterior of queries (b, D) over some images; every output is a location."""
        return masked_posterior(images.stored, part, x, sigma, self.tree)

    def mean(self, side: Side | None) -> F32:
        """The masks averaged over each tile's outputs, or over all, (T, D)."""
        trees = [self.tree] if side is None else self.tiles(side)
        return np.stack([mean_mask(tree, math.prod(self.shape)) for tree in trees])

    def logits_of(
        self, images: Any, x: F32, sigma: float, pixel: int | None
    ) -> Callable[[I64], F64]:
        """One query's (D,) logits (L, k) of images by their rows, in float64; or of one pixel."""
        tree = self.tree if pixel is None else branches(self.tree, outputs_at(images, pixel))
        return lambda rows: masked_logits(images.stored, rows, x, sigma, tree)

    def summed(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Squared differences (k, D) to what an output's logit is of, (k, D), in torch."""
        return partial(torch.matmul, other=self.dense())

    def dense(self) -> torch.Tensor:
        """The masks (D, D), indexed [input, output], as float64 0 and 1; made once."""
        if self._dense is None:
            d = math.prod(self.shape)
            # As float64, and twice as bytes while it is made.
            require_memory(10 * d * d, f"the masks of {d:,} values", "use smaller images")
            mask = dense_mask(self.tree, d)
            self._dense = torch.from_numpy(mask).double()
        return self._dense

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tiles": {}, "_dense": None}


class PCA(Estimator):
    """D(x)_q = sum_i softmax_i(-sum_n M_nq (x_n - x_in)^2 / (2 sigma^2)) x_iq.

    The binary mask M comes from the covariance of all training images (with ``labels`` too, as in
    the released code: the class narrows the images, not the mask); see
    :func:`golddiff.estimators.masks.locality_mask`. Source: Lukoianov et al. 2025; paper Eq. 3.

    Args:
        store: the training set.
        mask_threshold: fraction of max|M| that an entry must reach, in [0, 1]. Released GoldDiff:
            0.02 (MNIST, Fashion-MNIST, ImageNet), 0.03 (CIFAR-10, CelebA-HQ), 0.04 (AFHQ).
        weighting: "ss", the exact softmax over all images, or "wss", Lukoianov's average of the
            softmax averages of consecutive batches in store order.
        batch_size: images a batch of "wss".
        memory_limit: see :class:`golddiff.denoiser.Estimator`; masks come on top, about
            16 D^2 bytes while a sigma's are made.
        share: values that have one softmax together: "pixel" (a pixel's colours), "2x2" or "4x4"
            (the values of so many pixels). Its logit is the mean of the values' own logits; of 16
            values or more, that of every fifth.
            "seamless": of a pixel, interpolated between those of "4x4", and outputs fit differences
            of neighbours too, see :mod:`golddiff.estimators.seamless`; images (C, H, W) alone.
            None: each value its own.

    Raises:
        ArgumentError: an argument outside its range; "seamless" of points.
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
        if not 0 <= as_number(mask_threshold) <= 1:
            raise ArgumentError(f"mask_threshold: got {mask_threshold!r}, expected 0 to 1")
        if weighting not in ("ss", "wss"):
            raise ArgumentError(f"weighting: got {weighting!r}, expected 'ss' or 'wss'")
        if share is not None and share not in SIDES:
            expected = ", ".join(map(repr, SIDES))
            raise ArgumentError(f"share: got {share!r}, expected {expected} or None")
        self.mask_threshold = mask_threshold
        self.share = share
        if share == "seamless":
            if len(self.store.shape) != 3:
                raise ArgumentError("share: 'seamless' is of images (C, H, W), not of points")
            self.joining, self.sums = Seamless(self.store.shape), 3 * self.store.d
        self.weighting = weighting
        self.merges = weighting == "ss"
        self.batch_size = check_count("batch_size", batch_size)
        if len(self.store.shape) == 3 and weighting == "ss" and share is None:
            sides = TILE_SIDES if self.store.shape[0] > 1 else TILE_SIDES_OF_ONE_CHANNEL
            self.tile_sides = tuple(s for s in sides if min(self.store.shape[1:]) > pixels(s))

    def make_ready(self, sigma: float) -> Masks | UnitMasks:
        """The masks of a noise level, which the covariance of all images decides."""
        if self.share is not None:
            return UnitMasks.of_store(self.store, sigma, self.mask_threshold, self.share)
        return Masks(tree_of(self.store, sigma, self.mask_threshold), self.store.shape)

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over some images.

        Every output is a location, or every pixel where values share a softmax.
        """
        masks: Masks | UnitMasks = self.ready(sigma)
        return masks.posterior(self.images, part, x, sigma, self.summands)

    def terms(
        self, x: torch.Tensor, gain: torch.Tensor, sigma: float, part: Support, known: Known
    ) -> Terms:
        """See the base class."""
        values = torch.from_numpy(self.images.values(part.rows).astype(np.float64))
        given = torch.from_numpy(self.summands(values.numpy()))
        masks: Masks | UnitMasks = self.ready(sigma)
        yield from pixel_terms(values, x, gain, masks.summed(), given)

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh | None:
        """As :meth:`weigh`, by torch; not yet where values share a softmax."""
        if self.share is not None:
            return None
        masks: Masks = self.ready(sigma)

        def there() -> torch.Tensor:
            # Not that of derivatives, which stays here: 8 bytes an entry at each noise level.
            mask = torch.from_numpy(dense_mask(masks.tree, self.images.d))
            return mask.to(store.device).float()

        return partial(masked, gain=precision(sigma), mask=store.keep(masks, there))

    def denoise_over(
        self, x: F32, sigma: float, supports: AnySupport | Sequence[AnySupport]
    ) -> F32:
        """Posterior means (b, D) of queries (b, D), or with "wss" averages of batches' means."""
        if self.weighting == "ss":
            return super().denoise_over(x, sigma, supports)
        out = np.empty_like(x)
        for support, queries in grouped(one_each(supports, len(x))):
            out[queries] = self._average(x[queries], sigma, whole(support))
        return out

    def _average(self, x: F32, sigma: float, support: Support) -> F32:
        """The plain average of the posterior means (b, D) over consecutive batches of images."""
        batches = [_to_heaviest(batch) for batch in support.split(self.batch_size)]
        rounds = -(-len(batches) * BYTES_A_VALUE * x.size // int(self.memory_limit))
        total = np.zeros(x.shape)
        for i in range(rounds):
            some = batches[i::rounds]  # from all over the store: parts of it work side by side
            each = [batch for batch in some for _ in x]
            found = self.store.posterior(self, np.tile(x, (len(some), 1)), sigma, each)
            means = self.composed(found.mean(), sigma)
            total += means.reshape(len(some), *x.shape).sum(axis=0)
        average: F32 = (total / len(batches)).astype(np.float32)
        return average

    def tiled_posterior(self, x: F32, sigma: float, support: TiledSupport) -> Posterior:
        """The partial posterior of queries (b, D), each tile's outputs over the tile's images."""
        sums, masks = Sums.empty(*x.shape), self.ready(sigma)
        trees, memory = masks.tiles(support.side), self.memory_limit * TILES_ROWS
        add_tiles(support, self.images, x, sigma, trees, memory, sums)
        return sums.posterior()

    def relevance(self, sigma: float, side: Side | None = None) -> F32:
        """The mean over a tile's outputs of their masks, (T, D); see the base class."""
        masks: Masks | UnitMasks = self.ready(sigma)
        return masks.mean(side)

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,), every output (or pixel) a location; see the base class.

        With "wss" the logits of a batch are less the log of their sum: each batch then weighs the
        same, as in the average of their softmaxes.
        """
        images, tiles, masks = self.images, None, self.ready(sigma)
        logits_of = masks.logits_of(images, x, sigma, pixel)
        if isinstance(support, TiledSupport):
            tiles = tile_of_each(images.shape, support.side)
            tiles = tiles if pixel is None else tiles[outputs_at(images, pixel)]

        def task(part: Support) -> Contribution:
            logits = logits_of(part.rows)
            if isinstance(support, TiledSupport) and tiles is not None:
                weights = [support.of_tile(t, part.rows) for t in range(len(support.tiles))]
                logits += np.stack(weights)[tiles]
            else:
                logits += part.log_importance()
            if self.weighting == "wss":
                logits -= log_sum_exp(logits)[:, None]
            values = values_at(images, part.rows, pixel)
            return Contribution(part.rows, logits, self.summands(values, pixel))

        size = self.batch_size if self.weighting == "wss" else LOGITS_BLOCK
        all_ = Support(support.rows) if isinstance(support, TiledSupport) else whole(support)
        yield from map_ordered(task, all_.split(size))

    def summands(self, values: NDArray[Any], pixel: int | None = None) -> NDArray[Any]:
        """What images (k, D) give to the sums, (k, V), or at one pixel (k, C) their values."""
        return values if self.joining is None or pixel is not None else self.joining.given(values)

    def working_bytes(self, images: int) -> tuple[int, int]:
        """A block of images a thread, as stored and as terms; posteriors in flight and merged.

        Where values share a softmax also the averaged masks, and whole parts instead of blocks.
        """
        d = self.images.d
        if self.share is not None:
            masks = 4 * d * (d // SIDES[self.share] ** 2 + 1)
            part = 4 * (5 * d + self.sums) * min(images, self.part_size)
            return masks + part * torch.get_num_threads(), self.sums * (36 * results_held() + 100)
        block = BLOCK * d * (4 + self.images.flat.itemsize)
        return block * torch.get_num_threads(), d * (36 * results_held() + 100)


def _to_heaviest(batch: Support) -> Support:
    """Log weights less the largest: what a batch of "wss" has of both float32 may not reach."""
    weights = batch.log_weights
    return batch if weights is None else Support(batch.rows, weights - weights.max())


def mask_width(store: ImageStore, sigma: float, mask_threshold: float = MEASURED_AT) -> float:
    """Mean number of input values that an output value's mask holds."""
    return mean_width(tree_of(store, sigma, mask_threshold))
