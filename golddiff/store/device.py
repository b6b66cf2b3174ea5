"""A store whose images are weighed and compared on another device, by torch.

It answers two of a training set's questions there, and hands everything else to the store on
disk: what has no torch code (supports that differ by tile, draws by weight) runs on the processor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.kernels.torch_kernels import Partial, lowest, squared_distances
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Metric, Vectors
from golddiff.store.posteriors import whole
from golddiff.support import AnySupport, Support, TiledSupport, grouped, listed, one_each
from golddiff.system.numbers import F32, I64

RESIDENT_SHARE = 0.6  # of the memory that is free: pixels that stay; else they are sent in parts
KEPT_SHARE = 0.2  # of it: masks and proxies
WORK_BYTES = 1 << 28  # of one temporary array
UPLOADED = 8192  # images at a time

Weigh = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], Partial]


class DeviceStore:
    """A store's images on a device of torch's.

    ``free`` bytes may be taken there, by default what is free. ``resident``: whether all pixels lie
    there, by default where they fit; else those that are weighed are sent each time.
    """

    def __init__(
        self,
        store: ImageStore,
        device: torch.device,
        free: float | None = None,
        resident: bool | None = None,
    ) -> None:
        self.store, self.device = store, device
        room = free_bytes(device) if free is None else free
        self._room = KEPT_SHARE * room
        self._kept: OrderedDict[int, tuple[object, torch.Tensor]] = OrderedDict()
        fits = store.n * store.d * store.flat.itemsize <= RESIDENT_SHARE * room
        self.resident = fits if resident is None else resident
        self._pixels = self._uploaded(store.flat) if self.resident else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the store, as a path, and the device: images are sent there anew."""
        return device_store, (self.store, self.device)

    def posterior(
        self, estimator: Any, x: F32, sigma: float, supports: AnySupport | Sequence[AnySupport]
    ) -> Posterior:
        """As :meth:`golddiff.ImageStore.posterior`, in float32."""
        groups = grouped(one_each(supports, len(x)))
        weigh = estimator.on_device(sigma, self)
        if weigh is None or any(isinstance(support, TiledSupport) for support, _ in groups):
            return self.store.posterior(estimator, x, sigma, supports)
        made, order = [], []
        for support, queries in groups:
            assert not isinstance(support, TiledSupport)
            there = torch.from_numpy(x[queries]).to(self.device)
            part = self._weighed(weigh, there, listed(support))
            numbers = (part.log_max, part.total, part.weighted)
            made.append(Posterior(*(array.double().cpu().numpy() for array in numbers)))
            order += queries
        return Posterior.of_queries(made, order)

    def _weighed(self, weigh: Weigh, x: torch.Tensor, support: Support) -> Partial:
        done: Partial | None = None
        for part in support.split(max(1, WORK_BYTES // (4 * self.store.d))):
            weights = part.log_weights
            log_weights = None if weights is None else self._sent(weights.astype(np.float32))
            new = weigh(self.values_there(torch.from_numpy(part.rows)), log_weights, x)
            done = new if done is None else done.merge(new)
        if done is None:
            raise ZeroDivisionError("the posterior of no images is not defined")
        return done

    def nearest(
        self, x: F32, k: int, metric: Metric, within: AnySupport | Sequence[AnySupport]
    ) -> list[AnySupport]:
        """As :meth:`golddiff.ImageStore.nearest`; images nearly as near may change places."""
        if not isinstance(metric, Vectors):
            return self.store.nearest(x, k, metric, within)
        answers: list[AnySupport] = list(one_each(within, len(x)))
        goals = self._sent(metric.of_queries(self.store, x))
        for support, queries in grouped(answers):
            if len(support) <= k:
                continue
            among = whole(support)
            distances = [
                squared_distances(self._vectors(metric, part.rows), goals[queries])
                for part in among.split(max(1, WORK_BYTES // (4 * goals.shape[1])))
            ]
            all_ = torch.cat(distances, dim=1)
            if among.log_weights is not None and metric.nat:
                all_ = all_ - self._sent((metric.nat * among.log_weights).astype(np.float32))
            places = lowest(all_, k).cpu().numpy()
            for query, chosen in zip(queries, places, strict=True):
                answers[query] = among.at(chosen)
        return answers

    def values_there(self, rows: torch.Tensor) -> torch.Tensor:
        """Images (k, D) float32 in [-1, 1] of rows (k,) int64, on the device."""
        if self._pixels is None:
            return self._sent(self.store.values(rows.cpu().numpy()))
        numbers = self._pixels[rows.to(self.device)].float()
        return numbers * self.store.stored.scale + self.store.stored.offset

    def keep(self, of: object, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What was made of an object, on the device; the longest unused makes room for others."""
        if id(of) not in self._kept:
            made = make()
            while self._kept and made.nbytes + self._held() > self._room:
                self._kept.popitem(last=False)
            self._kept[id(of)] = of, made  # the object too: while it lives, its id is its own
        self._kept.move_to_end(id(of))
        return self._kept[id(of)][1]

    def _held(self) -> int:
        return sum(tensor.nbytes for _, tensor in self._kept.values())

    def _vectors(self, metric: Vectors, rows: I64) -> torch.Tensor:
        vectors = metric.of_images(self.store)
        if vectors is None:
            return self.values_there(torch.from_numpy(rows))
        return self.keep(vectors, lambda: self._uploaded(vectors))[self._sent(rows)]

    def _uploaded(self, flat: NDArray[Any]) -> torch.Tensor:
        dtype = torch.from_numpy(np.empty(0, flat.dtype)).dtype
        made = torch.empty(flat.shape, dtype=dtype, device=self.device)
        for i in range(0, len(flat), UPLOADED):
            made[i : i + UPLOADED] = torch.from_numpy(np.array(flat[i : i + UPLOADED]))
        return made

    def _sent(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def device_store(store: Any, device: torch.device) -> Any:
    """The store on a device, one for all denoisers over it; a store in shards is where it is."""
    if not isinstance(store, ImageStore):
        return store
    kept: dict[torch.device, DeviceStore] = store.__dict__.setdefault("_on_device", {})
    if device not in kept:
        kept[device] = DeviceStore(store, device)
    return kept[device]


def free_bytes(device: torch.device) -> float:
    """Memory that a device has free; of one that does not say, 4 GB."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return 4e9
