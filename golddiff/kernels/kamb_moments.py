"""Second moments of Kamb's posterior, whose weights a first pass has normalised.

As in :mod:`golddiff.kernels.pca_moments`, with one weight w for each pixel u of the output, image i
and compared position. The mask is the patch around u: its squared differences are box sums, and so
are the sums over outputs, c = w sum_channels cotangent (value - mean) of all patches that contain
an input.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from golddiff.kernels.boxsum import box_sum
from golddiff.kernels.kamb_cpu import Axis, load_images, patch_distances
from golddiff.kernels.lanes import (
    LANES,
    NEGLIGIBLE,
    any_above,
    empty_numbers,
    exp,
    load,
    spread,
    store,
    sum_of,
)
from golddiff.kernels.roots import roots
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.support import Support
from golddiff.system.numbers import F32, F64


@njit(nogil=True, cache=True)
def _patch_moments(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, first_root, second_root, gain, shape, vertical, horizontal,
    scale, offset, mean, log_max, share, cotangent, out,
):  # fmt: skip
    channels, height, width = shape
    v_reach, h_reach = vertical.reach, horizontal.reach
    positions = height * width
    d = channels * positions
    y = empty_numbers(d * LANES)
    prior = empty_numbers(LANES)
    line = empty_numbers((width + 4 * h_reach) * LANES)
    lines = empty_numbers((height + 4 * v_reach) * (width + 2 * h_reach) * LANES)
    distances = empty_numbers((height + 2 * v_reach) * (width + 2 * h_reach) * LANES)
    sums = empty_numbers(out.shape[1] * LANES)
    for block in range(0, len(rows), LANES):
        load_images(y, prior, flat, rows, log_weights, scale, offset, block)
        for q in range(len(log_max)):
            root, other = first_root[q], second_root[q]
            sums[:] = np.float32(0.0)
            for i in range(len(vertical.runs)):
                top, bottom, v_at = vertical.runs[i]
                for j in range(len(horizontal.runs)):
                    left, right, h_at = horizontal.runs[j]
                    span, count = right - left, bottom - top
                    patch_distances(
                        distances, lines, line, root, other, y, shape,
                        vertical, v_at, count, horizontal, h_at, span,
                    )  # fmt: skip
                    # From here, ``lines`` holds sums of c over patches along a row.
                    wide, any_pulls = span + 2 * h_reach, False
                    if len(cotangent):
                        lines[: (count + 4 * v_reach) * wide * LANES] = np.float32(0.0)
                    for r in range(count):
                        if len(cotangent):
                            line[: (span + 4 * h_reach) * LANES] = np.float32(0.0)
                        if not _weigh_row(
                            sums, line, 2 * h_reach, distances, r * span, y, prior, gain, channels,
                            positions, (top + r) * width + left, span,
                            horizontal.image, h_at + h_reach,
                            vertical.image[v_at + v_reach + r] * width,
                            mean[q], log_max[q], share[q], cotangent, q,
                        ):  # fmt: skip
                            continue
                        any_pulls = True
                        box_sum(lines, (r + 2 * v_reach) * wide, line, wide, 2 * h_reach + 1, 1)
                    if not any_pulls:
                        continue
                    box_sum(
                        distances, 0, lines, (count + 2 * v_reach) * wide, 2 * v_reach + 1, wide
                    )
                    for r in range(count + 2 * v_reach):
                        if vertical.query[v_at + r] >= 0:
                            _add_pulls(
                                sums, distances, r * wide, y, channels, positions,
                                vertical.query[v_at + r] * width, vertical.image[v_at + r] * width,
                                horizontal, h_at, wide, mean[q],
                            )  # fmt: skip
            for n in range(out.shape[1]):
                out[q, n] += np.float64(sum_of(load(sums, n * LANES)))


@njit(nogil=True, cache=True)
def _weigh_row(  # type: ignore[no-untyped-def]
    sums, line, to, distances, at, y, prior, gain, channels, positions, first, span,
    h_image, h_at, image_row, mean, log_max, share, cotangent, q,
):  # fmt: skip
    """Add to the sums of ``span`` outputs and write their c to ``line``; whether any has a c."""
    d, any_pulls = channels * positions, False
    for j in range(span):
        u = first + j
        distance = load(distances, (at + j) * LANES)
        relative = load(prior, 0) - distance * gain - log_max[u]
        if not any_above(relative, -NEGLIGIBLE):
            continue
        weight = exp(relative) * share[u]
        v = image_row + h_image[h_at + j]
        pull = spread(np.float32(0.0))
        for c in range(channels):
            deviation = load(y, (c * positions + v) * LANES) - mean[c * positions + u]
            if len(cotangent):
                pull = pull + deviation * cotangent[q, c * positions + u]
            else:
                _add(sums, c * positions + u, weight * deviation * deviation)
        if len(cotangent):
            any_pulls = True
            pull = pull * weight
            store(line, (to + j) * LANES, pull)
            _add(sums, d + u, pull * distance)
            _add(sums, d + positions + u, pull)
            _add(sums, d + 2 * positions + u, weight * distance)
    return any_pulls


@njit(nogil=True, cache=True)
def _add_pulls(  # type: ignore[no-untyped-def]
    sums, pulls, at, y, channels, positions, query_row, image_row, axis, axis_at, n, mean
):
    """Add one row of inputs, times the sums of c over the patches that contain them."""
    for j in range(n):
        u = axis.query[axis_at + j]
        if u < 0:
            continue
        pull = load(pulls, (at + j) * LANES)
        u += query_row
        v = image_row + axis.image[axis_at + j]
        for _ in range(channels):
            # c sums to 0 over images and positions, so the mean may replace the query.
            _add(sums, u, pull * (load(y, v * LANES) - mean[u]))
            u += positions
            v += positions


@njit(nogil=True, cache=True)
def _add(sums, n, lanes):  # type: ignore[no-untyped-def]
    store(sums, n * LANES, load(sums, n * LANES) + lanes)


def patch_moments(
    stored: Stored,
    part: Support,
    x: F64,
    sigma: float,
    axes: tuple[Axis, Axis],
    shape: tuple[int, ...],
    known: tuple[F32, F32, F32, F32],
) -> F64:
    """Sums over images; as :func:`golddiff.kernels.pca_moments.masked_moments`, L = H W locations.

    ``axes`` and ``shape`` are those of :func:`golddiff.kernels.kamb_cpu.patch_posterior`.

    Returns:
        The variance (b, D), or the derivatives of u . mean, (b, D + 3 L).
    """
    channels, height, width = shape
    gain, *_, cotangent = precision(sigma), *known
    d = channels * height * width
    out = np.zeros((len(x), d + 3 * height * width if len(cotangent) else d))
    with stored.resident(part.rows) as (loaded, rows):
        _patch_moments(
            loaded.flat, rows, part.log_importance().astype(np.float32),
            *roots(x.astype(np.float32), sigma), np.float32(gain), shape, *axes,
            *stored.scaling, *known, out,
        )  # fmt: skip
    if len(cotangent):
        out[:, :d] *= 2 * gain
        out[:, d:].reshape(len(x), 3, -1)[:, ::2] *= -1  # dl/dg is minus the distance
    return out
