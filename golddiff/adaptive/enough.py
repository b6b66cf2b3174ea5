"""When errors measured on some probes are small enough, by what was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

NINETEEN_IN_TWENTY = 1.645
ONE_IN_TWENTY = 0.05
LEAST = 1e-18  # of a squared error whose logarithm is taken


class Enough(Protocol):
    """Whether probes' mean squared errors are small enough."""

    def __call__(self, squares: NDArray[np.float64]) -> bool:
        """Whether those of all probes are."""
        ...

    def refuses(self, squares: NDArray[np.float64]) -> bool:
        """Whether some of them say already that they are not; NaN: not known yet."""
        ...


@dataclass(frozen=True)
class NearlyAllWithin:
    """Whether the error is at most ``tol`` in 95 of 100 queries like those of each kind.

    The logarithms of the errors are taken as normal above their median, and their spread as it is
    among the probes there: what lies below, errors that are all but 0, says nothing of the largest.
    No more than one probe in 20 may be above ``tol`` either.

    Args:
        tol: the error.
        kinds: of queries, the probes of each.
    """

    tol: float
    kinds: Sequence[NDArray[np.int64]]

    def __call__(self, squares: NDArray[np.float64], kept: NDArray[np.bool_] | None = None) -> bool:
        """Whether those of all probes are, or of those that are kept."""
        ratios = np.log(np.maximum(squares, LEAST) / self.tol**2)
        of = [kind if kept is None else kind[kept[kind]] for kind in self.kinds]
        return all(self._within(ratios[kind]) for kind in of if len(kind))

    def refuses(self, squares: NDArray[np.float64]) -> bool:
        """Whether more than one in 20 of a kind are above ``tol``, whatever the others are."""
        above = squares > self.tol**2  # NaN is not
        return any(np.count_nonzero(above[k]) > ONE_IN_TWENTY * len(k) for k in self.kinds)

    @staticmethod
    def _within(ratios: NDArray[np.float64]) -> bool:
        median = float(np.median(ratios))
        larger = ratios[ratios > median] - median
        spread = math.sqrt(float(larger @ larger) / max(len(larger) - 1, 1))
        above = float(np.mean(ratios > 0))
        return above <= ONE_IN_TWENTY and median + NINETEEN_IN_TWENTY * spread <= 0


@dataclass(frozen=True)
class BelowAll:
    """Whether errors are below their bounds on average in each kind, as sure as 19 times in 20.

    Pair by pair: probes that are hard for one schedule are hard for another.

    Args:
        allowed: each schedule's bounds on the probes' mean squared errors.
        kinds: of queries, the probes of each.
    """

    allowed: Sequence[NDArray[np.float64]]
    kinds: Sequence[NDArray[np.int64]]

    def __call__(self, squares: NDArray[np.float64]) -> bool:
        """Whether those of all probes are."""
        return all(
            _ratio_at_most(squares[kind], most[kind]) <= 1
            for most in self.allowed
            for kind in self.kinds
        )

    def refuses(self, squares: NDArray[np.float64]) -> bool:
        """Never: one large error among few says nothing yet of the mean."""
        return False


def _ratio_at_most(squares: NDArray[np.float64], most: NDArray[np.float64]) -> float:
    """The ratio of the means, and 1.645 of a ratio estimator's standard errors more.

    Of the differences, the error would be that of the one hardest probe, and refuse no error too.
    """
    bound = float(np.mean(most))
    if bound == 0:
        return 0.0 if float(np.mean(squares)) == 0 else math.inf
    ratio = float(np.mean(squares)) / bound
    error = _spread(squares - ratio * most) / math.sqrt(len(squares)) / bound
    return ratio + NINETEEN_IN_TWENTY * error


def _spread(values: NDArray[np.float64]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
