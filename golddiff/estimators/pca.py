"""PCA: one logit an output value, over the inputs that the data's covariance ties it to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import DEFAULT_MEMORY_LIMIT, Estimator
from golddiff.errors import ArgumentError
from golddiff.estimators.contributions import Contribution, log_sum_exp, outputs_at, values_at
from golddiff.estimators.kept_masks import tree_of
from golddiff.estimators.shared import SIDES, UnitMasks
from golddiff.estimators.tiles import add_tiles
from golddiff.kernels.gather import BLOCK
from golddiff.kernels.mask_tiles import (
    OfChannel,
    Side,
    cut,
    mean_mask,
    mean_width,
    pixels,
    tile_of_each,
)
from golddiff.kernels.mask_tree import MaskTree
from golddiff.kernels.pca_cpu import Sums, add_images, masked_posterior
from golddiff.kernels.pca_logits import BLOCK as LOGITS_BLOCK
from golddiff.kernels.pca_logits import branches, masked_logits
from golddiff.machine import seconds
from golddiff.posterior import BatchAverage, Float, Posterior
from golddiff.store.images import ImageStore
from golddiff.support import AnySupport, Support, TiledSupport
from golddiff.system.parallel import for_each, in_order, results_held

IMAGES_PER_TASK = 512
TILES_ROWS = 1 / 4  # of the memory limit: rows that are read for all tiles together
DISTINCT = 0.4  # of the images that tiles choose; 0.15 to 0.8 were measured
IMAGES_PER_PASS = 512  # few enough to stay in caches from one tile to the next
SIGMAS_KEPT = 128
TILE_SIDES: tuple[Side, ...] = (8, OfChannel(8), 4)
TILE_SIDES_OF_ONE_CHANNEL: tuple[Side, ...] = (8, 4)
MEASURED_AT = 0.02  # threshold of the masks whose width is Kamb's patch size


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
            (the values of so many pixels). Its logit is the mean of the values' own logits.
            "smooth": of a pixel, interpolated between those of "4x4". None: each value its own.
    """

    probes = 16

    def __init__(
        self,
        store: ImageStore,
        mask_threshold: float = 0.02,
        weighting: str = "ss",
        batch_size: int = 256,
        memory_limit: float = DEFAULT_MEMORY_LIMIT,
        share: str | None = None,
    ) -> None:
        super().__init__(store, memory_limit)
        if not 0 <= mask_threshold <= 1:
            raise ArgumentError(f"mask_threshold: got {mask_threshold}, expected 0 to 1")
        if weighting not in ("ss", "wss"):
            raise ArgumentError(f"weighting: got {weighting!r}, expected 'ss' or 'wss'")
        if not (isinstance(batch_size, int) and batch_size >= 1):
            raise ArgumentError(f"batch_size: got {batch_size!r}, expected an integer of 1 or more")
        if share is not None and share not in SIDES:
            expected = ", ".join(map(repr, SIDES))
            raise ArgumentError(f"share: got {share!r}, expected {expected} or None")
        self.mask_threshold = mask_threshold
        self.share = share
        self.weighting = weighting
        self.batch_size = batch_size
        self._trees: dict[float, MaskTree] = {}
        self._units: dict[float, UnitMasks] = {}
        self._tiles: dict[tuple[float, Side], list[MaskTree]] = {}

    def _mean(self, x: NDArray[np.float32], sigma: float, support: Support) -> NDArray[np.float32]:
        if self.weighting == "ss":
            return super()._mean(x, sigma, support)
        average = BatchAverage.empty(len(x), self.store.d)
        posterior = self._posterior_at(sigma)
        for part in in_order(lambda part: posterior(x, part), support.split(self.batch_size)):
            average.add(part)
        return average.mean().astype(np.float32)

    def posterior(self, x: NDArray[np.float32], sigma: float, support: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a support."""
        posterior = self._posterior_at(sigma)
        total = Posterior.empty(len(x), self.locations(), self.store.d)
        for part in in_order(lambda part: posterior(x, part), support.split(IMAGES_PER_TASK)):
            total = total.merge(part)
        return total

    def denoise_each(
        self, x: NDArray[np.float32], sigma: float, supports: Sequence[AnySupport]
    ) -> NDArray[np.float32]:
        """Posterior means (b, D) of queries (b, D), each over its own support; see the base class.

        One pool of threads works on all queries' images, and on all tiles of a query.
        """
        one = all(support is supports[0] for support in supports)
        if one or self.weighting != "ss" or self.store.shards is not None:
            return super().denoise_each(x, sigma, supports)
        posterior_of = self._posterior_at(sigma)
        posteriors: list[Posterior] = []
        parts: list[tuple[int, Support]] = []
        for i, support in enumerate(supports):
            if isinstance(support, TiledSupport):
                posteriors.append(self.tiled_posterior(x[i : i + 1], sigma, support))
            else:
                posteriors.append(Posterior.empty(1, self.locations(), self.store.d))
                parts += [(i, part) for part in support.split(IMAGES_PER_TASK)]

        def task(place: tuple[int, Support]) -> tuple[int, Posterior]:
            i, part = place
            return i, posterior_of(x[i : i + 1], part)

        for i, posterior in in_order(task, parts):
            posteriors[i].add(posterior)
        return np.concatenate([posterior.mean() for posterior in posteriors]).astype(np.float32)

    def tiled_posterior(
        self, x: NDArray[np.float32], sigma: float, support: TiledSupport
    ) -> Posterior:
        """The partial posterior of queries (b, D), each tile's outputs over the tile's images."""
        sums = Sums.empty(*x.shape)
        trees, memory = self.tiles(sigma, support.side), self.memory_limit * TILES_ROWS
        add_tiles(support, self.store, x, sigma, trees, memory, sums)
        return sums.posterior()

    def tile_means(
        self,
        x: NDArray[np.float32],
        sigma: float,
        side: Side,
        pieces: Sequence[tuple[int, int, Support]],
    ) -> NDArray[np.float32]:
        """Posterior means at some tiles alone; see the base class.

        All pieces go through the same images before the next ones are read.
        """
        if self.store.shards is not None:
            return self.store.shards.tile_means(self, x, sigma, side, pieces)
        sums, tiles = Sums.empty(*x.shape), self.tiles(sigma, side)
        parts = [
            [(i, t, part) for part in support.split(IMAGES_PER_PASS)] for i, t, support in pieces
        ]
        for turn in zip_longest(*parts):
            for_each(
                lambda p: self._add(x[p[0] : p[0] + 1], sigma, p[2], tiles[p[1]], sums.of(p[0])),
                [part for part in turn if part is not None],
            )
        seen = np.maximum(sums.total, np.float32(1e-30))
        return (sums.weighted / seen).astype(np.float32)

    def relevance(self, sigma: float, side: Side | None = None) -> NDArray[np.float32]:
        """The mean over a tile's outputs of their masks, (T, D); see the base class."""
        if self.share is not None:
            return self.unit_masks(sigma).mean()[None]
        trees = [self.tree(sigma)] if side is None else self.tiles(sigma, side)
        return np.stack([mean_mask(tree, self.store.d) for tree in trees])

    def tile_sides(self) -> tuple[Side, ...]:
        """Sides 8 (of each channel too) and 4, for larger images that are weighed with "ss"."""
        if len(self.store.shape) != 3 or self.weighting != "ss" or self.share is not None:
            return ()
        sides = TILE_SIDES if self.store.shape[0] > 1 else TILE_SIDES_OF_ONE_CHANNEL
        return tuple(side for side in sides if min(self.store.shape[1:]) > pixels(side))

    def locations(self) -> int:
        """Every output value, or every pixel where its values share a softmax."""
        points = len(self.store.shape) != 3
        return self.store.d if self.share is None or points else math.prod(self.store.shape[1:])

    def signature(self) -> str:
        """The mask threshold, the weighting, and of how many images the masks are if not all."""
        batches = f", batch_size={self.batch_size}" if self.weighting == "wss" else ""
        images = self.store.factor_images
        masks = "" if images in (None, self.store.n) else f", masks of {images} images"
        shared = "" if self.share is None else f", share={self.share!r}"
        settings = f"{self.weighting}{batches}{masks}{shared}"
        return f"PCA(mask_threshold={self.mask_threshold!r}, {settings})"

    def cost(self, sigma: float, side: Side | None = None) -> float:
        """Predicted seconds: additions of the masks' shared sums, values read, outputs' softmax.

        And rows that are not in their place are read, for all tiles at once.
        """
        if self.share is not None:
            units = self.unit_masks(sigma)
            return super().cost(sigma) + seconds("addition") * units.shares.size
        trees = [self.tree(sigma)] if side is None else self.tiles(sigma, side)
        outputs = seconds("softmax") * self.store.d
        if not self.store.fits:
            rows = 1.0 if side is None else DISTINCT * len(trees)
            outputs += rows * self.store.flat.strides[0] * seconds("byte")
        return outputs + sum(
            seconds("addition") * len(tree.inputs) + seconds("value") * len(tree.columns)
            for tree in trees
        )

    def forget_tiles(self, sigma: float, side: Side | None) -> None:
        """Let go of the trees for tiles of a sigma but for those of one side."""
        for other in self.tile_sides():
            if other != side:
                self._tiles.pop((sigma, other), None)

    def tiles(self, sigma: float, side: Side) -> list[MaskTree]:
        """The masks of one sigma, a tree for each square tile; made once and kept."""
        key = (sigma, side)
        if key not in self._tiles:
            if len(self._tiles) >= SIGMAS_KEPT:
                self._tiles.pop(next(iter(self._tiles)))
            self._tiles[key] = cut(self.tree(sigma), self.store.shape, side)
        return self._tiles[key]

    def contributions(
        self,
        x: NDArray[np.float32],
        sigma: float,
        support: AnySupport,
        top: int = 1,
        pixel: int | None = None,
    ) -> Iterator[Contribution]:
        """The terms of one query (D,), every output (or pixel) a location; see the base class.

        With "wss" the logits of a batch are less the log of their sum: each batch then weighs the
        same, as in the average of their softmaxes.
        """
        logits_of, tiles = self._logits_at(x, sigma, pixel), None
        if isinstance(support, TiledSupport):
            tiles = tile_of_each(self.store.shape, support.side)
            tiles = tiles if pixel is None else tiles[outputs_at(self.store, pixel)]

        def task(part: Support) -> Contribution:
            logits = logits_of(part.rows)
            if isinstance(support, TiledSupport) and tiles is not None:
                weights = [support.of_tile(t, part.rows) for t in range(len(support.tiles))]
                logits += np.stack(weights)[tiles]
            else:
                logits += part.log_importance()
            if self.weighting == "wss":
                logits -= log_sum_exp(logits)[:, None]
            return Contribution(part.rows, logits, values_at(self.store, part.rows, pixel))

        size = self.batch_size if self.weighting == "wss" else LOGITS_BLOCK
        whole = Support(support.rows) if isinstance(support, TiledSupport) else support
        yield from in_order(task, whole.split(size))

    def _logits_at(
        self, x: NDArray[np.float32], sigma: float, pixel: int | None
    ) -> Callable[[NDArray[np.int64]], Float]:
        """The logits (L, k) of one query (D,), or only those of a pixel, over some rows."""
        store = self.store
        if self.share is not None:
            units = self.unit_masks(sigma).of_pixel(pixel)
            return lambda rows: units.float64_logits(store.values(rows), x, sigma)
        tree = self.tree(sigma)
        if pixel is not None:
            tree = branches(tree, outputs_at(store, pixel))
        return lambda rows: masked_logits(
            store.flat, rows, x, sigma, tree, store.scale, store.offset
        )

    def working_bytes(self, images: int) -> tuple[int, int]:
        """A block of images a thread, as stored and as terms; posteriors in flight and merged.

        Where values share a softmax also the averaged masks, and whole parts instead of blocks.
        """
        if self.share is not None:
            masks = 4 * self.store.d * self.locations() // SIDES[self.share] ** 2
            part = 4 * min(images, IMAGES_PER_TASK) * (3 * self.store.d + 3 * self.locations())
            fixed = masks + part * torch.get_num_threads()
            return fixed, self.store.d * (36 * results_held() + 100)
        block = BLOCK * self.store.d * (4 + self.store.flat.itemsize)
        return block * torch.get_num_threads(), self.store.d * (36 * results_held() + 100)

    def tree(self, sigma: float) -> MaskTree:
        """The masks of one sigma as a tree of shared sums; made once, kept here and on disk.

        See :mod:`golddiff.estimators.kept_masks`.
        """
        if sigma not in self._trees:
            self.keep_tree(sigma, tree_of(self.store, sigma, self.mask_threshold))
        return self._trees[sigma]

    def unit_masks(self, sigma: float) -> UnitMasks:
        """The masks of one sigma averaged over what shares a softmax; made once and kept."""
        if sigma not in self._units:
            factor, store = self.store.factor(), self.store
            assert self.share is not None
            thresholds = np.array([self.mask_threshold])
            masks = UnitMasks.of_thresholds(factor, sigma, thresholds, store.shape, self.share)
            self.keep_units(sigma, next(masks))
        return self._units[sigma]

    def keep_units(self, sigma: float, masks: UnitMasks) -> None:
        """Take the averaged masks of a sigma from elsewhere; others make room for them."""
        most = min(SIGMAS_KEPT, max(1, int(self.memory_limit / masks.shares.nbytes)))
        while len(self._units) >= most:
            self._units.pop(next(iter(self._units)))
        self._units[sigma] = masks

    def has_tree(self, sigma: float) -> bool:
        """Whether the masks of a sigma are there already."""
        return sigma in self._trees

    def keep_tree(self, sigma: float, tree: MaskTree) -> None:
        """Take the masks of a sigma from elsewhere: of the same factor and threshold."""
        if len(self._trees) >= SIGMAS_KEPT:
            self._trees.pop(next(iter(self._trees)))
        self._trees[sigma] = tree

    def _posterior_at(self, sigma: float) -> Callable[[NDArray[np.float32], Support], Posterior]:
        """The partial posterior of some queries (b, D) over a support, on the caller's thread."""
        store = self.store
        if self.share is not None:
            units = self.unit_masks(sigma)
            return lambda x, support: units.posterior(store, support, x, sigma)
        tree = self.tree(sigma)
        return lambda x, support: masked_posterior(
            store.flat, support.rows, support.log_importance().astype(np.float32), x, sigma,
            tree, store.scale, store.offset,
        )  # fmt: skip

    def _add(
        self, x: NDArray[np.float32], sigma: float, support: Support, tile: MaskTree, sums: Sums
    ) -> None:
        add_images(
            self.store.flat, support.rows, support.log_importance().astype(np.float32), x, sigma,
            tile, self.store.scale, self.store.offset, sums,
        )  # fmt: skip


def mask_width(store: ImageStore, sigma: float, mask_threshold: float = MEASURED_AT) -> float:
    """Mean number of input values that an output value's mask holds."""
    return mean_width(tree_of(store, sigma, mask_threshold))
