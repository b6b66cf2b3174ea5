"""Kamb's patch posterior on a GPU: patch distances, online softmax and sums in one kernel.

One program owns a block of positions of one query and a part of the support, and walks over the
images and the blocks of positions that its own are compared with. Two kernels share everything but
the distance: float32 differences below sigma 1, where digits matter and patches are small, and a
matrix product above. Equal to :mod:`golddiff.kernels.kamb_torch`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from golddiff.kernels.masked_terms import FLOAT16_ROOM
from golddiff.kernels.partial import Partial
from golddiff.kernels.patch_tables import PatchTables
from golddiff.kernels.triton_support import parts_of
from golddiff.noise import precision

POSITIONS = 64  # a block; members of a patch are multiplied 32 at a time
MEMBERS = tl.constexpr(32)


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    best, sums, moments, logits, pixels, row, centres, v, locations, shift, channel,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Fold the logits (u, v) of one image's positions v into the running sums."""
    top = tl.maximum(best, tl.max(logits, axis=1))
    safe = tl.where(top == float("-inf"), 0.0, top)
    shrink = tl.exp(best - safe)
    weights = tl.exp(logits - safe[:, None])
    moments = moments * shrink[:, None]
    for c in tl.static_range(CHANNELS):
        at = tl.load(centres + c * locations + v, mask=v < locations, other=0)
        value = tl.load(pixels + row + at).to(tl.float32) + shift
        part = tl.sum(weights * value[None, :], axis=1)
        moments += tl.where(channel[None, :] == c, part[:, None], 0.0)
    return top, sums * shrink + tl.sum(weights, axis=1), moments


