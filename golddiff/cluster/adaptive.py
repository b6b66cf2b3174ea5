""":class:`golddiff.AdaptiveSchedule` over shards: the same plans, measured through the shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from golddiff import describe
from golddiff.adaptive.blocks import comparing_blocks
from golddiff.adaptive.comparing import ByCoordinates, Comparing
from golddiff.adaptive.coordinates import COMPONENTS
from golddiff.adaptive.plan import DRAWN, FULL, Kind, as_compared
from golddiff.adaptive.schedule import ROUGH, AdaptiveSchedule, FittedSchedule, stream_of
from golddiff.cluster.looking import ShardedLooker
from golddiff.cluster.recipes import ByRank
from golddiff.cluster.store import ShardedStore
from golddiff.denoiser import Estimator
from golddiff.errors import ArgumentError
from golddiff.kernels.mask_tiles import Side, tile_count
from golddiff.store.images import ImageStore
from golddiff.store.proxy import quarter_shape
from golddiff.support import AnySupport


class ShardedSchedule(FittedSchedule):
    """An adaptive schedule over one estimator whose store lies in shards.

    Raises:
        ArgumentError: an index or a proof is asked for.
    """

    def __init__(self, estimator: Estimator, settings: AdaptiveSchedule) -> None:
        if settings.index or settings.guarantee:
            name = "index" if settings.index else "guarantee"
            raise ArgumentError(
                f"{name}: got True, but over a store in shards every image is compared and no "
                "error is proved; that works on a single store (golddiff.ImageStore)"
            )
        super().__init__(estimator, settings)

    @property
    def store(self) -> ShardedStore:
        """The estimator's store."""
        return cast(ShardedStore, self.estimator.store)

    def indexed(self, images: int) -> bool:
        """Never: every image is compared, by the shards at once."""
        return False

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D); a query's does not depend on the others."""
        plan = self.plan(sigma, label)
        if plan.kind == FULL or plan.k >= self.store.count_of(label):
            return [self.store.everything(label)] * len(x)
        looks = cast(ShardedLooker, self.looker(sigma, label, plan.kind)).looks(x)
        if plan.kind.name == "nearest":
            return [look.nearest_of_all(plan.k) for look in looks]
        stream = stream_of(seed, sigma, label)
        return [look.drawn_of_all(plan.k, sigma, stream) for look in looks]

    def forget(self, sigma: float, side: Side | None) -> None:
        """As the base class, in the shards too."""
        super().forget(sigma, side)
        assert self.store.shards is not None
        self.store.shards.pool.tell("forget", describe.describe(self.estimator), sigma, side)

    def comparing(self, kind: Kind) -> Comparing:
        """As that of a single store, without the coordinates, which the shards have."""
        if kind.by_blocks:
            return comparing_blocks(self.store.shape)
        if not self.estimator.tile_sides():
            return ByCoordinates(int(np.prod(quarter_shape(self.store.shape))))
        components = min(COMPONENTS, len(self.store.factor().eigenvalues))
        return ByCoordinates(min(ROUGH, components) if kind == DRAWN else components)

    def _looker(self, sigma: float, label: int | None, kind: Kind) -> ShardedLooker:
        assert self.store.shards is not None
        tiles = 1 if kind.side is None else tile_count(self.store.shape, kind.side)
        measure = ByRank(describe.describe(self.estimator), sigma, label, as_compared(kind), tiles)
        return ShardedLooker(self.store.shards, measure, self.comparing(kind))
