"""Locality masks as a list of small dense blocks, for matrix units.

In tile order (:mod:`golddiff.device.order`) neighbouring values lie side by side, so the mask of a
tile of neighbouring outputs touches few blocks of inputs. Blocks without an entry are left out:
they cost neither memory nor operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tiling:
    """How a mask is cut, and how a program over it is shaped.

    Attributes:
        inputs, outputs: sides of a block, powers of two, 16 or more each.
        images: images that a program takes at a time, a power of two, 16 or more.
        warps: warps of 32 threads a program.
    """

    inputs: int
    outputs: int
    images: int
    warps: int


# Compiled for sm_90 neither spills registers: tests/kernels/test_compiled.py.
WIDE = Tiling(inputs=64, outputs=128, images=128, warps=8)
NARROW = Tiling(inputs=32, outputs=64, images=64, warps=4)

# A narrow tile shares each squared difference among half as many outputs: about 10 instructions at
# 128 a clock and multiprocessor, beside products of 64 or 128 at 2048. So it must save a quarter.
NARROW_PAYS = 0.75


@dataclass(frozen=True)
class MaskBlocks:
    """The blocks of a mask (D, D), indexed [input, output], that hold an entry.

    Attributes:
        start: (tiles + 1,) int64, where a tile of outputs has its blocks in the lists.
        inputs: (entries,) int32, which block of inputs an entry is of.
        values: (entries, tiling.outputs, tiling.inputs) float16, 0 or 1 (both exact).
        d: D.
        tiling: how it is cut.
    """

    start: torch.Tensor
    inputs: torch.Tensor
    values: torch.Tensor
    d: int
    tiling: Tiling

    @classmethod
    def of(cls, mask: torch.Tensor, tiling: Tiling) -> MaskBlocks:
        """Cut a mask (D, D) bool, on any device; ragged edges are filled with 0."""
        d = len(mask)
        rows, tiles = -(-d // tiling.inputs), -(-d // tiling.outputs)
        padded = torch.zeros(
            rows * tiling.inputs, tiles * tiling.outputs, dtype=torch.bool, device=mask.device
        )
        padded[:d, :d] = mask
        blocks = padded.view(rows, tiling.inputs, tiles, tiling.outputs).permute(2, 0, 3, 1)
        tile, row = blocks.any(dim=3).any(dim=2).nonzero(as_tuple=True)
        start = torch.zeros(tiles + 1, dtype=torch.int64, device=mask.device)
        start[1:] = torch.bincount(tile, minlength=tiles).cumsum(0)
        values = blocks[tile, row].to(torch.float16).contiguous()
        return cls(start, row.to(torch.int32), values, d, tiling)

    @classmethod
    def best(cls, mask: torch.Tensor) -> MaskBlocks:
        """The cut that costs less on a large GPU, by count: wide blocks, or narrow ones."""
        wide, narrow = block_share(mask, WIDE), block_share(mask, NARROW)
        return cls.of(mask, NARROW if narrow < NARROW_PAYS * wide else WIDE)

    def dense(self) -> torch.Tensor:
        """The mask (D, D) bool again: what the plain twin multiplies by."""
        rows, tiles = -(-self.d // self.tiling.inputs), len(self.start) - 1
        blocks = self.values.new_zeros(tiles, rows, self.tiling.outputs, self.tiling.inputs)
        counts = self.start[1:] - self.start[:-1]
        tile = torch.repeat_interleave(torch.arange(tiles, device=counts.device), counts)
        blocks[tile, self.inputs.long()] = self.values
        dense = blocks.permute(1, 3, 0, 2).reshape(
            rows * self.tiling.inputs, tiles * self.tiling.outputs
        )
        return dense[: self.d, : self.d] > 0

    def multiplications(self) -> int:
        """Multiply-adds that one image of one query takes, for one part of a term."""
        return self.values.numel()

    def bytes(self) -> int:
        """Memory that the lists take."""
        return sum(t.numel() * t.element_size() for t in (self.start, self.inputs, self.values))


def block_share(mask: torch.Tensor, tiling: Tiling) -> float:
    """The share of a mask's blocks (D, D) that hold an entry, 0 to 1."""
    rows, tiles = -(-len(mask) // tiling.inputs), -(-len(mask) // tiling.outputs)
    short = (tiles * tiling.outputs - len(mask), rows * tiling.inputs - len(mask))
    padded = torch.nn.functional.pad(mask, (0, short[0], 0, short[1]))
    blocks = padded.view(rows, tiling.inputs, tiles, tiling.outputs)
    return float(blocks.any(dim=3).any(dim=1).float().mean())
