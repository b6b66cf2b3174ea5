"""What an index compares: the whole image, and windows around tiles of outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.mask_tiles import tile_grid


@dataclass(frozen=True)
class View:
    """One way to look at images: a location or many, each with a few coordinates.

    Attributes:
        side: of the tiles of outputs in pixels, a location each; None: one, the whole image.
        window: side in pixels of the square around a tile that its images are compared in: the
            masks of its outputs reach over its edge.
        coordinates: principal components of a window, at most.
        clusters: of a location, at most.
    """

    side: int | None
    window: int | None
    coordinates: int
    clusters: int

    @property
    def name(self) -> str:
        """For files."""
        return "whole" if self.side is None else f"tiles{self.side}"


WHOLE = View(None, None, 128, 4096)
TILES = (View(16, 32, 64, 2048), View(8, 16, 32, 2048), View(4, 8, 16, 1024))


def views_of(shape: tuple[int, ...]) -> list[View]:
    """The views of images of a shape: the whole, and windows smaller than the image."""
    if len(shape) != 3:
        return [WHOLE]
    return [WHOLE, *(v for v in TILES if v.window is not None and min(shape[1:]) > v.window)]


def columns_of(view: View, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The input values that each location's window holds, (T, W), ascending.

    Windows are moved inside the image at its border, so that all have the same size.
    """
    d = int(np.prod(shape))
    if view.side is None or view.window is None:
        return np.arange(d)[None]
    c, h, w = shape
    rows, columns = tile_grid(shape, view.side)
    return np.stack(
        [
            _square(c, h, w, _inside(i, view, h), _inside(j, view, w))
            for i in range(rows)
            for j in range(columns)
        ]
    )


def location_of(shape: tuple[int, ...], side: int, t: int, view: int) -> int:
    """The tile of side ``view`` that tile t of a smaller side lies in."""
    columns, wider = (tile_grid(shape, s)[1] for s in (side, view))
    row, column = divmod(t, columns)
    return row * side // view * wider + column * side // view


def _inside(tile: int, view: View, length: int) -> NDArray[np.int64]:
    """The places along an axis that a tile's window takes."""
    assert view.side is not None
    assert view.window is not None
    window = min(view.window, length)
    first = tile * view.side - (view.window - view.side) // 2
    return np.arange(window) + min(max(first, 0), length - window)


def _square(
    c: int, h: int, w: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.int64]:
    channels = np.arange(c)[:, None, None] * (h * w)
    values: NDArray[np.int64] = (channels + rows[:, None] * w + columns).ravel()
    return values
