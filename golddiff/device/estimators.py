"""The estimators on a device: posterior means of queries over supports, all in tile order."""

from __future__ import annotations

from typing import Protocol

import torch

from golddiff.denoisers.base import Estimator
from golddiff.denoisers.kamb import Kamb
from golddiff.denoisers.optimal import Optimal
from golddiff.denoisers.pca import PCA
from golddiff.device.masks import MaskCache
from golddiff.device.store import DeviceStore
from golddiff.device.support import DeviceSupport
from golddiff.kernels.mask_blocks import MaskBlocks
from golddiff.kernels.masked_terms import terms
from golddiff.kernels.partial import Partial
from golddiff.kernels.patch_tables import PatchTables
from golddiff.noise import precision

IMAGES_AT_ONCE = 1 << 18
BATCHES_AT_ONCE = 256


class DeviceEstimator(Protocol):
    """What an estimator is on a device."""

    def mean(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> torch.Tensor:
        """Posterior means (b, D) of queries (b, D) float32 over their supports."""
        ...


class DeviceOptimal:
    """:class:`golddiff.denoisers.optimal.Optimal`: distances of whole rows, then weighted sums."""

    def __init__(self, estimator: Optimal, store: DeviceStore) -> None:
        self._store = store

    def mean(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> torch.Tensor:
        """See :class:`DeviceEstimator`."""
        store, kernels = self._store, self._store.kernels
        stored, shift = x / store.scale, store.offset / store.scale
        gain = -min(precision(sigma) * store.scale**2, 1e25)
        done: Partial | None = None
        for pixels, part in store.chunks(support):
            for i in range(0, len(part), IMAGES_AT_ONCE):
                some = part.part(i, IMAGES_AT_ONCE)
                logits = kernels.squared_distances(pixels, some.rows, stored, shift) * gain
                if some.log_weights is not None:
                    logits = logits + some.log_weights
                log_max = logits.amax(dim=1, keepdim=True)
                safe = torch.where(torch.isneginf(log_max), torch.zeros_like(log_max), log_max)
                weights = torch.exp(logits - safe)
                # Below float32's resolution by far; zeros are not read.
                weights = torch.where(weights < 1e-18, torch.zeros_like(weights), weights)
                total = weights.sum(dim=1, keepdim=True)
                sums = kernels.weighted_sums(pixels, some.rows, weights, store.d)
                new = Partial(log_max, total, sums * store.scale + total * store.offset)
                done = new if done is None else done.merge(new)
        assert done is not None  # supports hold at least one image
        return done.mean()


class DevicePCA:
    """:class:`golddiff.denoisers.pca.PCA`: masked distances by blocks, online softmax."""

    def __init__(self, estimator: PCA, store: DeviceStore) -> None:
        self._store = store
        self._masks = MaskCache(store, estimator.mask_threshold)
        self._weighting, self._batch = estimator.weighting, estimator.batch_size

    def mean(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> torch.Tensor:
        """See :class:`DeviceEstimator`."""
        if self._weighting == "wss":
            return self._mean_of_means(x, sigma, support)
        return masked_mean(self._store, x, sigma, support, self._masks.at(sigma))

    def _mean_of_means(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> torch.Tensor:
        """The plain average of the softmax averages of consecutive batches."""
        mask = self._masks.at(sigma)
        total = torch.zeros_like(x)
        batches = torch.zeros((len(x), 1), device=x.device)
        for pixels, part in self._store.chunks(support, self._batch):
            size = self._batch * BATCHES_AT_ONCE
            for i in range(0, len(part), size):
                some = part.part(i, size)
                means = masked_partials(self._store, x, sigma, pixels, some, mask, self._batch)
                # Where supports are unlike in size, a batch may hold no image of a query.
                seen = means.total > 0
                total += torch.where(seen, means.mean(), 0.0).sum(dim=0)
                batches += seen.any(dim=2).sum(dim=0)[:, None]
        return total / batches


def masked_mean(
    store: DeviceStore, x: torch.Tensor, sigma: float, support: DeviceSupport, mask: MaskBlocks
) -> torch.Tensor:
    """Posterior means (b, D) with masked distances for logits."""
    done: Partial | None = None
    for pixels, part in store.chunks(support):
        new = masked_partials(store, x, sigma, pixels, part, mask, None).merged()
        done = new if done is None else done.merge(new)
    assert done is not None  # supports hold at least one image
    return done.mean()


def masked_partials(
    store: DeviceStore,
    x: torch.Tensor,
    sigma: float,
    pixels: torch.Tensor,
    part: DeviceSupport,
    mask: MaskBlocks,
    part_size: int | None,
) -> Partial:
    """Partial posteriors (parts, b, D) of a chunk of a support."""
    queries = terms(x, sigma, store.scale, store.offset, store.largest, None)
    return store.kernels.masked_partials(
        pixels, part.rows, part.log_weights, queries, mask, store.scale, store.offset, part_size
    )


class DeviceKamb:
    """:class:`golddiff.denoisers.kamb.Kamb`: patch distances by blocks of positions.

    Where a position is compared with itself alone ("none"), the patch is a mask: then it is the
    masked posterior with squares for masks.
    """

    def __init__(self, estimator: Kamb, store: DeviceStore) -> None:
        self._store = store
        self._estimator = estimator
        self._tables: dict[tuple[int, str], PatchTables] = {}
        self._squares: dict[int, MaskBlocks] = {}

    def mean(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> torch.Tensor:
        """See :class:`DeviceEstimator`."""
        _, h, w = self._store.shape
        size, rule = self._estimator.patch_size(sigma), self._estimator.boundary
        if rule == "none" or (rule == "zeros" and size >= min(h, w)):  # no interior is left
            return masked_mean(self._store, x, sigma, support, self._square(size))
        return self._over_positions(x, sigma, support, self._tables_of(size, rule))

    def _over_positions(
        self, x: torch.Tensor, sigma: float, support: DeviceSupport, tables: PatchTables
    ) -> torch.Tensor:
        store = self._store
        done: Partial | None = None
        for pixels, part in store.chunks(support):
            new = store.kernels.patch_partials(
                pixels, part.rows, part.log_weights, x, sigma, tables, store.scale, store.offset
            ).merged()
            done = new if done is None else done.merge(new)
        assert done is not None  # supports hold at least one image
        out = torch.empty_like(x)
        out[:, tables.centres.long().flatten()] = done.mean()
        return out

    def _tables_of(self, size: int, rule: str) -> PatchTables:
        if (size, rule) not in self._tables:
            c, h, w = self._store.shape
            self._tables[size, rule] = PatchTables.of(
                (c, h, w), size, rule, self._store.places, self._store.kernels.patch_block
            )
        return self._tables[size, rule]

    def _square(self, size: int) -> MaskBlocks:
        """The mask of all pixels of all channels within size // 2 of a pixel, along each axis."""
        if size not in self._squares:
            _, h, w = self._store.shape
            pixel = self._store.order % (h * w)
            y, x = pixel // w, pixel % w
            near_y = (y[:, None] - y[None]).abs() <= size // 2
            near_x = (x[:, None] - x[None]).abs() <= size // 2
            self._squares[size] = MaskBlocks.best(near_y & near_x)
        return self._squares[size]


_ON_DEVICE = {Optimal: DeviceOptimal, PCA: DevicePCA, Kamb: DeviceKamb}


def device_estimator(estimator: Estimator, store: DeviceStore) -> DeviceEstimator | None:
    """The estimator's counterpart on a device; None for those that have none (subclasses too)."""
    make = _ON_DEVICE.get(type(estimator))
    return None if make is None else make(estimator, store)
