"""Opens the sources that a store can be built from, including other stores."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.sources import BUILTINS
from golddiff.sources import open_source as open_other
from golddiff.sources.source import Rows, Source
from golddiff.sources.source_options import COLUMNS, SPLIT, SourceOptions
from golddiff.store.build import LABELS, PIXELS
from golddiff.store.manifest import FORMAT, NAME, SHARDS, Manifest
from golddiff.system.errors import ArgumentError, SourceError, StoreError
from golddiff.system.residency import DEFAULT_LIMIT, Residency, resident_rows
from golddiff.system.units import shape_text


def open_source(source: Any, **options: Any) -> Source:
    """Like :func:`golddiff.sources.open_source`, but ``source`` may also be a store's folder."""
    if isinstance(source, str | os.PathLike) and source and source not in BUILTINS:
        path = Path(os.path.expanduser(os.fsdecode(source)))
        if (path / SHARDS).is_file():
            Manifest.read(path)  # raises an error that says what opens shards
        if is_store(path):
            return open_store(path, SourceOptions(**options))
    return open_other(source, **options)


def is_store(path: Path) -> bool:
    """Whether a folder holds a golddiff store, even a damaged one."""
    if not (path / NAME).is_file():
        return False
    try:
        body = json.loads((path / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("format") == FORMAT


def open_store(path: Path, options: SourceOptions) -> Rows:
    """The images of a store in row order; of the options, ``limit`` and ``labels`` apply."""
    options.refuse("a store", (*COLUMNS, SPLIT, "seed"))
    try:
        manifest = Manifest.read(path)
        manifest.check_sizes(path)
    except StoreError as error:
        raise SourceError(str(error)) from error
    n, shape, names = manifest.n, manifest.shape, manifest.class_names
    for name in ("size", "channels", "value_range"):
        value = getattr(options.beyond(shape), name)
        if value is not None:
            raise ArgumentError(
                f"{name}={value} does not apply to a store of {shape_text(shape)}, whose images "
                "are not converted; index the images that it was built from"
            )
    flat = Residency(DEFAULT_LIMIT).map(path / PIXELS, manifest.dtype, (n, math.prod(shape)))
    labels = np.fromfile(path / LABELS, np.int64) if manifest.labelled else None

    def read(start: int, stop: int) -> NDArray[Any]:
        with resident_rows(flat, np.arange(start, stop)) as (loaded, local_rows):
            batch: NDArray[Any] = loaded[local_rows]
        return batch.reshape(-1, *shape)

    return Rows(
        read, n, shape, flat.dtype, options, manifest.source, labels,
        None if names is None else tuple(names), manifest.names(path) or (), manifest.is_pixels,
    )  # fmt: skip
