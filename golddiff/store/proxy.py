"""Screening proxies: average-pooled images, compared instead of all pixels (paper, Sec. 3.4)."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golddiff.system.errors import StoreError
from golddiff.system.files import check_disk
from golddiff.system.numbers import F32
from golddiff.system.residency import parts

IMAGES_AT_ONCE = 1024  # images pooled in one batch


def quarter_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The paper's proxy shape, Down_{1/4}: each side divided by four (28 -> 7, 32 -> 8, 64 -> 16).

    Points (D,) are their own proxy.
    """
    if len(shape) != 3:
        return shape
    c, h, w = shape
    return c, max(1, h // 4), max(1, w // 4)


def side_16_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The released code's proxy shape: side 16 or the largest divisor below (28 -> 14, 8 -> 8)."""
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
    """A store's average-pooled images (n, d'), in memory or mapped from a temporary file.

    They go to a file if they exceed the store's memory limit.
    """
    size = store.n, math.prod(shape)
    batches = (
        pool(store.values(rows).reshape(-1, *store.shape), shape)
        for _, rows in parts(np.arange(store.n), IMAGES_AT_ONCE)
    )
    if 4 * math.prod(size) > store.residency.limit:
        return _mapped(store, batches, size)
    array = np.empty(size, np.float32)
    for start, batch in zip(range(0, store.n, IMAGES_AT_ONCE), batches, strict=True):
        array[start : start + len(batch)] = batch
    return array


def _mapped(store: Any, batches: Iterable[F32], shape: tuple[int, int]) -> F32:
    """An array (n, d') of consecutive batches, mapped from an unlinked temporary file."""
    folder = store.path if os.access(store.path, os.W_OK) else Path(tempfile.gettempdir())
    check_disk("store: pooled images", folder, 4 * math.prod(shape))
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".golddiff-") as file:
            for batch in batches:
                file.write(np.ascontiguousarray(batch, np.float32).data)
            file.flush()
            # The mapping keeps the data after the file is unlinked.
            return store.residency.map(Path(file.name), "float32", shape)
    except OSError as error:
        raise StoreError(f"store: {folder} cannot be written ({error.strerror})") from error
