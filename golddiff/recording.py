"""Records the images that each denoising step of a run weighs, and the sources of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from golddiff.attribution import Attribution
from golddiff.kernels.contributions import Weights
from golddiff.noise import Labels, Sigma
from golddiff.system.numbers import F64, I64


@dataclass(frozen=True)
class Subsets:
    """The number of images that each denoiser call of a run weighed, for each of n outputs.

    One entry per call: one per step for DDIM; Heun's corrections are calls of their own.

    Attributes:
        sigmas: noise level of each call.
        screened: (calls, n) number m of candidates for the golden subset; N without a subset.
        kept: (calls, n) number k of images weighed.
        effective: (calls, n) effective number of images, averaged over locations.
    """

    sigmas: list[float]
    screened: I64
    kept: I64
    effective: F64

    @classmethod
    def of(cls, batches: list[Recorder]) -> Subsets:
        """The figures of consecutive batches of one run."""
        counts = np.concatenate([np.array(batch.counts) for batch in batches], axis=1)
        screened, kept, effective = np.moveaxis(counts, 2, 0)
        return cls(batches[0].sigmas, screened.astype(int), kept.astype(int), effective)


class Recorder:
    """Wraps a denoiser and records the images that each call weighs."""

    def __init__(self, denoiser: Any) -> None:
        self.denoiser = denoiser
        self.store = denoiser.store
        self.sigmas: list[float] = []
        self.counts: list[list[tuple[int, int, float]]] = []  # of each call and query
        self._last: tuple[torch.Tensor, Sigma, Labels] | None = None

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Call ``denoiser``, and record its supports."""
        schedule, counts = getattr(self.denoiser, "schedule", None), []
        for estimator, support, query, level, prior in self.denoiser.supported(x, sigma, labels):
            effective = float(Weights(estimator, support, query, level, top=1).effective.mean())
            images = self.store.count_of(prior)
            screened = images if schedule is None else schedule.budgets(level, images)[0]
            counts.append((screened, len(support), effective))
        self.sigmas.append(level)
        self.counts.append(counts)
        self._last = (x, sigma, labels)
        return self.denoiser(x, sigma, labels)

    def attributions(self) -> list[Attribution]:
        """The sources of the last call's outputs."""
        assert self._last is not None
        return self.denoiser.attribute(*self._last)
