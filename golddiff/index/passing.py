"""The pass over the pixels: what each location sees of some images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.index.fitting import Fitted, rounded
from golddiff.kernels.nearest_centre import nearest_centre
from golddiff.kernels.products import padded
from golddiff.system.parallel import for_each


@dataclass(frozen=True)
class Seen:
    """Some images (n) as a view's locations see them.

    Attributes:
        coordinates: (T, n, r) int8.
        rest: (T, n) float16 lengths of what the coordinates lack, rounded up.
        cluster: (T, n) uint16.
        error: (T, n) float16 distances between coordinates and what is kept of them, rounded up.
    """

    coordinates: NDArray[np.int8]
    rest: NDArray[np.float16]
    cluster: NDArray[np.uint16]
    error: NDArray[np.float16]


def seen(fitted: Fitted, values: NDArray[np.float32]) -> Seen:
    """Project images and find their clusters, locations side by side.

    Args:
        fitted: a view.
        values: (D, n) contiguous: an input of all images together, so that a window is whole runs.
    """
    tiles, n, r = fitted.tiles, values.shape[1], fitted.basis.shape[1]
    made = Seen(
        np.empty((tiles, n, r), np.int8),
        np.empty((tiles, n), np.float16),
        np.empty((tiles, n), np.uint16),
        np.empty((tiles, n), np.float16),
    )

    def project(t: int) -> None:
        window = values[fitted.columns[t]]
        window -= fitted.mean[t][:, None]
        z = np.zeros((r, padded(n)), np.float32)
        z[:, :n] = fitted.basis[t] @ window
        made.cluster[t] = nearest_centre(z, fitted.centres[t])[:n]
        z = z[:, :n]
        scale = fitted.scale[t][:, None]
        kept = rounded(z, fitted.scale[t])
        made.coordinates[t] = kept.T
        made.error[t] = _not_below(np.linalg.norm(z - kept * scale, axis=0))
        left = np.einsum("wn,wn->n", window, window) - np.einsum("rn,rn->n", z, z)
        made.rest[t] = _not_below(np.sqrt(np.maximum(left, 0)))

    for_each(project, range(tiles))
    return made


def _not_below(numbers: NDArray[np.float32]) -> NDArray[np.float16]:
    """The next float16 above each number that has none of its own."""
    rounded = numbers.astype(np.float16)
    low: NDArray[Any] = rounded.astype(np.float32) < numbers
    rounded[low] = np.nextafter(rounded[low], np.float16(np.inf))
    return rounded
