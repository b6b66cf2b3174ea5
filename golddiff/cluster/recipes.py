"""What driver and shards tell each other: which images compete, by what, and which are chosen.

Everything here is small and says all that is needed to find the choice again: a shard that died
and came back answers the same question with the same answer. Rows are the store's (global) ones
unless a name says local.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.plan import Kind
from golddiff.kernels.mask_tiles import Side
from golddiff.support import AnySupport

UInt64 = NDArray[np.uint64]


@dataclass(frozen=True)
class Draw:
    """``count`` of a class's images drawn at random without replacement, the same in every shard.

    Attributes:
        seed: of the draw, with the noise level's and the class's.
        sigma: noise level.
        count: how many of all shards' images.
    """

    seed: int
    sigma: float
    count: int


@dataclass(frozen=True)
class Candidates:
    """Images that compete: those of a class (None: all), or drawn of them, less some rows."""

    label: int | None = None
    draw: Draw | None = None
    without: tuple[int, ...] = ()


@dataclass(frozen=True)
class ByProxy:
    """Distance of average-pooled images of a shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class ByPixels:
    """Distance of whole images."""


@dataclass(frozen=True)
class ByRank:
    """Approximate distance as each tile of an estimator's outputs sees it.

    Attributes:
        estimator: its description, see :mod:`golddiff.describe`.
        sigma: noise level.
        label: class whose images are ranked.
        kind: of support; its side is the tiles'.
        tiles: how many there are.
    """

    estimator: dict[str, Any]
    sigma: float
    label: int | None
    kind: Kind
    tiles: int


@dataclass(frozen=True, eq=False)
class Stage:
    """Some images with a distance each to every query (and tile): P = queries x tiles problems.

    Attributes:
        name: unlike any other stage's; what a shard computed for it is kept under this name.
        token: of the queries.
        measure: the distance.
        among: the images that compete.
        left_out: of each query a row that does not compete, or None; None: all compete for all.
    """

    name: str
    token: str
    measure: ByProxy | ByPixels | ByRank
    among: Candidates | Below
    left_out: tuple[int | None, ...] | None = None

    @property
    def tiles(self) -> int:
        """Tiles of each query."""
        return self.measure.tiles if isinstance(self.measure, ByRank) else 1

    @property
    def side(self) -> Side | None:
        """Side of the tiles, or None for one support an image."""
        return self.measure.kind.side if isinstance(self.measure, ByRank) else None


@dataclass(frozen=True, eq=False)
class Below:
    """The images of a stage up to a distance: those nearer, and the first few of those at it.

    Attributes:
        stage: the images and their distances.
        keys: (P,) distances as ordered integers, see :mod:`golddiff.cluster.keys`.
        ties: (P,) how many of this shard's images at exactly that distance, in row order.
    """

    stage: Stage
    keys: UInt64
    ties: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Images of a stage drawn by weight, see :mod:`golddiff.adaptive.drawing`.

    Attributes:
        stage: the images and their distances.
        sigma: noise level that weighs them; where points that sampling passes are looked for, not
            the one that ranks them.
        best, exact, tempered: (P,) over all shards: the least distance and the sums of weights.
        c: (P,) such that the p = min(1, c w) sum to the number wanted.
        images: (P,) how many compete in all shards.
        streams: of each query, seeds of the uniform numbers, one an image of the class in row
            order, the one that is left out too.
    """

    stage: Stage
    sigma: float
    best: NDArray[np.float32]
    exact: NDArray[np.float64]
    tempered: NDArray[np.float64]
    c: NDArray[np.float64]
    images: NDArray[np.int64]
    streams: Sequence[tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Listed:
    """Supports given row by row, one a query, in local rows."""

    supports: Sequence[AnySupport]


Chosen = Candidates | Below | Drawn | Listed


@dataclass(frozen=True)
class Place:
    """Where a shard's rows lie in the store.

    Attributes:
        first: global row of its first image.
        first_of: of each class, how many images the shards before have; None: all classes.
        images_of: how many images a class has in all shards; None: all.
    """

    first: int
    first_of: dict[int | None, int]
    images_of: dict[int | None, int]


@dataclass(frozen=True)
class About:
    """What a shard says of itself.

    Attributes:
        n, shape, dtype, class_names, proxy_shape, source: as in its manifest.
        counts: images of each class; empty without labels.
        labelled: whether it has labels.
        digest: checksum of its pixels and labels.
        bytes: of its files.
    """

    n: int
    shape: tuple[int, ...]
    dtype: str
    class_names: list[str] | None
    proxy_shape: tuple[int, ...]
    source: str
    counts: dict[int, int]
    labelled: bool
    digest: str
    bytes: int


class Needs(Exception):  # noqa: N818  not an error: a question back
    """A shard asks for something that it does not have, or no longer since it was started again.

    Attributes:
        what: ("place",), ("queries", token) or ("factor", label).
    """

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.what = what
