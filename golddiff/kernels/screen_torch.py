"""Screening in plain torch: proxy distances as one matrix product, and the k smallest of them.

Proxies of 8-bit images are means of whole pixels: as sums, centred, they are small integers (or
halves), which float16 holds exactly. So half the bytes of float32 lose nothing, and with a query
split into two float16 nor does the product. (bfloat16 or int8 would save at most as much again, and
change which images are kept.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.kernels.masked_terms import FLOAT16_ROOM

CHUNK = 65_536
BLOCK = 32  # proxies are filled up with zeros to whole blocks


@dataclass(frozen=True)
class Proxies:
    """Proxies of a training set on a device.

    Attributes:
        levels: (N, width) float16, or float32 where float16 would round; value = level * unit;
            width is d' rounded up to whole blocks, filled with 0.
        norms: (N,) float32, ||level||^2.
        unit: of a level, in units of x0.
        d: d', the values of a proxy.
    """

    levels: torch.Tensor
    norms: torch.Tensor
    unit: float
    d: int

    @classmethod
    def of(cls, values: NDArray[np.float32], unit: float | None, device: torch.device) -> Proxies:
        """Bring proxies (N, d') over, some at a time.

        Args:
            values: in units of x0.
            unit: what halves of levels count in, see :func:`pool_unit`; None for values that are
                no means of whole levels.
            device: where they go.
        """
        ways = [] if unit is None else [(torch.float16, 2 * unit)]
        n, d = values.shape
        width = -(-d // BLOCK) * BLOCK
        for dtype, step in (*ways, (torch.float32, 1.0)):
            levels = torch.zeros((n, width), dtype=dtype, device=device)
            norms = torch.zeros(n, device=device)
            for i in range(0, n, CHUNK):
                some = torch.from_numpy(np.array(values[i : i + CHUNK])).to(device).double() / step
                if dtype == torch.float16:
                    # Levels, or halves where the centre of an odd number of pixels is one.
                    nearest = (some * 2).round() / 2
                    rounded = (nearest - some).abs().amax() > 1e-2
                    if rounded or (nearest.half().double() != nearest).any():
                        break
                    some = nearest
                levels[i : i + CHUNK, :d] = some.to(dtype)
                norms[i : i + CHUNK] = some.square().sum(dim=1).float()
            else:
                return cls(levels, norms, step, d)
        raise AssertionError("float32 holds every level")

    def bytes(self) -> int:
        """Memory that they take."""
        return sum(t.numel() * t.element_size() for t in (self.levels, self.norms))


def proxy_distances(proxies: Proxies, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """||p_i||^2 - 2 x.p_i in level units: the squared distance less ||x||^2, which all share.

    Args:
        proxies: of the training set.
        x: (b, d') float32 pooled queries, in units of x0.
        rows: (m,) rows to compare with, or None for all.

    Returns:
        (b, m) float32.
    """
    levels = proxies.levels if rows is None else proxies.levels[rows.long()]
    norms = proxies.norms if rows is None else proxies.norms[rows.long()]
    query = x / proxies.unit
    return norms - 2 * query @ levels[:, : proxies.d].float().T


def split_queries(x: torch.Tensor, unit: float, width: int) -> tuple[torch.Tensor, ...]:
    """Queries (b, d') as two float16 (b, width) each, and the power of two that they are times."""
    level = torch.nn.functional.pad(x / unit, (0, width - x.shape[1]))
    reach = level.abs().amax(dim=1).clamp(min=1e-30)
    times = torch.exp2(torch.floor(torch.log2(FLOAT16_ROOM / reach)))
    scaled = level * times[:, None]
    high = scaled.to(torch.float16)
    return high, (scaled - high.float()).to(torch.float16), times


def smallest(distances: torch.Tensor, k: int) -> torch.Tensor:
    """Where the k smallest of each row lie, ascending positions; of equals the first.

    Args:
        distances: (b, m), finite.
        k: 1 to m.

    Returns:
        (b, k) int64.
    """
    if k == distances.shape[1]:
        return torch.arange(k, device=distances.device).expand(len(distances), k)
    limit = torch.topk(distances, k, dim=1, largest=False, sorted=False).values.amax(dim=1)
    return up_to(distances, limit, k)


def up_to(distances: torch.Tensor, limit: torch.Tensor, k: int) -> torch.Tensor:
    """The positions (b, k) of all below ``limit`` (b,), the k-th smallest, and its first equals.

    Nothing waits for the device: the result's size is known before.
    """
    b, m = distances.shape
    below = distances < limit[:, None]
    equal = distances == limit[:, None]
    missing = k - below.sum(dim=1, keepdim=True)
    taken = below | (equal & (equal.cumsum(dim=1) <= missing))
    place = torch.where(taken, taken.cumsum(dim=1) - 1, k)
    out = torch.empty((b, k + 1), dtype=torch.int64, device=distances.device)
    position = torch.arange(m, device=distances.device).expand(b, m)
    return out.scatter_(1, place, position)[:, :k]


def pool_unit(scale: float, shape: tuple[int, ...], proxy: tuple[int, ...]) -> float:
    """Half of what the sum of the pixels under a proxy value counts in, over their number."""
    return scale * math.prod(proxy) / math.prod(shape) / 2
