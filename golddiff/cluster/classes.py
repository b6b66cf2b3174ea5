"""How many images of each class lie in which shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from golddiff.cluster.recipes import Place
from golddiff.errors import ArgumentError


@dataclass(frozen=True)
class Classes:
    """The images of each shard, counted.

    Attributes:
        sizes: images of each shard.
        counts: of each shard, images of each class; empty without labels.
        labelled: whether there are labels.
    """

    sizes: Sequence[int]
    counts: Sequence[dict[int, int]]
    labelled: bool

    @property
    def present(self) -> list[int]:
        """The classes that have images, ascending."""
        return sorted(set().union(*self.counts))

    def of(self, label: int | None) -> list[int]:
        """How many images of a class, or of all, each shard has.

        Raises:
            ArgumentError: no labels, or no image of that class.
        """
        if label is None:
            return list(self.sizes)
        if not self.labelled:
            raise ArgumentError(f"labels: got {label}, but the store has no labels")
        there = [counts.get(label, 0) for counts in self.counts]
        if sum(there) == 0:
            shown = ", ".join(map(str, self.present[:12])) + ", ..." * (len(self.present) > 12)
            raise ArgumentError(
                f"labels: got {label}, a class with no images; the store has classes {shown}"
            )
        return there

    def shard_of(self, label: int | None, place: int) -> tuple[int, int]:
        """The shard that holds the ``place``-th image of a class, and which of its it is there.

        Raises:
            ArgumentError: as :meth:`of`; there are fewer images.
        """
        for shard, images in enumerate(self.of(label)):
            if place < images:
                return shard, place
            place -= images
        raise ArgumentError(f"place: class {label} has fewer images")

    def place_of(self, shard: int) -> Place:
        """Where a shard's images lie among all, by class."""
        labels: list[int | None] = [None, *self.present]
        of = {label: self.of(label) for label in labels}
        before = {label: sum(images[:shard]) for label, images in of.items()}
        return Place(
            sum(self.sizes[:shard]), before, {label: sum(images) for label, images in of.items()}
        )
