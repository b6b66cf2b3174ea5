"""Kamb & Ganguli's denoisers written directly from their equations, for tiny inputs.

These float64 loops are the independent reference in tests of the fast kernel.
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
            query_patch = query[:, row : row + patch, column : column + patch]
            logits, values = [], []
            for image, frame in zip(images, framed, strict=True):
                for r in compared(row, height, patch, boundary):
                    for c in compared(column, width, patch, boundary):
                        image_patch = frame[:, r : r + patch, c : c + patch]
                        logits.append(-np.sum((query_patch - image_patch) ** 2) / (2 * sigma**2))
                        values.append(image[:, r, c])
            weights = np.exp(np.array(logits) - max(logits))
            out[:, row, column] = weights @ np.array(values) / weights.sum()
    return out


def compared(position: int, length: int, patch: int, boundary: str) -> range:
    """Positions in a training image that one position is compared with, along one axis."""
    reach = patch // 2
    if boundary == "circular":
        return range(length)
    if boundary == "none" or position < reach or position >= length - reach:
        return range(position, position + 1)
    return range(reach, length - reach)


def framed_by(reach: int, image: Array, boundary: str) -> Array:
    """Pad the image: by wrapping for "circular", with zeros otherwise.

    In the padded image the patch around (row, column) starts at (row, column).
    """
    margins = ((0, 0), (reach, reach), (reach, reach))
    return np.pad(image, margins, mode="wrap" if boundary == "circular" else "constant")
