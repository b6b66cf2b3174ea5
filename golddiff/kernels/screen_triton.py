"""Screening on a GPU: proxy distances on the matrix units, the k-th smallest by radix.

Both pass over their data once (a digit): their floor is the proxies' bytes. Equal to
:mod:`golddiff.kernels.screen_torch`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from golddiff.kernels import screen_torch
from golddiff.kernels.screen_torch import BLOCK, Proxies, split_queries, up_to

IMAGES = 128
QUERIES = 16
DIGITS = tl.constexpr(256)
KEYS = 1024


@triton.jit  # type: ignore[untyped-decorator]
def screen_kernel(  # type: ignore[no-untyped-def]
    levels, norms, rows, high, low, times, out, b, m, width,
    GATHERED: tl.constexpr, IMAGES: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Distances of IMAGES proxies to QUERIES queries: one block of the matrix product."""
    i = tl.program_id(0) * IMAGES + tl.arange(0, IMAGES)
    q = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    row = i
    if GATHERED:
        row = tl.load(rows + i, mask=i < m, other=0)
    row = tl.where(i < m, row, 0).to(tl.int64)
    mine = tl.where(q < b, q, 0)
    product = tl.zeros([IMAGES, QUERIES], tl.float32)
    rest = tl.zeros([IMAGES, QUERIES], tl.float32)
    for start in range(0, width, BLOCK):
        n = start + tl.arange(0, BLOCK)
        p = tl.load(levels + row[:, None] * width + n[None, :])
        at = mine[:, None] * width + n[None, :]
        product = tl.dot(p, tl.trans(tl.load(high + at)), product)
        rest = tl.dot(p, tl.trans(tl.load(low + at)), rest)
    product = (product + rest) / tl.load(times + mine)[None, :]
    distance = tl.load(norms + row)[:, None] - 2 * product
    place = q[None, :].to(tl.int64) * m + i[:, None]
    tl.store(out + place, distance, mask=(q < b)[None, :] & (i < m)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def digit_kernel(keys, prefix, counts, m, shift, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Count, by their next 8 bits, the keys that begin with a row's prefix."""
    row = tl.program_id(0)
    i = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    key = tl.load(keys + row.to(tl.int64) * m + i, mask=i < m, other=0).to(tl.int64)
    wanted = (i < m) & ((key >> (shift + 8)) == tl.load(prefix + row))
    # What is not wanted counts as digit 0, and is taken off again.
    digit = tl.where(wanted, (key >> shift) & (DIGITS - 1), 0).to(tl.int32)
    found = tl.histogram(digit, DIGITS)
    bins = tl.arange(0, DIGITS)
    others = KEYS - tl.sum(wanted.to(tl.int32), axis=0)
    found = found - tl.where(bins == 0, others, 0)
    tl.atomic_add(counts + row * DIGITS + bins, found, mask=found > 0)


def proxy_distances(proxies: Proxies, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """As :func:`golddiff.kernels.screen_torch.proxy_distances`; float32 levels go to cuBLAS."""
    if proxies.levels.dtype != torch.float16:
        return screen_torch.proxy_distances(proxies, x, rows)
    n, width = proxies.levels.shape
    m = n if rows is None else len(rows)
    high, low, times = split_queries(x, proxies.unit, width)
    out = torch.empty((len(x), m), dtype=torch.float32, device=x.device)
    screen_kernel[(triton.cdiv(m, IMAGES), triton.cdiv(len(x), QUERIES))](
        proxies.levels, proxies.norms, proxies.norms if rows is None else rows.contiguous(),
        high, low, times, out, len(x), m, width,
        GATHERED=rows is not None, IMAGES=IMAGES, QUERIES=QUERIES, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def smallest(distances: torch.Tensor, k: int) -> torch.Tensor:
    """As :func:`golddiff.kernels.screen_torch.smallest`: the limit digit by digit, then one pass.

    Four passes of eight bits over the distances, whatever k is, and no sort.
    """
    b, m = distances.shape
    if k == m:
        return screen_torch.smallest(distances, k)
    keys = _ordered(distances)
    prefix = torch.zeros(b, dtype=torch.int64, device=distances.device)
    left = torch.full((b,), k, dtype=torch.int64, device=distances.device)
    for shift in (24, 16, 8, 0):
        counts = torch.zeros((b, 256), dtype=torch.int32, device=distances.device)
        digit_kernel[(b, triton.cdiv(m, KEYS))](
            keys, prefix, counts, m, shift, KEYS=KEYS, num_warps=4
        )
        reached = counts.cumsum(dim=1)
        digit = (reached < left[:, None]).sum(dim=1)
        before = torch.where(
            digit > 0, reached.gather(1, (digit - 1).clamp(min=0)[:, None])[:, 0], 0
        )
        left = left - before
        prefix = prefix * 256 + digit
    return up_to(keys, prefix, k)


def _ordered(distances: torch.Tensor) -> torch.Tensor:
    """Integers 0 to 2^32 - 1, as int64, in the order of the floats; 0.0 and -0.0 are equal."""
    bits = (distances + 0.0).view(torch.int32)
    flipped = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return flipped.to(torch.int64) + (1 << 31)
