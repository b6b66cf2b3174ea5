"""A store whose posteriors and nearest-image searches run on another device, with torch.

Everything else, such as tiled supports and draws by weight, goes to the store on disk and the CPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.kernels.torch_kernels import Sums, lowest, squared_distances
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Metric, Vectors
from golddiff.store.posteriors import as_support
from golddiff.support import AnySupport, Support, Supports, TiledSupport, grouped, per_query
from golddiff.system.arguments import check_device
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, I64
from golddiff.system.residency import parts, resident_rows

RESIDENT_SHARE = 0.6  # share of free memory for the pixels; larger sets are uploaded in parts
CACHE_SHARE = 0.2  # share of free memory for cached masks and proxies
WORK_BYTES = 1 << 28  # size limit of one temporary array
UPLOAD_BATCH = 8192  # images uploaded in one batch

Device = torch.device | str | int
Weigh = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], Sums]


class DeviceStore:
    """A store's images on a torch device.

    ``free`` is the device memory to use in bytes, by default all that a CUDA device has free, or 4
    GB. If all pixels fit, they stay on the device; otherwise every call uploads its images.
    """

    def __init__(self, store: ImageStore, device: torch.device, free: float | None = None) -> None:
        self.store, self.device = store, device
        if free is None:
            free = _free_bytes(device) if device.type == "cuda" else 4e9
        self._cache_limit = CACHE_SHARE * free
        self._cache: OrderedDict[int, tuple[object, torch.Tensor]] = OrderedDict()
        self.resident = store.flat.nbytes <= RESIDENT_SHARE * free
        self._pixels = self._uploaded(store.flat) if self.resident else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store's path and the device; unpickling uploads the images again."""
        return DeviceStore, (self.store, self.device)

    def posterior(self, estimator: Any, x: F32, sigma: float, supports: Supports) -> Posterior:
        """Like :meth:`golddiff.ImageStore.posterior`, in float32."""
        groups = grouped(per_query(supports, len(x)))
        # Passes in float64, and subclasses that override ``weigh`` alone, have no torch code.
        own = next(
            vars(k) for k in type(estimator).__mro__ if {"weigh", "on_device"} & vars(k).keys()
        )
        weigh = estimator.on_device(sigma, self) if "on_device" in own else None
        if weigh is None or any(isinstance(support, TiledSupport) for support, _ in groups):
            return self.store.posterior(estimator, x, sigma, supports)
        with torch.autocast(self.device.type, enabled=False):  # whose products have few digits
            posteriors = [
                self._weighed(weigh, self.sent(x[queries]), as_support(s)) for s, queries in groups
            ]
        return Posterior.of_queries(posteriors, [q for _, queries in groups for q in queries])

    def _weighed(self, weigh: Weigh, x: torch.Tensor, support: Support) -> Posterior:
        total: Posterior | None = None
        for part in support.split(max(1, WORK_BYTES // (4 * self.store.d))):
            weights = part.log_weights
            log_weights = None if weights is None else self.sent(weights.astype(np.float32))
            sums = weigh(self.values_on_device(torch.from_numpy(part.rows)), log_weights, x)
            posterior = Posterior(*(tensor.cpu().double().numpy() for tensor in sums))
            total = posterior if total is None else total.merge(posterior)
        if total is None:
            raise ArgumentError("support: got no images, expected at least one")
        return total

    def nearest(self, x: F32, k: int, metric: Metric, within: Supports) -> list[AnySupport]:
        """Like :meth:`golddiff.ImageStore.nearest`; float32 may reorder nearly equal distances."""
        if not isinstance(metric, Vectors):
            return self.store.nearest(x, k, metric, within)
        supports: list[AnySupport] = list(per_query(within, len(x)))
        targets = self.sent(metric.of_queries(self.store, x))
        for support, queries in grouped(supports):
            if len(support) <= k:
                continue
            candidates = as_support(support)
            parts = candidates.split(max(1, WORK_BYTES // (4 * targets.shape[1])))
            vectors = (self._vectors(metric, part.rows) for part in parts)
            distances = torch.cat([squared_distances(v, targets[queries]) for v in vectors], dim=1)
            if candidates.log_weights is not None and metric.distance_per_nat:
                bonus = (metric.distance_per_nat * candidates.log_weights).astype(np.float32)
                distances = distances - self.sent(bonus)
            positions = lowest(distances, k).cpu().numpy()
            for query, chosen in zip(queries, positions, strict=True):
                supports[query] = candidates.at(chosen)
        return supports

    def values_on_device(self, rows: torch.Tensor) -> torch.Tensor:
        """The images (k, D) at ``rows`` (k,) int64, as float32 in [-1, 1] on the device."""
        if self._pixels is None:
            return self.sent(self.store.values(rows.cpu().numpy()))
        stored = self._pixels[rows.to(self.device)].float()
        return stored * self.store.stored.scale + self.store.stored.offset

    def cached(self, of: object, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The tensor that ``make`` computes for the object ``of``, from an LRU cache."""
        if id(of) not in self._cache:
            tensor = make()
            room = self._cache_limit - tensor.nbytes
            while self._cache and sum(t.nbytes for _, t in self._cache.values()) > room:
                self._cache.popitem(last=False)
            self._cache[id(of)] = of, tensor  # holding the object keeps its id unique
        self._cache.move_to_end(id(of))
        return self._cache[id(of)][1]

    def _vectors(self, metric: Vectors, rows: I64) -> torch.Tensor:
        vectors = metric.of_images(self.store)
        if vectors is None:
            return self.values_on_device(torch.from_numpy(rows))
        return self.cached(vectors, lambda: self._uploaded(vectors))[self.sent(rows)]

    def _uploaded(self, flat: NDArray[Any]) -> torch.Tensor:
        dtype = torch.from_numpy(np.empty(0, flat.dtype)).dtype
        tensor = torch.empty(flat.shape, dtype=dtype, device=self.device)
        for i, rows in parts(np.arange(len(flat)), UPLOAD_BATCH):
            with resident_rows(flat, rows) as (loaded, local_rows):
                tensor[i : i + len(rows)] = torch.from_numpy(loaded[local_rows])
        return tensor

    def sent(self, array: NDArray[Any]) -> torch.Tensor:
        """A copy of the array on the device."""
        return torch.from_numpy(array).to(self.device)


def device_store(store: Any, device: Device) -> Any:
    """The store on a device, shared by its denoisers; a store in shards is returned unchanged.

    On the CPU that is the store on disk, whose compiled loops are many times as fast as torch.

    Raises:
        ArgumentError: no such device, or one that holds no numbers (meta).
    """
    place = check_device(device)
    if place.type == "meta":
        raise ArgumentError("device: got 'meta', expected a device that holds numbers")
    if isinstance(store, DeviceStore) and store.device != place:
        store = store.store
    if not isinstance(store, ImageStore):
        return store
    copies: dict[torch.device, DeviceStore] = store.__dict__.setdefault("_on_device", {})
    if place.type == "cpu":
        for other in copies.keys() - {place}:  # freed once no denoiser is there
            del copies[other]
    elif place not in copies:
        copies[place] = DeviceStore(store, place)
    return copies.get(place, store)


def _free_bytes(device: torch.device) -> int:
    """The free memory of a CUDA device, with what torch keeps for later tensors."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def on_disk(store: Any) -> Any:
    """The store on disk of a store on a device; any other store unchanged."""
    return store.store if isinstance(store, DeviceStore) else store
