"""CPU kernel of Kamb's denoisers: patch distances as box sums of squared differences.

For one offset d between the compared positions, the squared differences
e(u) = sum_c (x[c, u] - y[c, u + d])^2 are elementwise, and the patch distance is the sum of e over
the patch. This needs no unfolding and no matrix product, so that the cost of an image hardly grows
with the patch size. Differences are squared directly, without cancellation.

The vector lanes hold LANES images, so that every box sum adds whole vectors. A weight more than
NEGLIGIBLE nats below its position's best is skipped: a billion such weigh below 1e-8 of the best.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numba import njit

from golddiff.kernels.boxsum import box_sum
from golddiff.kernels.lanes import (
    LANES,
    NEGLIGIBLE,
    any_above,
    empty_numbers,
    exp,
    largest,
    load,
    spread,
    store,
    sum_of,
)
from golddiff.kernels.roots import roots
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.support import Support
from golddiff.system.numbers import F32, I64

Boundary = Literal["zeros", "circular", "none"]

NO_LOGIT = np.float32(-1e36)  # initial best logit of a position
EMPTY_LANE = np.float32(-2e38)  # log weight of a lane without an image


class Axis(NamedTuple):
    """The positions compared along one axis, as runs of constant offset.

    A run compares the outputs first <= u < last with u + offset, for patches of side 2 * reach + 1.
    ``query`` and ``image`` list its source positions u - reach ... u + reach; -1 marks positions
    outside both images, where the difference is 0.
    """

    runs: I64  # (R, 3) int64: first, last, offset of the run in ``query`` and ``image``
    query: I64  # source positions in the query, run after run
    image: I64  # source positions in the training image
    reach: int  # p // 2 along this axis

    @classmethod
    def of(cls, length: int, patch: int, boundary: str) -> Axis:
        """The runs along an axis of ``length`` positions."""
        reach = min(patch // 2, length - 1)  # longer patches are cut at both borders
        if boundary == "circular":
            spans = [(0, length, d) for d in range(length)]
        else:
            spans = [(0, length, 0)]
        if boundary == "zeros":
            near, far = reach, length - reach  # the interior
            for d in range(near - far + 1, far - near):
                if d != 0:
                    spans.append((max(near, near - d), min(far, far - d), d))
        runs: list[tuple[int, int, int]] = []
        query: list[int] = []
        image: list[int] = []
        for first, last, d in spans:
            runs.append((first, last, len(query)))
            for u in range(first - reach, last + reach):
                inside = boundary == "circular" or 0 <= u < length
                query.append(u % length if inside else -1)
                image.append((u + d) % length if inside else -1)
        return cls(
            np.array(runs, np.int64), np.array(query, np.int64), np.array(image, np.int64), reach
        )

    def at(self, position: int) -> Axis:
        """The part of the runs that compares one output position."""
        runs = [
            (position, position + 1, start + position - first)
            for first, last, start in self.runs.tolist()
            if first <= position < last
        ]
        return Axis(np.array(runs, dtype=np.int64), self.query, self.image, self.reach)


def patch_posterior(
    stored: Stored,
    part: Support,
    x: F32,
    sigma: float,
    axes: tuple[Axis, Axis],
    shape: tuple[int, ...],
) -> Posterior:
    """Partial posterior of queries over some images; one location per pixel, for all channels.

    ``axes`` are the positions compared along height and width, ``shape`` is (C, H, W).
    """
    channels, height, width = shape
    b, positions = len(x), height * width
    log_max = np.full((b, positions), NO_LOGIT, np.float32)
    total = np.zeros((b, positions))
    weighted = np.zeros((b, channels * positions))
    gain = np.float32(precision(sigma))
    with stored.resident(part.rows) as (loaded, rows):
        _patch_posterior(
            loaded.flat, rows, part.log_importance().astype(np.float32), *roots(x, sigma), gain,
            shape, *axes, *stored.scaling, log_max, total, weighted,
        )  # fmt: skip
    return Posterior(
        np.where(log_max > NO_LOGIT, log_max, -np.inf).astype(np.float64), total, weighted
    )


@njit(nogil=True, cache=True)
def _patch_posterior(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, first_root, second_root, gain, shape, vertical, horizontal,
    scale, offset, log_max, total, weighted,
):  # fmt: skip
    channels, height, width = shape
    positions = height * width
    y = empty_numbers(channels * positions * LANES)
    prior = empty_numbers(LANES)
    sums = empty_numbers(positions * (1 + channels) * LANES)
    line = empty_numbers((width + 2 * horizontal.reach) * LANES)
    lines = empty_numbers((height + 2 * vertical.reach) * width * LANES)
    distances = empty_numbers(positions * LANES)
    folded_at = log_max.copy()

    for block in range(0, len(rows), LANES):
        load_images(y, prior, flat, rows, log_weights, scale, offset, block)
        for q in range(len(log_max)):
            root, other, best = first_root[q], second_root[q], log_max[q]
            sums[:] = np.float32(0.0)
            for i in range(len(vertical.runs)):
                top, bottom, v_at = vertical.runs[i]
                for j in range(len(horizontal.runs)):
                    left, right, h_at = horizontal.runs[j]
                    span = right - left
                    patch_distances(
                        distances, lines, line, root, other, y, shape,
                        vertical, v_at, bottom - top, horizontal, h_at, span,
                    )  # fmt: skip
                    for r in range(bottom - top):
                        _accumulate(
                            sums, best, distances, r * span, y, prior, gain, channels,
                            positions, (top + r) * width + left, span,
                            horizontal.image, h_at + horizontal.reach,
                            vertical.image[v_at + vertical.reach + r] * width,
                        )  # fmt: skip
            _fold(total[q], weighted[q], folded_at[q], best, sums, channels, positions)


@njit(nogil=True, cache=True)
def patch_distances(  # type: ignore[no-untyped-def]
    distances, lines, line, root, other, y, shape,
    vertical, v_at, count, horizontal, h_at, span,
):  # fmt: skip
    """distances[r * span + j] of the patches around count x span outputs at one offset.

    ``line`` and ``lines`` are buffers.
    """
    channels, height, width = shape
    for r in range(count + 2 * vertical.reach):
        query_row, image_row = vertical.query[v_at + r], vertical.image[v_at + r]
        if query_row < 0:
            lines[r * span * LANES : (r + 1) * span * LANES] = np.float32(0.0)
            continue
        if r >= height and query_row == vertical.query[v_at + r - height]:
            _copy_blocks(lines, r * span, (r - height) * span, span)
            continue
        _differences(
            line, root, other, y, channels, height * width, query_row * width,
            image_row * width, width, horizontal, h_at, span + 2 * horizontal.reach,
        )  # fmt: skip
        box_sum(lines, r * span, line, span, 2 * horizontal.reach + 1, 1)
    box_sum(distances, 0, lines, count * span, 2 * vertical.reach + 1, span)


@njit(nogil=True, cache=True)
def load_images(  # type: ignore[no-untyped-def]
    y, prior, flat, rows, log_weights, scale, offset, block
):
    """y[d * LANES + lane] = value d of the lane's image; empty lanes get log weight EMPTY_LANE."""
    lane_rows = np.empty(LANES, np.int64)
    for lane in range(LANES):
        present = block + lane < len(rows)
        lane_rows[lane] = rows[block + lane] if present else rows[block]
        prior[lane] = max(log_weights[block + lane], EMPTY_LANE) if present else EMPTY_LANE
    for d in range(flat.shape[1]):
        for lane in range(LANES):
            y[d * LANES + lane] = np.float32(flat[lane_rows[lane], d]) * scale + offset


