"""What a support can be, and how many images of it an error takes."""

from __future__ import annotations

from dataclasses import dataclass

from golddiff.kernels.mask_tiles import Side


@dataclass(frozen=True)
class Kind:
    """A way to choose images.

    Attributes:
        name: "full", every image; "drawn", at random by weight; "nearest", the nearest;
            "screened", the nearest by blocks of those next by the index.
        side: of the tiles that choose for themselves; None: the whole image chooses.
        by_blocks: whether all pixels are compared, by blocks of them, instead of a few coordinates.
    """

    name: str
    side: Side | None = None
    by_blocks: bool = False

    @property
    def _tile(self) -> str:
        return f"{self.side}x{self.side}" if isinstance(self.side, int) else str(self.side)

    def __str__(self) -> str:
        how = f"{self.name} by blocks" if self.by_blocks else self.name
        return how if self.side is None else f"{how} for each {self._tile}"


FULL = Kind("full")
DRAWN = Kind("drawn")
EIGHTH = 8


def few_of(k: int) -> int:
    """An eighth of k images."""
    return max(1, k // EIGHTH)


def as_compared(kind: Kind) -> Kind:
    """The kind that stands for all for which images are compared alike: both ways of a tile.

    Drawing by the whole image's weight is by itself: fewer coordinates do.
    """
    return kind if kind == DRAWN else Kind("nearest", kind.side, kind.by_blocks)


@dataclass(frozen=True)
class Plan:
    """How the images of one noise level are chosen.

    Attributes:
        kind: the way.
        k: images for each query, or for each tile of it; on average where they are drawn.
        error: the RMSE to the full scan that is expected at most, in units of x0.
        weighed: images that were weighed on average, where k is the most; None: k.
        steady: how much a query's mean may move at most between an eighth of k images and k, as an
            RMSE; of one that moves more, more images are weighed. None: none is looked at.
    """

    kind: Kind
    k: int
    error: float
    weighed: float | None = None
    steady: float | None = None

    @property
    def average(self) -> float:
        """Images for each query, or for each tile of it, on average."""
        return self.k if self.weighed is None else self.weighed

    def __str__(self) -> str:
        most = "" if self.weighed is None else f" (at most {self.k:,})"
        told = f"{self.average:,.0f} images{most}, {self.kind}, expected RMSE {self.error:.4f}"
        if self.steady is None:
            return told
        return f"{told} (more where an eighth of them differs by over {self.steady:.4f})"
