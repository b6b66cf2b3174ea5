"""Gathered rows on a GPU: squared distances and weighted sums, converted in registers.

The Triton counterpart of :mod:`golddiff.kernels.rows`; :mod:`golddiff.kernels.gather_torch` is its
plain twin. Differences are true float32 differences, summed in float64 every 128 values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from golddiff.kernels.triton_support import parts_of

ROWS = 32
VALUES = 128
LARGEST_GRID = 65_535  # along the second and third axis


@triton.jit  # type: ignore[untyped-decorator]
def distance_kernel(  # type: ignore[no-untyped-def]
    pixels, rows, x, out, k, width, row_stride, shift, ROWS: tl.constexpr, VALUES: tl.constexpr
):
    """Distances of ROWS gathered rows to one query."""
    # Queries run fastest: where they share rows, all but the first find them in the cache.
    query = tl.program_id(0)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    row = tl.load(rows + query * row_stride + i, mask=i < k, other=0).to(tl.int64) * width
    total = tl.zeros([ROWS], tl.float64)
    for start in range(0, width, VALUES):
        n = start + tl.arange(0, VALUES)
        stored = tl.load(pixels + row[:, None] + n[None, :]).to(tl.float32) + shift
        difference = stored - tl.load(x + query * width + n)[None, :]
        total += tl.sum(difference * difference, axis=1).to(tl.float64)
    tl.store(out + query.to(tl.int64) * k + i, total.to(tl.float32), mask=i < k)


@triton.jit  # type: ignore[untyped-decorator]
def weighted_sum_kernel(  # type: ignore[no-untyped-def]
    pixels, rows, weights, out, queries, k, width, row_stride, part_size,
    ROWS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Weighted sums of VALUES values over one part of the gathered rows, for one query."""
    query, part = tl.program_id(0), tl.program_id(2)
    n = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    total = tl.zeros([VALUES], tl.float32)
    stop = tl.minimum((part + 1) * part_size, k)
    for start in range(part * part_size, stop, ROWS):
        i = start + tl.arange(0, ROWS)
        weight = tl.load(weights + query.to(tl.int64) * k + i, mask=i < stop, other=0.0)
        # Below sigma 1 nearly all weights are zero: most blocks are never read.
        if tl.max(weight, axis=0) > 0:
            row = tl.load(rows + query * row_stride + i, mask=i < stop, other=0).to(tl.int64)
            stored = tl.load(pixels + row[:, None] * width + n[None, :]).to(tl.float32)
            total += tl.sum(weight[:, None] * stored, axis=0)
    tl.store(out + (part * queries + query) * width + n, total)


def squared_distances(
    pixels: torch.Tensor, rows: torch.Tensor, x: torch.Tensor, shift: float
) -> torch.Tensor:
    """||x_q - (s_i + shift)||^2 in stored units.

    Args:
        pixels: (N, width) stored values, uint8 or float32, contiguous; width is a multiple of
            ``VALUES``, and columns from D on hold 0.
        rows: (b, k) rows for each query, or (1, k) for all.
        x: (b, D) float32 queries in stored units, centred as the images are.
        shift: added to stored values; centred on the value 0, a query loses no digits.

    Returns:
        (b, k) float32.
    """
    d, width = x.shape[1], _whole(pixels)
    x = torch.nn.functional.pad(x, (0, width - d), value=shift)
    parts = torch.split(rows, ROWS * LARGEST_GRID, dim=1)
    return torch.cat([_distances(pixels, part.contiguous(), x, shift) for part in parts], dim=1)


def _distances(
    pixels: torch.Tensor, rows: torch.Tensor, x: torch.Tensor, shift: float
) -> torch.Tensor:
    (b, width), k = x.shape, rows.shape[1]
    out = torch.empty((b, k), dtype=torch.float32, device=pixels.device)
    distance_kernel[(b, triton.cdiv(k, ROWS))](
        pixels, rows, x.contiguous(), out, k, width, k if len(rows) > 1 else 0, shift,
        ROWS=ROWS, VALUES=VALUES, num_warps=4,
    )  # fmt: skip
    return out


def weighted_sums(
    pixels: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor, d: int
) -> torch.Tensor:
    """Sum over rows of weights[q, j] * s_{rows[j]} in stored units, (b, d) float32.

    Args:
        pixels: as in :func:`squared_distances`.
        rows: (b, k) rows for each query, or (1, k) for all.
        weights: (b, k) float32, none below 0; blocks of zeros are not read.
        d: values of a row to sum, at most width.
    """
    b, k = weights.shape
    width = _whole(pixels)
    tiles = width // VALUES
    parts, part_size = parts_of(k, ROWS, tiles * b)
    out = torch.empty((parts, b, width), dtype=torch.float32, device=pixels.device)
    weighted_sum_kernel[(b, tiles, parts)](
        pixels, rows.contiguous(), weights.contiguous(), out, b, k, width,
        k if len(rows) > 1 else 0, part_size, ROWS=ROWS, VALUES=VALUES, num_warps=4,
    )  # fmt: skip
    return out.sum(dim=0)[:, :d]


def _whole(pixels: torch.Tensor) -> int:
    width = pixels.shape[1]
    if width % VALUES:
        raise ValueError(f"pixels: got rows of {width}, expected a multiple of {VALUES}")
    return width
