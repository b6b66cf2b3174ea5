"""deepinv where it is installed; tests that need it skip elsewhere."""

import contextlib

import pytest
import torch

# torchvision, which deepinv imports, may be of another torch's build: it then lacks these.
DECLARED = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):
        DECLARED.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
deepinv = pytest.importorskip("deepinv", exc_type=ImportError)
