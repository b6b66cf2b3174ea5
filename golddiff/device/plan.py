"""What a device's memory is given to: a plan made from figures alone, before anything is moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from golddiff.device.order import padded_width
from golddiff.errors import ArgumentError
from golddiff.system.units import byte_size

# Of the memory that is free: the rest is for the allocator's rounding and for others.
USED_SHARE = 0.9

# Bytes an image and a query while k of m are chosen: distance, key, two running counts, place.
BYTES_TO_CHOOSE = 44

# Partial states of a query: (max, sum, weighted sum) of the parts that a launch is cut into.
STATES = 64

SMALLEST_WORK = 64 << 20
CHUNK_BYTES = 128 << 20  # of streamed rows: large enough to keep the bus and the kernels busy
CHUNKS_HELD = 4  # the next one, and the last as it came, in tile order, and padded
SMALLEST_CHUNK = 256  # images


@dataclass(frozen=True)
class SetSize:
    """The figures of a training set that a plan needs.

    Attributes:
        n: images.
        d: values an image.
        itemsize: bytes of a stored value, 1 or 4.
        proxy_values: values of the largest proxy that is screened with.
    """

    n: int
    d: int
    itemsize: int
    proxy_values: int

    @property
    def pixel_bytes(self) -> int:
        """All images, rows padded to whole blocks."""
        return self.n * padded_width(self.d) * self.itemsize

    @property
    def proxy_bytes(self) -> int:
        """All proxies in float16, or float32 where the images are floats; and their norms."""
        return self.n * (self.proxy_values * (2 if self.itemsize == 1 else 4) + 4)

    @property
    def mask_bytes(self) -> int:
        """The masks of one noise level where no block is empty, float16."""
        return 2 * padded_width(self.d) ** 2

    @property
    def query_bytes(self) -> int:
        """Working memory of one query: choosing its support, and its partial states."""
        return BYTES_TO_CHOOSE * self.n + 12 * STATES * padded_width(self.d)


@dataclass(frozen=True)
class MemoryPlan:
    """Where things lie, and how much is worked on at once.

    Attributes:
        resident: whether all pixels lie on the device; else they stay on the host, and the rows
            of a support come over in chunks, the next while one is worked on.
        mask_bytes: masks that may be kept, of as many noise levels as fit.
        chunk_images: images a chunk; 0 where pixels are resident.
        queries: queries worked on at once.
        total_bytes: what all this takes at most.
    """

    resident: bool
    mask_bytes: int
    chunk_images: int
    queries: int
    total_bytes: int


def memory_plan(size: SetSize, free: int, batch: int = 64, levels: int = 12) -> MemoryPlan:
    """Share out the memory of a device.

    Proxies come first, then the masks of one noise level and the work of one query, then all
    pixels if they fit; what is left goes to more queries, then to masks of more levels.

    Args:
        size: of the training set.
        free: bytes that are free on the device.
        batch: queries that are wanted at once.
        levels: noise levels whose masks are wanted.

    Raises:
        ArgumentError: not even one query over streamed pixels fits.
    """
    budget = int(USED_SHARE * free)
    needed = size.proxy_bytes + size.mask_bytes + max(size.query_bytes, SMALLEST_WORK)
    row = size.pixel_bytes // size.n
    resident = needed + size.pixel_bytes <= budget
    chunk = (
        0
        if resident
        else min(size.n, CHUNK_BYTES // row, max(0, budget - needed) // (CHUNKS_HELD * row))
    )
    if not resident and chunk < min(size.n, SMALLEST_CHUNK):
        least = needed + CHUNKS_HELD * min(size.n, SMALLEST_CHUNK) * row
        raise ArgumentError(
            f"device: {byte_size(free)} are free, but {size.n:,} images of {size.d:,} values need "
            f"{byte_size(math.ceil(least / USED_SHARE))} even when their pixels stay on the host"
        )
    taken = needed + (size.pixel_bytes if resident else CHUNKS_HELD * chunk * row)
    more = min(batch - 1, (budget - taken) // size.query_bytes)
    taken += more * size.query_bytes
    masks = size.mask_bytes * (1 + min(levels - 1, (budget - taken) // size.mask_bytes))
    taken += masks - size.mask_bytes
    return MemoryPlan(resident, masks, chunk, 1 + more, taken)
