"""Where the Triton kernels are tested: on the GPU if there is one, else under the interpreter."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install 'golddiff[gpu]'")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SCALE, OFFSET = 1 / 127.5, -1.0


def stored_images(generator, n, d, width):
    """Random 8-bit images (n, width), columns from d on 0, and their values (n, d) float64."""
    pixels = torch.zeros((n, width), dtype=torch.uint8)
    pixels[:, :d] = torch.randint(0, 256, (n, d), generator=generator, dtype=torch.uint8)
    return pixels.to(DEVICE), pixels[:, :d].numpy().astype(np.float64) / 127.5 - 1


def random_rows(generator, n, k, b):
    """k of n rows, with repeats, for each of b queries: (b, k)."""
    return torch.randint(0, n, (b, k), generator=generator).to(DEVICE)
