"""Partial results put together: of queries, and of the batches of ``wss`` that shards cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from golddiff.posterior import Float, Posterior
from golddiff.support import Support


@dataclass
class Pieces:
    """Part of :class:`golddiff.posterior.BatchAverage`, of queries (b, D) over one support.

    Attributes:
        sum_of_means: (b, D) of the batches that are whole.
        batches: how many they are.
        cut: of each batch that is not, by its number, the posterior of what was seen of it.
    """

    sum_of_means: Float
    batches: int = 0
    cut: dict[int, Posterior] = field(default_factory=dict)

    @classmethod
    def empty(cls, b: int, d: int) -> Pieces:
        """Of no images."""
        return cls(np.zeros((b, d)))

    def add(self, number: int, batch: Posterior, whole: bool) -> None:
        """Count one more batch, or one more piece of a batch."""
        if whole:
            self.sum_of_means += batch.mean()
            self.batches += 1
        else:
            self.cut[number] = self.cut[number].merge(batch) if number in self.cut else batch

    def merge(self, other: Pieces) -> Pieces:
        """Both parts together."""
        cut = dict(self.cut)
        for number, piece in other.cut.items():
            cut[number] = cut[number].merge(piece) if number in cut else piece
        return Pieces(self.sum_of_means + other.sum_of_means, self.batches + other.batches, cut)

    def mean(self) -> Float:
        """The average over batches (b, D), once all shards are merged.

        Raises:
            ZeroDivisionError: there are no batches.
        """
        batches = self.batches + len(self.cut)
        if batches == 0:
            raise ZeroDivisionError("the average of no batches is not defined")
        means = [piece.mean() for piece in self.cut.values()]
        total: Float = sum(means, self.sum_of_means)
        return total / batches


def joined(parts: Sequence[Posterior]) -> Posterior:
    """The posteriors of some queries after those of others, (b, ...) each."""
    if len(parts) == 1:
        return parts[0]
    return Posterior(
        np.concatenate([part.log_max for part in parts]),
        np.concatenate([part.total for part in parts]),
        np.concatenate([part.weighted for part in parts]),
    )


def batches_of(support: Support, start: int, size: int) -> Iterator[tuple[int, Support, bool]]:
    """The batches of a support's part: number in the whole, images, and whether it is whole.

    Args:
        support: consecutive images of the whole support.
        start: how many images of the whole come before.
        size: images a batch.
    """
    i, n = 0, len(support)
    while i < n:
        number, used = divmod(start + i, size)
        stop = min(n, i + size - used)
        weights = None if support.log_weights is None else support.log_weights[i:stop]
        yield number, Support(support.rows[i:stop], weights), stop - i == size
        i = stop
