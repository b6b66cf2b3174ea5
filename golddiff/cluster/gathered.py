"""Where an output comes from, over shards: the images of one support are brought here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.stored import Stored
from golddiff.store.posteriors import over
from golddiff.support import AnySupport, Support, TiledSupport
from golddiff.system.errors import ArgumentError
from golddiff.system.units import byte_size

MOST_BYTES = 2e9


class Gathered:
    """Some images (k, D) of a training set, in memory."""

    def __init__(self, shape: tuple[int, ...], values: NDArray[np.float32]) -> None:
        self.shape, self.flat, self.stored = shape, values, Stored(values)
        self.n, self.d = values.shape

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Flattened images (k, d)."""
        return self.stored.values(rows)


def gathered_contributions(
    store: Any, estimator: Any, x: NDArray[np.float32], sigma: float, support: AnySupport, top: int,
    pixel: int | None,
) -> Iterator[Any]:  # fmt: skip
    """The terms of one query's posterior (D,), in rows of the store."""
    rows = support.rows
    size = 4 * store.d * len(rows)
    if size > MOST_BYTES:
        raise ArgumentError(
            f"denoiser: its sources are {len(rows):,} images, {byte_size(size)} that would travel; "
            f"expected at most {byte_size(int(MOST_BYTES))}, say by a golden subset"
        )
    estimator.ready(sigma)
    here = over(estimator, Gathered(store.shape, store.values(rows)))
    for part in here.contributions(x, sigma, _moved(support, rows), top, pixel):
        best = part.best
        if best is not None:
            best = replace(best, rows=rows[best.rows])
        yield replace(part, rows=rows[part.rows], best=best)


def _moved(support: AnySupport, rows: NDArray[np.int64]) -> Support | TiledSupport:
    """The support in rows of the images that were brought, ``rows`` of the store."""
    if isinstance(support, TiledSupport):
        return TiledSupport(support.side, [_moved(tile, rows) for tile in support.tiles])  # type: ignore[misc]
    return Support(np.searchsorted(rows, support.rows), support.log_weights)