@njit(nogil=True, cache=True)
def _differences(  # type: ignore[no-untyped-def]
    line, root, other, y, channels, positions, query_row, image_row, width, axis, at, n
):  # fmt: skip
    """line[j] = sum over channels of (root - y)(other - y) at the j-th source position."""
    plane = positions * LANES
    for j in range(n):
        u = axis.query[at + j]
        if u < 0:
            store(line, j * LANES, spread(np.float32(0.0)))
            continue
        if j >= width and u == axis.query[at + j - width]:  # wraps around
            _copy_blocks(line, j, j - width, 1)
            continue
        u += query_row
        v = (axis.image[at + j] + image_row) * LANES
        value = load(y, v)
        total = (value - root[u]) * (value - other[u])
        for _ in range(1, channels):
            u += positions
            v += plane
            value = load(y, v)
            total = total + (value - root[u]) * (value - other[u])
        store(line, j * LANES, total)


@njit(nogil=True, cache=True)
def _copy_blocks(a, to, start, n):  # type: ignore[no-untyped-def]
    """Copy n blocks of LANES numbers from block ``start`` to block ``to``."""
    for k in range(0, n * LANES, LANES):
        store(a, to * LANES + k, load(a, start * LANES + k))


@njit(nogil=True, cache=True)
def _accumulate(  # type: ignore[no-untyped-def]
    sums, log_max, distances, at, y, prior, gain, channels, positions,
    first, span, h_image, h_at, image_row,
):  # fmt: skip
    """Add the patches at one offset to the online softmax sums of ``span`` positions."""
    stride = (1 + channels) * LANES
    plane = positions * LANES
    bias = load(prior, 0)
    for j in range(span):
        u = first + j
        logit = bias - load(distances, (at + j) * LANES) * gain
        best = log_max[u]
        if not any_above(logit, best - NEGLIGIBLE):
            continue
        s = u * stride
        if any_above(logit, best):
            higher = largest(logit)
            shrink = np.exp(best - higher)
            for c in range(s, s + stride, LANES):
                store(sums, c, load(sums, c) * shrink)
            log_max[u] = higher
            best = higher
        weight = exp(logit - best)
        store(sums, s, load(sums, s) + weight)
        v = (image_row + h_image[h_at + j]) * LANES
        for c in range(s + LANES, s + stride, LANES):
            store(sums, c, load(sums, c) + weight * load(y, v))
            v += plane


@njit(nogil=True, cache=True)
def _fold(  # type: ignore[no-untyped-def]
    total, weighted, folded_at, log_max, sums, channels, positions
):
    """Add the sums of all lanes to float64 totals, so that float32 sums stay short."""
    for u in range(positions):
        shrink = np.exp(np.float64(folded_at[u]) - np.float64(log_max[u]))
        folded_at[u] = log_max[u]
        s = u * (1 + channels) * LANES
        total[u] = total[u] * shrink + np.float64(sum_of(load(sums, s)))
        for c in range(channels):
            s += LANES
            d = c * positions + u
            weighted[d] = weighted[d] * shrink + np.float64(sum_of(load(sums, s)))
