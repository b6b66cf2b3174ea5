"""Rows of a store that is larger than the device: gathered, brought over and worked on at once.

While the device works on one chunk of a support, a thread gathers the rows of the next into pinned
memory and a stream of its own copies them. Two buffers on either side are all the memory it takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from golddiff.device.support import DeviceSupport
from golddiff.store.images import ImageStore
from golddiff.store.residency import at_hand, parts

Arrange = Callable[[torch.Tensor], torch.Tensor]
Chunk = tuple[torch.Tensor, DeviceSupport]


def streamed(
    store: ImageStore, support: DeviceSupport, images: int, arrange: Arrange
) -> Iterator[Chunk]:
    """The rows of a support in chunks: pixels on the device, and the support within them.

    Args:
        store: whose rows are read.
        support: on the device that they go to.
        images: most images a chunk.
        arrange: what is done to pixels (m, D) on the device, once they are there.
    """
    device = support.rows.device
    size = max(1, images // len(support.rows))
    parts = [support.part(i, size) for i in range(0, len(support), size)]
    side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_gathered, store, parts[0].rows.cpu().numpy(), side is not None)
        for i, part in enumerate(parts):
            pixels, places = waiting.result()
            if i + 1 < len(parts):
                rows = parts[i + 1].rows.cpu().numpy()
                waiting = pool.submit(_gathered, store, rows, side is not None)
            with torch.cuda.stream(side) if side is not None else contextlib.nullcontext():
                there = pixels.to(device, non_blocking=True)
                local = places.to(device, non_blocking=True)
            if side is not None:
                current = torch.cuda.current_stream(device)
                current.wait_stream(side)
                # The allocator must not give the memory away while this stream still reads it.
                there.record_stream(current)
                local.record_stream(current)
            yield arrange(there), DeviceSupport(local, part.log_weights)


def _gathered(store: ImageStore, rows: np.ndarray, pinned: bool) -> tuple[torch.Tensor, ...]:
    """The distinct rows of a part (m, D) as stored, and where in them each place finds its own."""
    distinct, places = np.unique(rows, return_inverse=True)
    dtype = torch.uint8 if store.is_pixels else torch.float32
    pixels = torch.empty((len(distinct), store.d), dtype=dtype, pin_memory=pinned)
    for start, part in parts(distinct):
        with at_hand(store.flat, part) as (flat, at):
            np.take(flat, at, axis=0, out=pixels.numpy()[start : start + len(part)])
    local = torch.from_numpy(places.reshape(rows.shape).astype(np.int64))
    return pixels, local.pin_memory() if pinned else local
