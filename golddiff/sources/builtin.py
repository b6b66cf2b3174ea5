"""The built-in training sets: digits, moons and patches, none of which needs a download."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from golddiff.errors import ArgumentError
from golddiff.sources.arrays import ArraySource
from golddiff.sources.base import Source
from golddiff.sources.options import Options
from golddiff.sources.patches import PatchSource

BUILTINS = ("digits", "moons", "patches")

ENLARGED = "enlarged:"  # and another source

_MOONS = 2000


def open_builtin(name: str, options: Options) -> Source:
    """Open one of ``BUILTINS`` by name.

    Raises:
        ArgumentError: an option does not apply, or the labels given do not fit.
    """
    options.refuse_columns(f"the built-in {name}")
    openers: dict[str, Callable[[Options], Source]] = {
        "digits": _digits,
        "moons": _moons,
        "patches": PatchSource,
    }
    return openers[name](options)


def _digits(options: Options) -> ArraySource:
    """1,797 handwritten digits: (1, 8, 8) uint8, ten classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return ArraySource(
        np.round(digits.images * (255 / 16)).astype(np.uint8),
        options,
        labels=digits.target.astype(np.int64),
        class_names=tuple(str(name) for name in digits.target_names),
        description="digits of scikit-learn",
    )


def _moons(options: Options) -> ArraySource:
    """Two interleaved half circles: (2,) float32 points in about [-1, 1], two classes."""
    from sklearn.datasets import make_moons

    if options.seed >= 1 << 32:
        raise ArgumentError(f"seed is {options.seed}; the built-in moons take less than 2**32")
    points, labels = make_moons(
        n_samples=options.limit or _MOONS, noise=0.05, random_state=options.seed
    )
    # The half circles span [-1, 2] x [-0.5, 1]: moved to the middle, both axes scaled alike.
    centred = (points - np.array([0.5, 0.25])) / 1.5
    return ArraySource(
        centred.astype(np.float32),
        options,
        labels=labels.astype(np.int64),
        class_names=("upper", "lower"),
        description="moons of scikit-learn",
    )
