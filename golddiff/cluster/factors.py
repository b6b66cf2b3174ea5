"""Mean and covariance of all shards: made of sums that the shards send once, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from golddiff.store.build import FACTOR
from golddiff.store.statistics import Factor, Moments

if TYPE_CHECKING:
    from golddiff.cluster.pool import Pool
    from golddiff.cluster.store import ShardedStore


class Factors:
    """The factors of a store in shards, of all images and of each class.

    Args:
        store: where they are kept.
        pool: its shards' processes.

    Attributes:
        made: those at hand, by class; None: of all images.
    """

    def __init__(self, store: ShardedStore, pool: Pool) -> None:
        self._store, self._pool = store, pool
        self.made: dict[int | None, Factor] = {}
        self._mark: tuple[Factor, str] | None = None

    def of(self, label: int | None, progress: Callable[[int], None]) -> Factor:
        """See :meth:`golddiff.cluster.ShardedStore.factor`."""
        if label not in self.made:
            n = self._store.count_of(label)
            kept = self._store.kept(file_name(label))
            if kept is None:
                return self._make(label, None, 0, progress)
            self.made[label] = Factor.of_tensors(kept, n)
        return self.made[label]

    def estimate(self, images: int | None, seed: int, progress: Callable[[int], None]) -> Factor:
        """See :meth:`golddiff.cluster.ShardedStore.estimate_factor`."""
        factor = self._make(None, images, seed, progress)
        self._pool.forget("factor")
        self._pool.gather("forget_factors", ())
        return factor

    def mark(self) -> str:
        """A checksum of the factor of all images."""
        factor = self.of(None, lambda done: None)
        if self._mark is None or self._mark[0] is not factor:
            self._mark = factor, factor.digest()
        return self._mark[1]

    def _make(
        self, label: int | None, images: int | None, seed: int, progress: Callable[[int], None]
    ) -> Factor:
        sums: Moments = self._pool.reduced("moments", (label, images, seed))
        progress(sums.n)
        factor = self.made[label] = sums.factor(self._store.scale, self._store.offset)
        if not self._pool.missing:
            self._store.keep(file_name(label), factor.tensors())
        return factor


def file_name(label: int | None) -> str:
    """Of the factor of a class, or of all images."""
    return FACTOR if label is None else f"factor-{label}.safetensors"
