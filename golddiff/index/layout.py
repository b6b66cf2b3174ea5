"""The files of an index, in the folder ``index`` of its store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from golddiff.index.fitting import Fitted
from golddiff.index.views import View

FOLDER = "index"
PARTIAL = "index.part"
MANIFEST = "index.json"
FORMAT = "golddiff-index"
VERSION = 3


@dataclass(frozen=True)
class Column:
    """One of the files that hold a number or a few for each image, location after location.

    Attributes:
        name: of the file.
        dtype: of its numbers.
        shape: (T, N) or (T, N, r).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def line(self) -> int:
        """Bytes for each location."""
        return int(np.prod(self.shape[1:])) * np.dtype(self.dtype).itemsize

    @property
    def each(self) -> int:
        """Bytes for each image of a location."""
        return int(np.prod(self.shape[2:], initial=1)) * np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Of the file."""
        return self.shape[0] * self.line


def columns_of_files(view: View, fitted: Fitted, n: int) -> dict[str, Column]:
    """What is kept of each image, by location and cluster.

    ``rows``: which image; ``coordinates``: as multiples of the scale; ``rest``: the length of what
    the coordinates lack.
    """
    tiles, r = fitted.tiles, fitted.basis.shape[1]
    return {
        "rows": Column(f"{view.name}-rows.bin", "uint32", (tiles, n)),
        "coordinates": Column(f"{view.name}-coordinates.bin", "int8", (tiles, n, r)),
        "rest": Column(f"{view.name}-rest.bin", "float16", (tiles, n)),
    }


def files_of(view: View) -> list[str]:
    """The files that a view needs."""
    columns = (f"{view.name}-{what}.bin" for what in ("rows", "coordinates", "rest"))
    return [tensors_name(view), *columns]


def tensors_name(view: View) -> str:
    """The file of what is small: bases, clusters."""
    return f"{view.name}.safetensors"


Arrays = dict[str, np.ndarray[Any, Any]]
