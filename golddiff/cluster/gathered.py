"""The images of one support brought here: what it takes to say where an output comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from golddiff import describe
from golddiff.denoiser import Estimator
from golddiff.errors import ArgumentError
from golddiff.estimators.contributions import Contribution, Ranking
from golddiff.store.images import ImageStore
from golddiff.store.residency import DEFAULT_LIMIT, Residency
from golddiff.store.statistics import Factor
from golddiff.support import AnySupport, Support, TiledSupport
from golddiff.system.units import byte_size

MOST_BYTES = 2e9


class Gathered:
    """An estimator over the images of one support alone, which lie here.

    Args:
        estimator: the same over them.
        support: all of them, with their weights.
        rows: (k,) their rows in the whole store, ascending.
    """

    def __init__(self, estimator: Estimator, support: Support, rows: NDArray[np.int64]) -> None:
        self._estimator, self._support, self._rows = estimator, support, rows

    @classmethod
    def of(cls, estimator: Estimator, support: AnySupport) -> Gathered:
        """Fetch the images of a support.

        Raises:
            ArgumentError: a support for each tile; more images than should travel.
        """
        store = estimator.store
        if isinstance(support, TiledSupport):
            raise ArgumentError("support: got one for each tile, expected one for the whole image")
        size = 4 * store.d * len(support)
        if size > MOST_BYTES:
            raise ArgumentError(
                f"denoiser: its sources are {len(support):,} images, {byte_size(size)} that would "
                f"travel; expected at most {byte_size(int(MOST_BYTES))}, say by a golden subset"
            )
        rows = support.rows
        here = describe.build(describe.describe(estimator), SomeImages(store, rows))
        assert isinstance(here, Estimator)
        return cls(here, Support(np.arange(len(rows)), support.log_weights), rows)

    def contributions(
        self,
        x: NDArray[np.float32],
        sigma: float,
        support: AnySupport,
        top: int = 1,
        pixel: int | None = None,
    ) -> Iterator[Contribution]:
        """As :meth:`golddiff.denoiser.Estimator.contributions`, rows of the whole store."""
        for part in self._estimator.contributions(x, sigma, self._support, top, pixel):
            best = part.best
            if best is not None:
                best = Ranking(best.scores, self._rows[best.rows], best.positions)
            yield replace(part, rows=self._rows[part.rows], best=best)


class SomeImages(ImageStore):
    """Some images of a store as a store of their own, in memory; mean and covariance are all's.

    Args:
        store: all images.
        rows: (k,) of those wanted, ascending.
    """

    def __init__(self, store: ImageStore, rows: NDArray[np.int64]) -> None:
        self._residency = Residency(DEFAULT_LIMIT)
        self.path, self.manifest = store.path, replace(store.manifest, files={})
        self.n, self.shape, self.d = len(rows), store.shape, store.d
        self.class_names, self.labels = store.class_names, None
        self.scale, self.offset = 1.0, 0.0
        self.flat = store.values(rows)
        self._all_rows = np.arange(len(rows))
        self._whole = store

    def factor(
        self, label: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> Factor:
        """That of all images, or of a class among all."""
        return self._whole.factor(label, progress)

    @property
    def factor_images(self) -> int | None:
        """Of how many images the whole store's is."""
        return self._whole.factor_images

    def factor_mark(self) -> str | None:
        """The whole store's."""
        return self._whole.factor_mark()
