"""What comparing one query with every image takes, by what is compared of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from golddiff.machine import seconds


class Comparing(Protocol):
    """A way to compare every image with a query, for each of some tiles."""

    def seconds(self, tiles: int, images: int) -> float:
        """Predicted, of one query."""
        ...

    def counted(self, tiles: int, images: int) -> tuple[int, int]:
        """(arithmetic operations, bytes read) of one query."""
        ...


@dataclass(frozen=True)
class ByCoordinates:
    """By a few coordinates of each image; see :mod:`golddiff.adaptive.ranking`."""

    number: int

    def seconds(self, tiles: int, images: int) -> float:
        """A product with the coordinates, for each tile."""
        return tiles * images * seconds("coordinate") * self.number

    def counted(self, tiles: int, images: int) -> tuple[int, int]:
        """Two operations a coordinate and one more; coordinates and each tile's own term."""
        return tiles * images * (2 * self.number + 1), 4 * images * (self.number + 2 * tiles)


@dataclass(frozen=True)
class ByBlocks:
    """By squared differences, block by block; see :mod:`golddiff.adaptive.blocks`."""

    values: int
    blocks: int

    def seconds(self, tiles: int, images: int) -> float:
        """All values' squares, and a product with the blocks for each tile."""
        product = seconds("product") * tiles * self.blocks
        return images * (seconds("square") * self.values + product)

    def counted(self, tiles: int, images: int) -> tuple[int, int]:
        """Five operations a value, two a block and tile; pixels, and what each tile sees."""
        operations = images * (5 * self.values + 2 * tiles * self.blocks)
        return operations, images * (self.values + 4 * tiles)
