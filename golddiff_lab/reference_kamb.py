"""Kamb & Ganguli's denoisers straight from their equations: float64 loops, for tiny inputs.

The independent truth that the tests hold the fast kernel against; it shares no code with it.
"""

from __future__ import annotations

import numpy as np

from golddiff.system.numbers import F64

Array = F64


def kamb(x: Array, sigma: float, images: Array, patch: int, boundary: str) -> Array:
    """D(x)[c, u] = sum over images i and positions v of softmax(l_iv) * images[i, c, v].

    l_iv = -||patch(x, u) - patch(images[i], v)||^2 / (2 sigma^2), v among :func:`compared` with u.

    Args:
        x: (C, H, W) query.
        sigma: noise level.
        images: (N, C, H, W).
        patch: odd side of a patch.
        boundary: "none", "circular" or "zeros".
    """
    _, height, width = x.shape
    if boundary == "circular":
        patch = min(patch, (min(height, width) - 1) // 2 * 2 + 1)  # no pixel twice in a patch
    elif patch >= min(height, width):
        boundary = "none"
    query = framed_by(patch // 2, x, boundary)
    framed = [framed_by(patch // 2, image, boundary) for image in images]
    out = np.empty_like(x)
    for row in range(height):
        for column in range(width):
            mine = query[:, row : row + patch, column : column + patch]
            logits, values = [], []
            for image, frame in zip(images, framed, strict=True):
                for r in compared(row, height, patch, boundary):
                    for c in compared(column, width, patch, boundary):
                        theirs = frame[:, r : r + patch, c : c + patch]
                        logits.append(-np.sum((mine - theirs) ** 2) / (2 * sigma**2))
                        values.append(image[:, r, c])
            weights = np.exp(np.array(logits) - max(logits))
            out[:, row, column] = weights @ np.array(values) / weights.sum()
    return out


def compared(position: int, length: int, patch: int, boundary: str) -> range:
    """The positions of a training image that one position is compared with, along one axis."""
    reach = patch // 2
    if boundary == "circular":
        return range(length)
    if boundary == "none" or position < reach or position >= length - reach:
        return range(position, position + 1)
    return range(reach, length - reach)


def framed_by(reach: int, image: Array, boundary: str) -> Array:
    """The image with a frame: its far side for "circular", zeros otherwise.

    In the framed image the patch around (row, column) starts at (row, column).
    """
    margins = ((0, 0), (reach, reach), (reach, reach))
    return np.pad(image, margins, mode="wrap" if boundary == "circular" else "constant")
