"""The least that a step of GoldDiff(PCA) can take: its bytes and operations over the ceilings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from golddiff.store.proxy import quarter_shape, side_16_shape
from golddiff_lab.gpu.measure import Ceilings


@dataclass(frozen=True)
class Work:
    """What one step of a batch reads and computes, at least.

    Attributes:
        bytes: every array once a query that has its own rows of it, once a batch where shared.
        operations: of the matrix products: two a multiply-add.
    """

    bytes: float
    operations: float

    def floor(self, ceilings: Ceilings) -> float:
        """Seconds: the larger of the two, as if the other were free."""
        return max(self.bytes / ceilings.copy, self.operations / ceilings.matrix)


def step_work(
    shape: tuple[int, ...],
    n: int,
    m: int,
    k: int,
    k_max: int,
    variant: str,
    batch: int,
    held: int,
) -> Work:
    """Count a step.

    Args:
        shape: of an image, 8-bit.
        n: images (of the class).
        m: candidates that the schedule screens.
        k: golden subset.
        k_max: what "released" keeps after its proxy.
        variant: of the schedule, "text" or "released".
        batch: queries.
        held: entries of the masks: multiply-adds an image and a query.
    """
    d = math.prod(shape)
    if variant == "text":
        proxy, screened, kept = math.prod(quarter_shape(shape)), n, m
    else:
        proxy, screened, kept = math.prod(side_16_shape(shape)), m, max(k, k_max)
    screening = screened > kept
    refining = kept > k
    read = held  # the masks, a byte an entry, once a batch
    read += screened * (4 * proxy) if screening else 0
    read += batch * kept * d if refining else 0
    read += batch * k * d
    operations = 2 * held * k * batch
    operations += 3 * screened * proxy * batch if screening else 0
    return Work(read, operations)
