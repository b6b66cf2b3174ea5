"""The pass over the pixels: what each location sees of some images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.index.fitting import LARGEST, Fitted


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
    """Project images (n, D) and find their clusters."""
    tiles, n, r = fitted.tiles, len(values), fitted.basis.shape[1]
    made = Seen(
        np.empty((tiles, n, r), np.int8),
        np.empty((tiles, n), np.float16),
        np.empty((tiles, n), np.uint16),
        np.empty((tiles, n), np.float16),
    )
    given = torch.from_numpy(values)
    whole = fitted.columns.shape[1] == values.shape[1]
    for t in range(tiles):
        window = given if whole else given[:, torch.from_numpy(fitted.columns[t])]
        window = window - torch.from_numpy(fitted.mean[t])
        z = window @ torch.from_numpy(fitted.basis[t]).T
        scale = torch.from_numpy(fitted.scale[t])
        kept = (z / scale).round_().clamp_(-LARGEST, LARGEST)
        made.coordinates[t] = kept.to(torch.int8).numpy()
        made.error[t] = _not_below((z - kept * scale).norm(dim=1).numpy())
        left = (window.square().sum(1) - z.square().sum(1)).clamp_(min=0).sqrt_().numpy()
        made.rest[t] = _not_below(left)
        centres = torch.from_numpy(fitted.centres[t])
        # |z - c|^2 less |z|^2, which all centres share
        distances = torch.addmm(centres.square().sum(1), z, centres.T, alpha=-2)
        made.cluster[t] = distances.argmin(1).to(torch.int32).numpy()
    return made


def _not_below(numbers: NDArray[np.float32]) -> NDArray[np.float16]:
    """The next float16 above each number that has none of its own."""
    rounded = numbers.astype(np.float16)
    low: NDArray[Any] = rounded.astype(np.float32) < numbers
    rounded[low] = np.nextafter(rounded[low], np.float16(np.inf))
    return rounded