@triton.jit  # type: ignore[untyped-decorator]
def _store(  # type: ignore[no-untyped-def]
    log_max, total, weighted, best, sums, moments, at, u, locations, channel,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    out = at.to(tl.int64) * locations
    tl.store(log_max + out + u, best, mask=u < locations)
    tl.store(total + out + u, sums, mask=u < locations)
    place = out * CHANNELS + channel[None, :] * locations + u[:, None]
    tl.store(
        weighted + place, moments, mask=(u < locations)[:, None] & (channel < CHANNELS)[None, :]
    )


@triton.jit  # type: ignore[untyped-decorator]
def difference_kernel(  # type: ignore[no-untyped-def]
    pixels, rows, log_weights, x, gain, members, centres, classes, first, last,
    log_max, total, weighted, queries, k, width, locations, patch, row_stride, part_size, shift,
    WEIGHTED: tl.constexpr, CHANNELS: tl.constexpr, PADDED: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """(max, sum, weighted sums) of one block of positions, by float32 differences."""
    block, query, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    u = block * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.arange(0, PADDED)
    slope = tl.load(gain)
    mine = tl.load(classes + u, mask=u < locations, other=-1)
    first_block, last_block = tl.load(first + block), tl.load(last + block)
    best = tl.full([POSITIONS], float("-inf"), tl.float32)
    sums = tl.zeros([POSITIONS], tl.float32)
    moments = tl.zeros([POSITIONS, PADDED], tl.float32)
    for i in range(part * part_size, tl.minimum((part + 1) * part_size, k)):
        row = tl.load(rows + query * row_stride + i).to(tl.int64) * width
        for other in range(first_block, last_block):
            v = other * POSITIONS + tl.arange(0, POSITIONS)
            distance = tl.zeros([POSITIONS, POSITIONS], tl.float32)
            for n in range(patch):
                at_u = tl.load(members + n * locations + u, mask=u < locations, other=-1)
                at_v = tl.load(members + n * locations + v, mask=v < locations, other=-1)
                a = tl.load(x + query * width + at_u, mask=at_u >= 0, other=0.0)
                y = tl.load(pixels + row + at_v, mask=at_v >= 0, other=0).to(tl.float32) + shift
                y = tl.where(at_v >= 0, y, 0.0)  # frames hold the value 0 in both images
                difference = a[:, None] - y[None, :]
                distance += difference * difference
            logits = distance * slope
            if WEIGHTED:
                logits += tl.load(log_weights + query * row_stride + i)
            theirs = tl.load(classes + v, mask=v < locations, other=-2)
            logits = tl.where(mine[:, None] == theirs[None, :], logits, float("-inf"))
            best, sums, moments = _fold(
                best, sums, moments, logits, pixels, row, centres, v, locations, shift, channel,
                CHANNELS,
            )  # fmt: skip
    _store(
        log_max, total, weighted, best, sums, moments, part * queries + query, u, locations,
        channel, CHANNELS,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def product_kernel(  # type: ignore[no-untyped-def]
    pixels, rows, log_weights, high, low, times, gain, members, centres, classes, first, last,
    log_max, total, weighted, queries, k, width, locations, patch, row_stride, part_size, shift,
    WEIGHTED: tl.constexpr, CHANNELS: tl.constexpr, PADDED: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """(max, sum, weighted sums) of one block of positions, by matrix products."""
    block, query, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    u = block * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.arange(0, PADDED)
    slope = tl.load(gain)
    scale = 2.0 / tl.load(times + query)
    mine = tl.load(classes + u, mask=u < locations, other=-1)
    first_block, last_block = tl.load(first + block), tl.load(last + block)
    best = tl.full([POSITIONS], float("-inf"), tl.float32)
    sums = tl.zeros([POSITIONS], tl.float32)
    moments = tl.zeros([POSITIONS, PADDED], tl.float32)
    for i in range(part * part_size, tl.minimum((part + 1) * part_size, k)):
        row = tl.load(rows + query * row_stride + i).to(tl.int64) * width
        for other in range(first_block, last_block):
            v = other * POSITIONS + tl.arange(0, POSITIONS)
            product = tl.zeros([POSITIONS, POSITIONS], tl.float32)
            norm = tl.zeros([POSITIONS], tl.float32)
            for start in range(0, patch, MEMBERS):
                n = start + tl.arange(0, MEMBERS)
                held = (n < patch)[:, None]
                at_u = tl.load(
                    members + n[:, None] * locations + u[None, :],
                    mask=held & (u < locations)[None, :], other=-1,
                )  # fmt: skip
                at_v = tl.load(
                    members + n[:, None] * locations + v[None, :],
                    mask=held & (v < locations)[None, :], other=-1,
                )  # fmt: skip
                y = tl.load(pixels + row + at_v, mask=at_v >= 0, other=0).to(tl.float32) + shift
                y = tl.where(at_v >= 0, y, 0.0)
                norm += tl.sum(y * y, axis=0)
                a = tl.load(high + query * width + at_u, mask=at_u >= 0, other=0.0)
                b = tl.load(low + query * width + at_u, mask=at_u >= 0, other=0.0)
                # A centred 8-bit value is exact in float16, and the query is split into two.
                half = y.to(tl.float16)
                product = tl.dot(tl.trans(a), half, product)
                product = tl.dot(tl.trans(b), half, product)
            # The query's own norm is the same for all that a position is compared with.
            logits = (norm[None, :] - product * scale) * slope
            if WEIGHTED:
                logits += tl.load(log_weights + query * row_stride + i)
            theirs = tl.load(classes + v, mask=v < locations, other=-2)
            logits = tl.where(mine[:, None] == theirs[None, :], logits, float("-inf"))
            best, sums, moments = _fold(
                best, sums, moments, logits, pixels, row, centres, v, locations, shift, channel,
                CHANNELS,
            )  # fmt: skip
    _store(
        log_max, total, weighted, best, sums, moments, part * queries + query, u, locations,
        channel, CHANNELS,
    )  # fmt: skip


def patch_partials(
    pixels: torch.Tensor,
    rows: torch.Tensor,
    log_weights: torch.Tensor | None,
    x: torch.Tensor,
    sigma: float,
    tables: PatchTables,
    scale: float,
    offset: float,
) -> Partial:
    """Partial posteriors of consecutive parts of a support; a location a position.

    Args:
        pixels: (N, width) stored values, uint8 or float32, contiguous.
        rows: (b, k) rows for each query, or (1, k) for all.
        log_weights: like ``rows``, float32, added to the logits; None for zeros.
        x: (b, D) float32 queries in units of x0, values where the tables say, D <= width.
        sigma: noise level.
        tables: of the patch size, with blocks of ``POSITIONS``.
        scale: a stored value s stands for s * scale + offset.
        offset: see ``scale``.

    Returns:
        (parts, b, L) and weighted (parts, b, C * L), positions in the order of the tables.
    """
    b, d = x.shape
    shared, k = rows.shape
    width, device = pixels.shape[1], pixels.device
    patch, locations = tables.members.shape
    channels, blocks = len(tables.centres), len(tables.first)
    parts, part_size = parts_of(k, 1, blocks * b)
    log_max, total = (
        torch.empty((parts, b, locations), dtype=torch.float32, device=device) for _ in range(2)
    )
    weighted = torch.empty((parts, b, channels * locations), dtype=torch.float32, device=device)
    level = torch.nn.functional.pad(x / scale, (0, width - d))
    slope = min(precision(sigma) * scale**2, 1e18)
    gain = torch.full((1,), -slope, dtype=torch.float32, device=device)
    common = (
        gain, tables.members, tables.centres, tables.classes, tables.first, tables.last,
        log_max, total, weighted, b, k, width, locations, patch, k if shared > 1 else 0, part_size,
        offset / scale,
    )  # fmt: skip
    shape = {
        "WEIGHTED": log_weights is not None, "CHANNELS": channels, "POSITIONS": tables.block,
        "PADDED": triton.next_power_of_2(channels), "num_warps": 8,
    }  # fmt: skip
    rows = rows.contiguous()
    prior = rows if log_weights is None else log_weights.contiguous()
    if sigma > 1 and pixels.dtype == torch.uint8:
        reach = level.abs().amax(dim=1).clamp(min=1e-30)
        times = torch.exp2(torch.floor(torch.log2(FLOAT16_ROOM / reach)))
        scaled = level * times[:, None]
        high = scaled.to(torch.float16)
        low = (scaled - high.float()).to(torch.float16)
        product_kernel[(blocks, b, parts)](pixels, rows, prior, high, low, times, *common, **shape)
    else:
        difference_kernel[(blocks, b, parts)](pixels, rows, prior, level, *common, **shape)
    # The kernels' values are stored ones less the level of the value 0.
    return Partial(log_max, total, weighted * scale)
