"""Confidence intervals for means over images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from golddiff.system.errors import ArgumentError

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over images with its 95% confidence interval."""

    mean: float  # NaN values are ignored; NaN if no others remain
    # low, high: bounds of the interval; both equal the mean for a single value
    low: float
    high: float
    count: int  # number of values averaged

    def bounds(self, spec: str) -> str:
        """The bounds as text, such as '0.12 to 0.34'; one value has no interval."""
        return f"{self.low:{spec}} to {self.high:{spec}}" if self.count > 1 else "no interval"

    def figures(self) -> dict[str, float | int | None]:
        """The fields as a dictionary for JSON, with NaN replaced by None."""
        return {k: None if math.isnan(v) else v for k, v in vars(self).items()}


def mean_interval(values: ArrayLike) -> Interval:
    """Mean and 95% interval of independent values (n,), by Student's t distribution.

    The interval of a few values is wide, and may exceed the range of what is averaged.
    NaN (r2 of a constant reference) is ignored.
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ArgumentError(f"values: got shape {array.shape}, expected (n,)")
    kept = array[~np.isnan(array)]
    n, mean = len(kept), float(kept.mean()) if len(kept) else math.nan
    if n < 2:
        return Interval(mean, mean, mean, n)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2) * kept.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)
