"""Niedoba et al.'s PSPC-Square, ``pspc/denoisers.py``: a full scan for each patch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from golddiff.estimators.pspc import PSPCSquare
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff_lab.peers.checkout import check_square, imported
from golddiff_lab.sides import SideSpec, Step


def check(spec: SideSpec, store: ImageStore) -> None:
    """Raise ArgumentError unless images are square 8-bit pixels and patches fit into them."""
    check_square(store, "their code")
    if not store.is_pixels:
        raise ArgumentError("store: holds floats, their code takes 8-bit images")
    _ours(spec, store)


def make(spec: SideSpec, store: ImageStore) -> Step:
    """``PSPCSquareDenoiser`` over the images of ``store``, with the patch sizes of our method."""
    assert spec.path is not None
    ours = _ours(spec, store)
    with imported(spec.path, "pspc.denoisers", {}) as module:
        model: Any = module.PSPCSquareDenoiser(_Images(store), torch.tensor([store.shape[1]]))
    model.patch_size_schedule = lambda t: min(ours.patch_size(t), store.shape[1])

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        with torch.no_grad():
            x0: torch.Tensor = model(x, torch.full((len(x),), sigma))
        return x0

    return step


def _ours(spec: SideSpec, store: ImageStore) -> PSPCSquare:
    return PSPCSquare(store, spec.settings.patch_size)  # type: ignore[arg-type]  # checked inside


class _Images:
    """A data set with the attributes that their code uses."""

    def __init__(self, store: ImageStore) -> None:
        self.image_shape = list(store.shape)
        self.num_channels, self.resolution = store.shape[:2]
        self._pixels = np.asarray(store.flat).reshape(-1, *store.shape)

    def __len__(self) -> int:
        return len(self._pixels)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return ((image.copy(), 0) for image in self._pixels)
