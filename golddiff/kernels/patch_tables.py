"""Which values a patch holds and which positions are compared, as tables for Kamb on a GPU.

Kamb's boundary rules (:mod:`golddiff.estimators.reference_kamb`) make classes of positions:
along each axis a position near a border is compared with itself only, an interior one with all
interior ones. Two positions are compared where their classes are the same; sorted by class, the
partners of a block of positions are one run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PatchTables:
    """Tables of one patch size and boundary; places are where a row of pixels holds a value.

    Attributes:
        members: (P, L) int32, the places of the C * p * p values of the patch around a position,
            -1 outside the image; positions sorted by class.
        centres: (C, L) int32, the places of the position itself.
        classes: (L,) int32, ascending.
        first, last: (ceil(L / block),) int32, the run of blocks that a block is compared with.
        block: positions a block.
    """

    members: torch.Tensor
    centres: torch.Tensor
    classes: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    block: int

    @classmethod
    def of(
        cls,
        shape: tuple[int, int, int],
        patch: int,
        boundary: str,
        places: torch.Tensor,
        block: int,
    ) -> PatchTables:
        """Make the tables.

        Args:
            shape: (C, H, W).
            patch: odd side p of a patch.
            boundary: "zeros", "circular" or "none".
            places: (C * H * W,) int64, where a row of pixels holds each value of an image; its
                device is the tables' device.
            block: positions a block, of the kernel.
        """
        c, h, w = shape
        device = places.device
        row = _classes(h, patch, boundary).to(device)
        column = _classes(w, patch, boundary).to(device)
        code = (row[:, None] * (w + 1) + column[None, :]).flatten()
        classes, order = torch.sort(code, stable=True)
        y, x = order // w, order % w
        rows = y + torch.arange(-_reach(h, patch), _reach(h, patch) + 1, device=device)[:, None]
        columns = x + torch.arange(-_reach(w, patch), _reach(w, patch) + 1, device=device)[:, None]
        inside_rows, inside_columns = (rows >= 0) & (rows < h), (columns >= 0) & (columns < w)
        if boundary == "circular":
            inside_rows, inside_columns = inside_rows | True, inside_columns | True
        flat = (rows % h)[:, None] * w + (columns % w)[None, :]  # (p, p, L)
        inside = inside_rows[:, None] & inside_columns[None, :]
        channel = places.view(c, h * w)
        members = torch.where(inside, channel[:, flat], -1).reshape(-1, h * w)
        first, last = _runs(classes, block)
        return cls(
            members.to(torch.int32).contiguous(), channel[:, order].to(torch.int32).contiguous(),
            classes.to(torch.int32), first, last, block,
        )  # fmt: skip

    def comparisons(self) -> int:
        """Pairs of positions that one image and one query take, whole blocks counted."""
        return int((self.last - self.first).sum()) * self.block**2


def _reach(length: int, patch: int) -> int:
    return min(patch // 2, length - 1)  # a longer patch is cut at both borders anyway


def _classes(length: int, patch: int, boundary: str) -> torch.Tensor:
    """For each position along an axis, a number that those it is compared with share."""
    position = torch.arange(length)
    if boundary == "circular":
        return torch.zeros_like(position)
    if boundary == "none":
        return 1 + position
    near = _reach(length, patch)
    interior = (position >= near) & (position < length - near)
    return torch.where(interior, 0, 1 + position)


def _runs(classes: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = len(classes)
    starts = torch.arange(0, count, block, device=classes.device)
    ends = (starts + block).clamp(max=count) - 1
    first = torch.searchsorted(classes, classes[starts]) // block
    last = (torch.searchsorted(classes, classes[ends], right=True) - 1) // block + 1
    return first.to(torch.int32), last.to(torch.int32)
