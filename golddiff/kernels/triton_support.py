"""Whether Triton's kernels can run on a device: a GPU, or the CPU under Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import torch

SPLIT_TARGET = 528  # programs that keep the 132 multiprocessors of a large GPU busy, four each


def triton_runs_on(device: torch.device) -> bool:
    """True on a GPU where Triton is installed, and on the CPU with TRITON_INTERPRET=1.

    The interpreter runs the kernels line by line: it is for tests, far too slow for images. The
    variable must be set before the kernels are first imported.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    if device.type == "cuda":
        return os.environ.get("TRITON_INTERPRET") != "1"
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


def parts_of(count: int, block: int, programs: int) -> tuple[int, int]:
    """Cut ``count`` items into parts that fill the GPU: (number of parts, items a part).

    Args:
        count: items, >= 1.
        block: a part holds a multiple of this many items.
        programs: programs that run beside the parts (tiles times queries).
    """
    blocks = -(-count // block)
    parts = max(1, min(blocks, -(-SPLIT_TARGET // max(programs, 1))))
    each = -(-blocks // parts) * block
    return -(-count // each), each
