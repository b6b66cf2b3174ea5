"""Readers of training images: arrays, folders, archives, tables, and a few built-in sets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from golddiff.errors import ArgumentError, SourceError
from golddiff.sources.arrays import ArraySource, is_tensor
from golddiff.sources.base import Batch, Skipped, Source, SourceInfo
from golddiff.sources.builtin import BUILTINS, ENLARGED, open_builtin
from golddiff.sources.hub import is_hub_name, load_from_hub
from golddiff.sources.options import Options
from golddiff.sources.paths import looks_like_path, open_path
from golddiff.sources.tables import open_dataset

__all__ = ["BUILTINS", "Batch", "Skipped", "Source", "SourceInfo", "open_source"]


def open_source(
    source: Any,
    *,
    size: int | None = None,
    channels: int | None = None,
    split: str = "train",
    column: str | None = None,
    label_column: str | None = None,
    skip_bad: bool = False,
    limit: int | None = None,
    seed: int = 0,
    labels: Any = None,
) -> Source:
    """Open a training set of any kind, to be read once from start to end.

    Args:
        source: one of

            - a torch tensor or NumPy array: (N, C, H, W) images, (N, H, W) grey images, (N, D)
              points; uint8 in 0..255 (also (N, H, W, C)), or floats, which keep their values;
            - a ``datasets.Dataset`` or ``DatasetDict`` with a column of images;
            - a path: a folder of images (flat, or one sub folder a class) or of parquet shards, a
              ``.parquet``, ``.zip``, ``.npz`` or ``.npy`` file, MNIST's idx files, CIFAR's pickles,
              a store (in its own order);
            - a built-in: ``"digits"``, ``"moons"`` or ``"patches"`` (``"./digits"`` or a ``Path``
              means the folder);
            - the name of a dataset on the Hugging Face hub;
            - ``"enlarged:"`` and any of the last three: its images, then as many changed copies of
              them as ``limit`` asks for (:mod:`golddiff.sources.enlarged`).
        size: scale the shorter side of each image to this and crop the middle square.
        channels: 1 (grey) or 3 (RGB). None: grey where the first 64 images are, otherwise RGB;
            arrays stay as they are.
        split: the part to read, where a source has parts.
        column: the column, or array of a .npz, that holds the images.
        label_column: the column, or array of a .npz, that holds the labels.
        skip_bad: leave out images that cannot be read, and list them in ``skipped``, instead of
            raising. ``info.count`` is then None.
        limit: read at most this many examples, the first ones (with ``skip_bad``: the readable
            ones among them). The number of points of moons, of images of patches, and of an
            enlarged set.
        seed: chooses the points of moons, the crops of patches, and the changes of an enlarged
            set.
        labels: N whole numbers >= 0, one for each example of the whole source (before ``limit``),
            in place of the source's own labels.

    Returns:
        The source: ``info``, ``skipped`` and ``batches(size)``. Images are uint8 (C, H, W);
        float arrays become float32.

    Raises:
        ArgumentError: an option has a value that is not allowed or does not apply.
        SourceError: the source cannot be read or holds images that do not fit together.
    """
    options = Options(
        size=size,
        channels=channels,
        split=split,
        column=column,
        label_column=label_column,
        skip_bad=skip_bad,
        limit=limit,
        seed=seed,
        labels=labels,
    )
    if isinstance(source, np.ndarray) or is_tensor(source):
        options.refuse_columns("arrays")
        return ArraySource(source, options)
    if _is_dataset(source):
        return open_dataset(source, options)
    if isinstance(source, str):
        return _open_text(source, options)
    if isinstance(source, os.PathLike):
        path = Path(os.path.expanduser(os.fsdecode(source)))
        if not _exists(path):
            raise SourceError(f"{path} does not exist")
        return open_path(path, options)
    raise ArgumentError(
        f"source is a {type(source).__name__}; give a tensor, an array, a datasets.Dataset, a "
        f"path, the name of a hub dataset, or one of {', '.join(BUILTINS)}"
    )


def _open_text(text: str, options: Options) -> Source:
    if text.startswith(ENLARGED):
        from golddiff.sources.enlarged import open_enlarged  # which imports torch

        return open_enlarged(text, options, _open_text)
    if text in BUILTINS:
        return open_builtin(text, options)
    if not text or "\0" in text:
        raise ArgumentError(f"source is {text!r}; give a path or a name")
    path = Path(os.path.expanduser(text))
    if _exists(path):
        return open_path(path, options)
    if looks_like_path(text) or not is_hub_name(text):
        raise SourceError(f"{text} does not exist")
    dataset = load_from_hub(text, options.split)
    return open_dataset(dataset, options, f"dataset {text} ({options.split})")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name too long, or a folder on the way that may not be entered
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


def _is_dataset(source: object) -> bool:
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(source, (datasets.Dataset, datasets.DatasetDict))
