"""Tile order: the order of an image's values on a device, neighbours side by side.

Values are sorted by squares of 8 x 8 pixels (the squares along a Morton curve), within a square by
channel, row and column. A run of 64 is then one channel of one square, and a local mask touches few
runs. Vectors (D,) keep their order.
"""

from __future__ import annotations

import torch

SIDE = 8
WHOLE_BLOCKS = 128  # a multiple of every block of :mod:`golddiff.kernels.mask_blocks`


def tile_order(shape: tuple[int, ...]) -> torch.Tensor:
    """The values of an image in tile order: (D,) int64 indices into the flattened image."""
    if len(shape) != 3:
        return torch.arange(int(torch.tensor(shape).prod()))
    c, h, w = shape
    channel, y, x = torch.meshgrid(torch.arange(c), torch.arange(h), torch.arange(w), indexing="ij")
    square = _morton(y // SIDE, x // SIDE)
    key = ((square * c + channel) * SIDE + y % SIDE) * SIDE + x % SIDE
    return torch.argsort(key.flatten())


def padded_width(d: int) -> int:
    """D rounded up to whole blocks: how long a row of pixels is on a device."""
    return -(-d // WHOLE_BLOCKS) * WHOLE_BLOCKS


def _morton(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The bits of y and x in turn."""
    code = torch.zeros_like(y)
    for bit in range(16):
        code |= ((x >> bit) & 1) << (2 * bit) | ((y >> bit) & 1) << (2 * bit + 1)
    return code
