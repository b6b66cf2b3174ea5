"""Bootstrap confidence intervals for means over images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from golddiff.system.errors import ArgumentError

RESAMPLES = 4000
LEVEL = 0.95
VALUES_AT_ONCE = 10**6  # values resampled per batch, which bounds the memory


@dataclass(frozen=True)
class Interval:
    """A mean over images with its bootstrap confidence interval."""

    mean: float  # NaN values are ignored; NaN if no others remain
    # low, high: bounds of the percentile interval; both equal the mean for a single value
    low: float
    high: float
    count: int  # number of values averaged

    def bounds(self, spec: str) -> str:
        """The bounds as text, such as '0.12 to 0.34'; one value has no interval."""
        return f"{self.low:{spec}} to {self.high:{spec}}" if self.count > 1 else "no interval"

    def figures(self) -> dict[str, float | int | None]:
        """The fields as a dictionary for JSON, with NaN replaced by None."""
        return {k: None if math.isnan(v) else v for k, v in vars(self).items()}


def bootstrap(values: ArrayLike, seed: int = 0) -> Interval:
    """Mean and 95% percentile bootstrap interval (Efron 1979) of independent values (n,).

    NaN (r2 of a constant reference) is ignored. The seed makes the interval reproducible.
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ArgumentError(f"values: got shape {array.shape}, expected (n,)")
    kept = array[~np.isnan(array)]
    mean = float(kept.mean()) if len(kept) else math.nan
    if len(kept) < 2:
        return Interval(mean, mean, mean, len(kept))
    low, high = stats.bootstrap(
        (kept,), np.mean, confidence_level=LEVEL, n_resamples=RESAMPLES, method="percentile",
        random_state=np.random.default_rng(seed), batch=max(1, VALUES_AT_ONCE // len(kept)),
    ).confidence_interval  # fmt: skip
    return Interval(mean, float(low), float(high), len(kept))
