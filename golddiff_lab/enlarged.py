"""Enlarge a training set by augmentation, for experiments on how cost grows with size.

Augmented images look like photographs, but they add no new data: they are crops, flips and colour
changes of the original images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.source import Rows
from golddiff.sources.source_options import SourceOptions
from golddiff.store.build import build
from golddiff.store.images import ImageStore
from golddiff.store.opening import open_store
from golddiff.system.errors import SourceError
from golddiff_lab.augment import NUMBERS, augmented

BLOCK = 256  # images that share a random generator


def enlarge(
    store: ImageStore, n: int, path: Path, seed: int = 0, *, overwrite: bool = False
) -> ImageStore:
    """Build a store of n images from the images of a store and augmented copies of them."""
    source = enlarged_source(open_store(store.path, SourceOptions()), n, seed)
    build(source, path, overwrite=overwrite, progress=True)
    return ImageStore.open(path)


def enlarged_source(originals: Rows, limit: int, seed: int) -> Rows:
    """The images of a store, followed by rounds of augmented copies in the same order.

    With n originals, image i is an augmented copy of image i mod n, with its label; the first n are
    unchanged. Every image depends only on the store and the seed, so a shorter set is a prefix of a
    longer one. ``originals`` are uint8 images of 1 or 3 channels.
    """
    info, count = originals.info, originals.total
    if info.dtype != np.uint8 or len(info.shape) != 3 or info.shape[0] not in (1, 3):
        raise SourceError(
            f"{info.description} holds {info.dtype} values of shape {info.shape}; only uint8 "
            "images of 1 or 3 channels can be enlarged"
        )

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        out = np.empty((stop - start, *info.shape), np.uint8)
        done = 0
        while done < len(out):
            repeat, first = divmod(start + done, count)
            block, skipped = divmod(first, BLOCK)
            last = min(first + len(out) - done, first + BLOCK - skipped, count)
            images = originals.pixels(first, last)
            if repeat:
                uniform = np.random.default_rng([seed, repeat, block]).random((BLOCK, NUMBERS))
                images = augmented(images, uniform[skipped : skipped + len(images)])
            out[done : done + len(images)] = images
            done += len(images)
        return out

    labels = None if originals.labels is None else np.resize(originals.labels, limit)
    about = f"enlarged (crops, flips, colours; seed {seed}): {info.description}"
    return Rows(
        read, limit, info.shape, info.dtype, SourceOptions(), about, labels, info.class_names
    )
