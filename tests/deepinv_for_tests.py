"""Imports deepinv, or skips the importing test module if deepinv is not installed."""

import contextlib

import pytest
import torch

# deepinv imports torchvision, which lacks these operators if built for another torch.
TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):
        TORCHVISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
deepinv = pytest.importorskip("deepinv", exc_type=ImportError)
