"""Screening proxies: average-pooled images, compared instead of all pixels (paper, Sec. 3.4)."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golddiff.system.errors import StoreError
from golddiff.system.numbers import F32
from golddiff.system.residency import parts
from golddiff.system.units import byte_size

AT_ONCE = 1024  # images that are pooled together


def quarter_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The paper's proxy, Down_{1/4}: each side over four (28 -> 7, 32 -> 8, 64 -> 16).

    Points and vectors (D,) are their own proxy.
    """
    if len(shape) != 3:
        return shape
    c, h, w = shape
    return c, max(1, h // 4), max(1, w // 4)


def side_16_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The released code's proxy: side 16, or the largest divisor below it (28 -> 14, 8 -> 8)."""
    if len(shape) != 3:
        return shape
    c, h, w = shape
    return c, *(max(s for s in range(1, 17) if side % s == 0) for side in (h, w))


def pool(images: F32, shape: tuple[int, ...]) -> F32:
    """Average-pool (b, *image shape) float32 images to proxies (b, d) of the given shape."""
    if len(shape) != 3 or images.shape[1:] == shape:
        return images.reshape(len(images), -1)
    pooled = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(images), shape[1:])
    return pooled.reshape(len(images), -1).numpy()


def pooled(store: Any, shape: tuple[int, ...]) -> F32:
    """A store's average-pooled images (n, d'): in memory.

    Where that would take more than the store's memory limit, in a temporary file.
    """
    size = store.n, math.prod(shape)
    made = (
        pool(store.values(rows).reshape(-1, *store.shape), shape)
        for _, rows in parts(np.arange(store.n), AT_ONCE)
    )
    if 4 * math.prod(size) > store.residency.limit:
        return _in_a_file(store, made, size)
    whole = np.empty(size, np.float32)
    for start, part in zip(range(0, store.n, AT_ONCE), made, strict=True):
        whole[start : start + len(part)] = part
    return whole


def _in_a_file(store: Any, made: Iterable[F32], shape: tuple[int, int]) -> F32:
    """Consecutive rows of an array (n, d'), mapped from a file that goes with the process."""
    folder = store.path if os.access(store.path, os.W_OK) else Path(tempfile.gettempdir())
    size, free = 4 * math.prod(shape), shutil.disk_usage(folder).free
    if size > free:
        raise StoreError(
            f"store: an array of {shape[0]:,} x {shape[1]} numbers takes {byte_size(size)}, "
            f"more than the memory limit of {byte_size(int(store.residency.limit))} and than "
            f"the {byte_size(free)} free in {folder}; give ImageStore.open a larger "
            "memory_limit"
        )
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".golddiff-") as file:
            for part in made:
                file.write(np.ascontiguousarray(part, np.float32).data)
            file.flush()
            # The mapping keeps the data when the name goes.
            rows: F32 = store.residency.map(Path(file.name), "float32", shape)
            return rows
    except OSError as error:
        raise StoreError(f"store: {folder} cannot be written ({error.strerror})") from error
