"""Kamb's posterior image by image, in float64: each image's contribution and the best patches.

The patch distances are the box sums of :mod:`golddiff.kernels.kamb_cpu` over the same positions.
Here they are running sums, as float64 is precise enough for subtraction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.kamb_cpu import Axis
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.support import Support
from golddiff.system.numbers import F32, F64

CUTOFF = 45.0  # nats below an image's best patch: exp(-45) is 3e-20


def patch_contributions(
    stored: Stored,
    part: Support,
    x: F32,
    sigma: float,
    axes: tuple[Axis, Axis],
    shape: tuple[int, ...],
    top: int,
) -> tuple[F64, F64, tuple[NDArray[Any], ...]]:
    """The contributions of images at each pixel of one query (C*H*W,).

    ``axes`` are the positions compared along height and width; ``top`` is the number of (image,
    position) pairs to keep per pixel.

    Returns:
        Logits (H*W, k), the log of each image's sum over positions; each image's mean over
        positions (k, C*H*W); and logit, row and position of the best pairs at each pixel,
        (H*W, top) each. Pixels outside ``axes`` have logit -inf.
    """
    channels, height, width = shape
    k, positions, rows = len(part), height * width, part.rows
    logits = np.full((positions, k), -np.inf)
    values = np.zeros((k, channels * positions))
    scores = np.full((positions, top), -np.inf)
    best = np.full((positions, top), -1)  # places in ``rows``
    best_positions = np.full((positions, top), -1)
    with stored.resident(rows) as (loaded, local_rows):
        _patch_contributions(
            loaded.flat, local_rows, part.log_importance(), x.astype(np.float64), precision(sigma),
            shape, *axes, *stored.scaling, logits, values, scores, best, best_positions,
        )  # fmt: skip
    best_rows = np.where(best >= 0, rows[best], -1)
    return logits, values, (scores, best_rows, best_positions)


@njit(nogil=True, cache=True)
def _patch_contributions(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, x, gain, shape, vertical, horizontal, scale, offset,
    logits, values, scores, best, best_positions,
):  # fmt: skip
    channels, height, width = shape
    positions = height * width
    y = np.empty(channels * positions)
    line = np.empty(width + 2 * horizontal.reach)
    lines = np.empty((height + 2 * vertical.reach, width))
    column = np.empty(width)
    log_max = np.empty(positions)
    total = np.empty(positions)
    for i in range(len(rows)):
        image = flat[rows[i]]
        for d in range(len(y)):
            y[d] = np.float64(np.float32(image[d]) * scale + offset)
        log_max[:] = -np.inf
        total[:] = 0.0
        weighted = values[i]
        for a in range(len(vertical.runs)):
            first, last, v_at = vertical.runs[a]
            for b in range(len(horizontal.runs)):
                left, right, h_at = horizontal.runs[b]
                span = right - left
                for r in range(last - first + 2 * vertical.reach):
                    _line_of_boxes(
                        lines[r], line, x, y, channels, positions,
                        vertical.query[v_at + r] * width, vertical.image[v_at + r] * width,
                        horizontal, h_at, span,
                    )  # fmt: skip
                column[:span] = 0.0
                for r in range(2 * vertical.reach):
                    for j in range(span):
                        column[j] += lines[r, j]
                for r in range(last - first):
                    for j in range(span):
                        column[j] += lines[r + 2 * vertical.reach, j]
                    row_of_image = vertical.image[v_at + vertical.reach + r] * width
                    for j in range(span):
                        u = (first + r) * width + left + j
                        v = row_of_image + horizontal.image[h_at + horizontal.reach + j]
                        logit = -gain * column[j]
                        if logit + log_weights[i] > scores[u, -1]:
                            _rank(
                                scores[u], best[u], best_positions[u],
                                logit + log_weights[i], i, v,
                            )  # fmt: skip
                        if logit < log_max[u] - CUTOFF:
                            continue
                        if logit > log_max[u]:
                            shrink = np.exp(log_max[u] - logit)
                            total[u] *= shrink
                            for c in range(u, len(y), positions):
                                weighted[c] *= shrink
                            log_max[u] = logit
                        weight = np.exp(logit - log_max[u])
                        total[u] += weight
                        for c in range(channels):
                            weighted[c * positions + u] += weight * y[c * positions + v]
                    for j in range(span):
                        column[j] -= lines[r, j]
        for u in range(positions):
            if total[u] > 0:
                logits[u, i] = log_max[u] + np.log(total[u]) + log_weights[i]
                for c in range(u, len(y), positions):
                    weighted[c] /= total[u]


@njit(nogil=True, cache=True)
def _line_of_boxes(  # type: ignore[no-untyped-def]
    out, line, x, y, channels, positions, query_row, image_row, axis, at, span
):  # fmt: skip
    """out[j] = squared distance of one row of the patch at the j-th compared position."""
    if query_row < 0:
        out[:span] = 0.0
        return
    for j in range(span + 2 * axis.reach):
        total = 0.0
        u = axis.query[at + j]
        if u >= 0:
            u += query_row
            v = image_row + axis.image[at + j]
            for _ in range(channels):
                difference = x[u] - y[v]
                total += difference * difference
                u += positions
                v += positions
        line[j] = total
    box = 0.0
    for j in range(2 * axis.reach):
        box += line[j]
    for j in range(span):
        box += line[j + 2 * axis.reach]
        out[j] = box
        box -= line[j]


@njit(nogil=True, cache=True)
def _rank(scores, images, positions, score, image, position):  # type: ignore[no-untyped-def]
    """Insert into a descending list and drop its last entry."""
    at = len(scores) - 1
    while at > 0 and scores[at - 1] < score:
        scores[at] = scores[at - 1]
        images[at] = images[at - 1]
        positions[at] = positions[at - 1]
        at -= 1
    scores[at] = score
    images[at] = image
    positions[at] = position
