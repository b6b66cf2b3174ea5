"""Operations of Kamb's kernel, counted: for choosing, and for comparing times with."""

from __future__ import annotations

import numpy as np

from golddiff.kernels.kamb_cpu import Axis


def offset_operations(vertical: Axis, horizontal: Axis, channels: int) -> int:
    """Squared differences, box sums and softmax of every offset between compared positions.

    For one query and image. For one offset over a x s positions, reach r, C channels:
    3 C (a + 2r)(s + 2r) for the squared differences, the box sums' additions, and a s (4 + 2C) for
    the softmax.
    """
    operations = 0
    heights, widths = _extents(vertical), _extents(horizontal)
    for height, rows in heights.items():
        for width, columns in widths.items():
            lines, line = height + 2 * vertical.reach, width + 2 * horizontal.reach
            each = 3 * channels * lines * line
            each += lines * box_additions(width, 2 * horizontal.reach + 1)
            each += width * box_additions(height, 2 * vertical.reach + 1)
            each += height * width * (4 + 2 * channels)
            operations += rows * columns * each
    return operations


def _extents(axis: Axis) -> dict[int, int]:
    """How many runs there are of each length."""
    lengths, counts = np.unique(axis.runs[:, 1] - axis.runs[:, 0], return_counts=True)
    return {int(n): int(count) for n, count in zip(lengths, counts, strict=True)}


def box_additions(n: int, p: int) -> int:
    """Additions of ``kernels.boxsum.box_sum``: n sums of p consecutive numbers."""
    total, window, rest, used = 0, 1, p, 0
    while True:
        digit, rest = (rest, 0) if rest <= 7 else (rest % 3, rest // 3)
        if digit:
            total += n * (digit - (1 if used == 0 else 0))
        used += digit * window
        if rest == 0:
            return total
        total += 2 * (n + p - 3 * window)
        window *= 3
