"""The golden subsets of :mod:`golddiff.supports.paper`, screened on a device."""

from __future__ import annotations

import torch

from golddiff.device.store import DeviceStore
from golddiff.device.support import DeviceSupport
from golddiff.store.proxy import quarter_shape, side_16_shape
from golddiff.support import RandomSample
from golddiff.supports.paper import PaperSchedule, seeds_of


class DevicePaperSchedule:
    """The supports of :class:`golddiff.supports.paper.PaperSchedule`, never leaving the device."""

    def __init__(self, schedule: PaperSchedule, store: DeviceStore, seed: int) -> None:
        self._schedule = schedule
        self._store = store
        self._seed = seed
        self._drawn: dict[tuple[float, int | None], torch.Tensor] = {}

    def support(self, x: torch.Tensor, sigma: float, label: int | None) -> DeviceSupport:
        """The golden support of each query (b, D) in tile order."""
        schedule, store = self._schedule, self._store
        rows = store.rows_of(label)
        m, k = schedule.budgets(sigma, len(rows))
        if k == len(rows):
            return DeviceSupport(rows[None])
        if schedule.variant == "text":
            pool = self._nearest_by_proxy(x, quarter_shape(store.shape), rows, m)
        else:
            keep = schedule.screened(sigma, len(rows))
            drawn = self._draw(sigma, label, m)
            pool = self._nearest_by_proxy(x, side_16_shape(store.shape), drawn, keep)
        return DeviceSupport(self._nearest(x, pool, k))

    def _nearest_by_proxy(
        self, x: torch.Tensor, shape: tuple[int, ...], rows: torch.Tensor, count: int
    ) -> torch.Tensor:
        if count >= len(rows):
            return rows[None]
        store = self._store
        images = store.restored(x).reshape(-1, *store.shape)
        if len(shape) == 3 and images.shape[1:] != shape:
            images = torch.nn.functional.adaptive_avg_pool2d(images, shape[1:])
        queries = images.reshape(len(x), -1)
        among = None if len(rows) == store.store.n else rows
        distances = store.kernels.proxy_distances(store.proxies(shape), queries, among)
        # Drawn rows ascend, so what comes first among equals is the same as on the CPU's path.
        return rows[store.kernels.smallest(distances, count)]

    def _nearest(self, x: torch.Tensor, pool: torch.Tensor, k: int) -> torch.Tensor:
        if k >= pool.shape[1]:
            return pool
        store = self._store
        stored, shift = x / store.scale, store.offset / store.scale
        distances = torch.cat(
            [
                store.kernels.squared_distances(pixels, part.rows, stored, shift)
                for pixels, part in store.chunks(DeviceSupport(pool))
            ],
            dim=1,
        )
        chosen = store.kernels.smallest(distances, k)
        return pool.expand(len(x), -1).gather(1, chosen)

    def _draw(self, sigma: float, label: int | None, m: int) -> torch.Tensor:
        """The images drawn at a noise level: the CPU path's own, brought over once."""
        if (sigma, label) not in self._drawn:
            rows = self._store.store.rows_of(label)
            sample = RandomSample(m, seeds_of(self._seed, sigma, label))
            drawn = rows[sample.places(len(rows))]
            self._drawn[sigma, label] = torch.from_numpy(drawn).to(self._store.device)
        return self._drawn[sigma, label]
