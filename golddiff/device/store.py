"""A training set on a device: pixels in tile order, proxies, and how much memory they may take."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from golddiff.device.backend import Backend, backend_of
from golddiff.device.order import padded_width, tile_order
from golddiff.device.plan import MemoryPlan, SetSize, memory_plan
from golddiff.device.stream import streamed
from golddiff.device.support import DeviceSupport
from golddiff.kernels.screen_torch import Proxies, pool_unit
from golddiff.store.images import ImageStore
from golddiff.store.proxy import side_16_shape
from golddiff.store.residency import at_hand, parts

UPLOAD_IMAGES = 8192


class DeviceStore:
    """A store's images on a device, or streamed to it where they do not fit.

    Args:
        store: the training set.
        device: where it goes.
        plan: what its memory is given to; default a plan for what is free there.
        kernels: Triton's or plain torch's; default Triton's where they run.

    Attributes:
        pixels: (n, width) stored values in tile order, padded with 0; None where they are streamed.
        places: (D,) int64, where a row of ``pixels`` holds each value of an image.
        largest: no stored value, centred, is larger than this in magnitude.

    Raises:
        ArgumentError: the device's memory is too small.
    """

    def __init__(
        self,
        store: ImageStore,
        device: torch.device,
        plan: MemoryPlan | None = None,
        kernels: Backend | None = None,
    ) -> None:
        self.store = store
        self.device = device
        self.d, self.shape = store.d, store.shape
        self.scale, self.offset = store.scale, store.offset
        self.width = padded_width(store.d)
        self.order = tile_order(store.shape).to(device)
        self.places = torch.argsort(self.order)
        self.kernels = kernels or backend_of(device)
        self.plan = plan or memory_plan(set_size(store), free_bytes(device))
        self.largest = 127.5 if store.is_pixels else _largest(store)
        self.pixels = self._uploaded() if self.plan.resident else None
        self._proxies: dict[tuple[int, ...], Proxies] = {}
        self._rows: dict[int | None, torch.Tensor] = {}

    def arranged(self, x: torch.Tensor) -> torch.Tensor:
        """Images (b, D) in tile order."""
        return x[:, self.order]

    def restored(self, x: torch.Tensor) -> torch.Tensor:
        """Images (b, D) of tile order as they were."""
        return x[:, self.places]

    def chunks(
        self, support: DeviceSupport, multiple: int = 1
    ) -> Iterator[tuple[torch.Tensor, DeviceSupport]]:
        """Pixels (m, width) and the support within them; all at once where they are resident.

        Args:
            support: rows of the store.
            multiple: a chunk holds a multiple of so many places, but for the last.
        """
        if self.pixels is not None:
            yield self.pixels, support
            return
        shared = len(support.rows)
        images = max(multiple, self.plan.chunk_images // shared // multiple * multiple) * shared
        yield from streamed(self.store, support, images, self._padded)

    def rows_of(self, label: int | None) -> torch.Tensor:
        """The rows of a class, or all, (n,) int64 on the device."""
        if label not in self._rows:
            self._rows[label] = torch.from_numpy(self.store.rows_of(label)).to(self.device)
        return self._rows[label]

    def proxies(self, shape: tuple[int, ...]) -> Proxies:
        """Proxies of a shape; brought over once."""
        if shape not in self._proxies:
            # Floats can be of any size: small ones would all be rounded to the same level.
            pixels = self.store.is_pixels
            unit = pool_unit(self.scale, self.shape, shape) if pixels else None
            self._proxies[shape] = Proxies.of(self.store.proxies(shape), unit, self.device)
        return self._proxies[shape]

    def _padded(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(pixels[:, self.order], (0, self.width - self.d))

    def _uploaded(self) -> torch.Tensor:
        flat = self.store.flat
        dtype = torch.uint8 if self.store.is_pixels else torch.float32
        pixels = torch.zeros((self.store.n, self.width), dtype=dtype, device=self.device)
        for start, rows in parts(self.store.rows_of(None), UPLOAD_IMAGES):
            with at_hand(flat, rows) as (held, at):
                part = torch.from_numpy(held[at]).to(self.device)
            pixels[start : start + len(part), : self.d] = part[:, self.order]
        return pixels


def device_store(store: ImageStore, device: torch.device) -> DeviceStore:
    """The store on a device, one for all denoisers over it; freed with the store."""
    kept: dict[torch.device, DeviceStore] = store.__dict__.setdefault("_on_device", {})
    if device not in kept:
        kept[device] = DeviceStore(store, device)
    return kept[device]


def set_size(store: ImageStore) -> SetSize:
    """The figures of a store that a memory plan needs."""
    proxy = math.prod(side_16_shape(store.shape))
    return SetSize(store.n, store.d, store.flat.itemsize, proxy)


def free_bytes(device: torch.device) -> int:
    """What may be planned with: what a GPU has free; 1 GB of the CPU, which is for tests."""
    if device.type == "cuda":
        available: int = torch.cuda.mem_get_info(device)[0]
        return available
    return 10**9


def _largest(store: ImageStore) -> float:
    largest = 0.0
    for _, rows in parts(store.rows_of(None), UPLOAD_IMAGES):
        with at_hand(store.flat, rows) as (held, at):
            largest = max(largest, float(np.abs(held[at]).max()))
    return largest
