"""What the outputs of a location make of differences between its coordinates.

A location's mean logit is a sum over its inputs, each with the share R_n of the masks that hold
it. In its coordinates z = B (x - mean) that is |A z - a|^2 with A^T A = B R B^T: a small matrix
where the shares differ, and plain squared differences where all inputs have the same share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.members import scaled_distances, weighed_distances

COMPARED = 0.995  # of the variance: directions in which images differ least are left out
EQUAL = 1e-6  # shares that differ by less are the same


@dataclass(frozen=True)
class Metric:
    """How a location compares.

    Attributes:
        turn: A^T (r, s), or its diagonal (r,) where it has nothing else.
        kept_turn: the same, for coordinates as the index keeps them.
        to_goal: (s, w) what a is of a query's inputs.
    """

    turn: NDArray[np.float32]
    kept_turn: NDArray[np.float32]
    to_goal: NDArray[np.float32]

    @property
    def numbers(self) -> int:
        """Multiplications for an image that is compared."""
        return self.turn.size

    def goal(self, y: NDArray[np.float32]) -> NDArray[np.float32]:
        """The goal a of a query's inputs (w,), less the location's mean."""
        goal: NDArray[np.float32] = self.to_goal @ y
        return goal

    def centres(self, z: NDArray[np.float32], goal: NDArray[np.float32]) -> NDArray[np.float32]:
        """|A z - a|^2 of coordinates (n, r)."""
        return _distances(z, self.turn, goal)

    def kept(self, z: NDArray[np.int8], goal: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same of coordinates as the index keeps them."""
        return _distances(z, self.kept_turn, goal)


def _distances(
    z: NDArray[Any], turn: NDArray[np.float32], goal: NDArray[np.float32]
) -> NDArray[np.float32]:
    return (scaled_distances if turn.ndim == 1 else weighed_distances)(z, turn, goal)


def metric_of(
    basis: NDArray[np.float64],
    shares: NDArray[np.float64],
    scale: NDArray[np.float32],
    variance: NDArray[np.float64],
) -> Metric:
    """The metric of a location.

    Args:
        basis: (r, w) B, orthonormal rows.
        shares: (w,) R.
        scale: (r,) a coordinate is scale times what is kept of it.
        variance: (r, r) of the coordinates over all images.
    """
    low, high = float(shares.min()), float(shares.max())
    if high - low <= EQUAL * high:
        root = np.sqrt(np.float32(high))
        turn = np.full(len(basis), root, np.float32)
        return Metric(turn, root * scale, root * basis.astype(np.float32))
    weighed = basis * shares
    turn, to_goal = _directions(weighed @ basis.T, variance, weighed)
    return Metric(turn, scale[:, None] * turn, to_goal)


def _directions(
    gram: NDArray[np.float64], variance: NDArray[np.float64], weighed: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A^T (r, s) with A^T A = gram but for directions in which images hardly differ, and a of y.

    With V the variance and V^1/2 gram V^1/2 = U diag(L) U^T, A^T = V^-1/2 U L^1/2: the s largest L
    are the variances of A z.
    """
    values, vectors = np.linalg.eigh(variance)
    root = np.sqrt(np.maximum(values, 1e-9 * max(float(values[-1]), 1e-30)))
    half, inverse = (vectors * root) @ vectors.T, (vectors / root) @ vectors.T
    spread, axes = np.linalg.eigh(half @ gram @ half)
    spread, axes = np.maximum(spread[::-1], 0.0), axes[:, ::-1]
    total = float(spread.sum())
    s = 1 + int(np.searchsorted(np.cumsum(spread), COMPARED * total)) if total > 0 else 1
    s = min(s, len(spread))
    long = np.sqrt(np.maximum(spread[:s], 1e-30))
    turn = inverse @ axes[:, :s] * long
    # a with A^T a = B R y over the directions kept: a = L^-1/2 U^T V^1/2 B R y.
    to_goal = ((half @ axes[:, :s]) / long).T @ weighed
    return turn.astype(np.float32), to_goal.astype(np.float32)
