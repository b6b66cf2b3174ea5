"""The built-in training sets: digits, moons and patches, none of which needs a download."""

from __future__ import annotations

import numpy as np

from golddiff.sources.arrays import open_array
from golddiff.sources.patches import open_patches, shipped
from golddiff.sources.source import Rows
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError

_MOONS = 2000


def open_builtin(name: str, options: SourceOptions) -> Rows:
    """Open digits, moons or patches."""
    options.refuse_columns(f"the built-in {name}")
    return {"digits": _digits, "moons": _moons, "patches": open_patches}[name](options)


def _digits(options: SourceOptions) -> Rows:
    """1,797 handwritten digits: (1, 8, 8) uint8, ten classes."""
    table = np.loadtxt(shipped("data", "digits.csv.gz"), delimiter=",")
    pixels = np.round(table[:, :64].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels, names = table[:, 64].astype(np.int64), tuple(map(str, range(10)))
    return open_array(pixels, options, "digits of scikit-learn", labels, names)


def _moons(options: SourceOptions) -> Rows:
    """Two interleaved half circles: (2,) float32 points in about [-1, 1], two classes."""
    from sklearn.datasets import make_moons

    if options.seed >= 1 << 32:
        raise ArgumentError(f"seed is {options.seed}; the built-in moons take less than 2**32")
    points, labels = make_moons(
        n_samples=options.limit or _MOONS, noise=0.05, random_state=options.seed
    )
    # The half circles span [-1, 2] x [-0.5, 1]: moved to the middle, both axes scaled alike.
    centred = ((points - np.array([0.5, 0.25])) / 1.5).astype(np.float32)
    labels = labels.astype(np.int64)
    return open_array(centred, options, "moons of scikit-learn", labels, ("upper", "lower"))
