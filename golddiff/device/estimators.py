"""The estimators on a device: posterior means of queries over supports, all in tile order."""

from __future__ import annotations

from typing import Protocol

import torch

from golddiff.denoiser import Estimator
from golddiff.device.masks import MaskCache
from golddiff.device.store import DeviceStore
from golddiff.device.support import DeviceSupport
from golddiff.estimators.kamb import Kamb
from golddiff.estimators.optimal import Optimal
from golddiff.estimators.pca import PCA
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

    def posterior(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> Partial:
        """The partial posterior of such queries, in the store's own order of values and pixels."""
        ...


class DeviceOptimal:
    """:class:`golddiff.estimators.optimal.Optimal`: distances of whole rows, then weighted sums."""

    def __init__(self, estimator: Optimal, store: DeviceStore) -> None:
        self._store = store

    def mean(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> torch.Tensor:
        """See :class:`DeviceEstimator`."""
        return self._partial(x, sigma, support).mean()

    def posterior(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> Partial:
        """See :class:`DeviceEstimator`."""
        part = self._partial(x, sigma, support)
        return Partial(part.log_max, part.total, self._store.restored(part.weighted))

    def _partial(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> Partial:
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
        return done


class DevicePCA:
    """:class:`golddiff.estimators.pca.PCA`: masked distances by blocks, online softmax."""

    def __init__(self, estimator: PCA, store: DeviceStore) -> None:
        self._store = store
        self._masks = MaskCache(store, estimator.mask_threshold)
        self._weighting, self._batch = estimator.weighting, estimator.batch_size

    def mean(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> torch.Tensor:
        """See :class:`DeviceEstimator`."""
        if self._weighting == "wss":
            return self._mean_of_means(x, sigma, support)
        return masked_mean(self._store, x, sigma, support, self._masks.at(sigma))

    def posterior(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> Partial:
        """See :class:`DeviceEstimator`; of "ss"."""
        part = masked_whole(self._store, x, sigma, support, self._masks.at(sigma))
        return _restored(self._store, part)

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
    return masked_whole(store, x, sigma, support, mask).mean()


def _restored(store: DeviceStore, part: Partial) -> Partial:
    """A partial posterior with a location a value, in the store's own order."""
    return Partial(*(store.restored(a) for a in (part.log_max, part.total, part.weighted)))


def masked_whole(
    store: DeviceStore, x: torch.Tensor, sigma: float, support: DeviceSupport, mask: MaskBlocks
) -> Partial:
    """The partial posterior (b, D) with masked distances for logits, in tile order."""
    done: Partial | None = None
    for pixels, part in store.chunks(support):
        new = masked_partials(store, x, sigma, pixels, part, mask, None).merged()
        done = new if done is None else done.merge(new)
    assert done is not None  # supports hold at least one image
    return done


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
    """:class:`golddiff.estimators.kamb.Kamb`: patch distances by blocks of positions.

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
        tables = self._tables_of(size, rule)
        out = torch.empty_like(x)
        means = self._over_positions(x, sigma, support, tables).mean()
        out[:, tables.centres.long().flatten()] = means
        return out

    def posterior(self, x: torch.Tensor, sigma: float, support: DeviceSupport) -> Partial:
        """See :class:`DeviceEstimator`; a location is a pixel."""
        store = self._store
        _, h, w = store.shape
        size, rule = self._estimator.patch_size(sigma), self._estimator.boundary
        if rule == "none" or (rule == "zeros" and size >= min(h, w)):
            part = _restored(store, masked_whole(store, x, sigma, support, self._square(size)))
            # The same mask for all channels of a pixel, so the same logits.
            return Partial(part.log_max[:, : h * w], part.total[:, : h * w], part.weighted)
        tables = self._tables_of(size, rule)
        part = self._over_positions(x, sigma, support, tables)
        centres = tables.centres.long()
        pixels = store.order[centres[0]] % (h * w)
        weighted, ordered = torch.empty_like(x), torch.empty_like(part.total)
        weighted[:, centres.flatten()] = part.weighted
        log_max = ordered.index_copy(1, pixels, part.log_max)
        total = ordered.index_copy(1, pixels, part.total)
        return Partial(log_max, total, store.restored(weighted))

    def _over_positions(
        self, x: torch.Tensor, sigma: float, support: DeviceSupport, tables: PatchTables
    ) -> Partial:
        store = self._store
        done: Partial | None = None
        for pixels, part in store.chunks(support):
            new = store.kernels.patch_partials(
                pixels, part.rows, part.log_weights, x, sigma, tables, store.scale, store.offset
            ).merged()
            done = new if done is None else done.merge(new)
        assert done is not None  # supports hold at least one image
        return done

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
    if isinstance(estimator, PCA) and estimator.share is not None:
        return None
    return None if make is None else make(estimator, store)
