"""Screening in plain torch: proxy distances as one matrix product, and the k smallest of them.

Proxies of 8-bit images are means of whole pixels: as sums, centred, they are small integers (or
halves), which float16 holds exactly. So half the bytes of float32 lose nothing, and with a query
split into two float16 nor does the product. (bfloat16 or int8 would save at most as much again, and
change which images are kept.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from golddiff.kernels.masked_terms import FLOAT16_ROOM

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
    def of(cls, values: torch.Tensor, unit: float) -> Proxies:
        """Proxies from their values (N, d') float32.

        Args:
            values: in units of x0.
            unit: half of what two levels may differ by: the pixels' scale over twice the number
                of pixels that a proxy value is the mean of.
        """
        n, d = values.shape
        width = -(-d // BLOCK) * BLOCK
        exact = torch.round(values.double() / unit)
        rounded = (values.double() / unit - exact).abs().amax() < 1e-2 if n else torch.tensor(True)
        # Halves of levels, so that the centre of an even number of pixels is one too.
        halves = (exact / 2).to(torch.float16)
        if bool(rounded) and bool((halves.double() * 2 == exact).all()):
            levels, unit = halves, 2 * unit
        else:
            levels, unit = values, 1.0
        filled = torch.nn.functional.pad(levels, (0, width - d)).contiguous()
        norms = filled.double().square().sum(dim=1).float()
        return cls(filled, norms, unit, d)

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
    """The ``unit`` of :meth:`Proxies.of` for stored values of a scale, pooled to a shape."""
    return scale * math.prod(proxy) / math.prod(shape) / 2
