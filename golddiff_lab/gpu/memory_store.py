"""A store whose images lie in memory: made-up data at full size, with no hours of indexing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.sources.patches import open_patches
from golddiff.sources.source_options import SourceOptions
from golddiff.store.artifacts import Artifacts
from golddiff.store.factors import Factors
from golddiff.store.images import ImageStore
from golddiff.store.proxy import pool
from golddiff.store.rows import counts_of
from golddiff.store.statistics import Factor
from golddiff.system.residency import DEFAULT_LIMIT, Residency
from golddiff_lab.gpu.cases import Case

CHUNK = 4096
PROXIES_AT_ONCE = 16_384

# The covariance of so many images stands for that of all; the masks need no more.
FACTOR_IMAGES = 25_000


class MemoryStore(ImageStore):
    """An :class:`golddiff.ImageStore` of uint8 images that was never on disk.

    Args:
        pixels: (n, D) uint8.
        shape: (C, H, W).
        labels: (n,) int64, or None.
        device: where the covariance is factored.
    """

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        shape: tuple[int, int, int],
        labels: torch.Tensor | None,
        device: torch.device,
    ) -> None:
        self.residency = Residency(DEFAULT_LIMIT)  # of no file: nothing is mapped
        self.flat = pixels
        self.n, self.shape, self.d = len(pixels), shape, math.prod(shape)
        self.labels = labels
        self.class_names = None
        self.scale, self.offset = 1 / 127.5, -1.0
        self._device = device
        self.is_pixels = True
        self.class_counts = counts_of(None if labels is None else labels.numpy())
        self.classes = list(self.class_counts)
        self._rows = {None: np.arange(self.n)}
        self._proxies = {}
        self._factor: Factor | None = None
        self.artifacts = Artifacts(Path("nowhere"), "")
        self.factors = Factors(self, lambda images, *_: images.factor())

    def factor(
        self, label: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> Factor:
        """Mean and covariance of up to ``FACTOR_IMAGES`` images, evenly spread, in float32."""
        if self._factor is None:
            rows = np.linspace(0, self.n - 1, min(self.n, FACTOR_IMAGES)).astype(np.int64)
            mean = torch.zeros(self.d, device=self._device)
            second = torch.zeros(self.d, self.d, device=self._device)
            for start in range(0, len(rows), CHUNK):
                values = torch.from_numpy(self.values(rows[start : start + CHUNK]))
                values = values.to(self._device)
                mean += values.sum(dim=0)
                second.addmm_(values.T, values)
            mean /= len(rows)
            second = (second - len(rows) * torch.outer(mean, mean)) / (len(rows) - 1)
            eigenvalues, vectors = torch.linalg.eigh(second)
            keep = eigenvalues > 1e-7 * eigenvalues[-1]
            self._factor = Factor(
                mean.double().cpu().numpy(),
                eigenvalues[keep].flip(0).double().cpu().numpy(),
                vectors[:, keep].flip(1).double().cpu().numpy(),
                len(rows),
            )
        return self._factor

    def proxies(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Average-pooled images of a shape, (n, d'); kept in memory once made."""
        if shape not in self._proxies:
            made = np.empty((self.n, math.prod(shape)), np.float32)
            for start in range(0, self.n, PROXIES_AT_ONCE):
                rows = self._rows[None][start : start + PROXIES_AT_ONCE]
                made[rows] = pool(self.values(rows).reshape(-1, *self.shape), shape)
            self._proxies[shape] = made
        return self._proxies[shape]

    def __repr__(self) -> str:
        return f"MemoryStore({self.n:,} x {self.shape} uint8)"


def patches_for(case: Case, device: torch.device, seed: int = 0) -> MemoryStore:
    """Crops of photographs, as many and as large as the case's images."""
    channels, side, _ = case.shape
    source = open_patches(SourceOptions(size=side, channels=channels, limit=case.n, seed=seed))
    pixels = np.empty((case.n, math.prod(case.shape)), np.uint8)
    done = 0
    for batch in source.batches(CHUNK):
        pixels[done : done + len(batch.pixels)] = batch.pixels.reshape(len(batch.pixels), -1)
        done += len(batch.pixels)
    labels = None if case.classes is None else torch.arange(case.n) % case.classes
    return MemoryStore(pixels, case.shape, labels, device)
