"""Calibrate patch sizes to a network at each noise level, as Kamb & Ganguli do.

At the states of runs of the network, Kamb's denoiser predicts x0 with every patch size. A sample's
size is the one whose x0 - x has the highest cosine with the network's, which equals the cosine of
the scores. The size of a level is the median over samples.
Source: Kamb & Ganguli 2024, "An analytic theory of creativity in convolutional diffusion models".
Levels, selection and median follow their released code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from golddiff.estimators.kamb import Kamb, calibration_sigma, check_boundary
from golddiff.evaluation.compare import check_oracle
from golddiff.kernels.kamb_cpu import Axis
from golddiff.oracles.oracle import Oracle
from golddiff.samplers import SAMPLERS, initial_noise
from golddiff.store.images import ImageStore
from golddiff.support import RandomSample
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F64, I64, check_count, check_seed

LEVELS = 20
OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Settings:
    """Settings of the calibration.

    Attributes:
        sizes: odd sizes to try; None: from 3 to the image's shorter side.
        boundary: boundary rule of Kamb.
        samples: number of runs of the network; the authors use 20.
        images: number of random training images to compare with; the authors use 5,000.
        seed: seed of the runs' noise and of the choice of images.

    Raises:
        ArgumentError: a size that is not odd, an unknown boundary, or a count below 1.
    """

    sizes: tuple[int, ...] | None = None
    boundary: str = "zeros"
    samples: int = 8
    images: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for size in self.sizes or ():
            if size < 1 or size % 2 == 0:
                raise ArgumentError(f"sizes: got {size}, expected odd numbers of 1 or more")
        check_boundary(self.boundary)
        check_count("samples", self.samples)
        check_count("images", self.images)
        check_seed(self.seed)


@dataclass(frozen=True)
class Calibration:
    """Result of the calibration, with noise levels in ascending order.

    Attributes:
        sigmas: (L,) noise levels.
        sizes: (P,) sizes tried.
        cosines: (L, P, samples) cosine between each size's prediction and the network's.
    """

    sigmas: list[float]
    sizes: list[int]
    cosines: F64

    @property
    def chosen(self) -> I64:
        """(L, samples) the best size of each sample; ties go to the smaller size."""
        return np.array(self.sizes)[self.cosines.argmax(axis=1)]

    @property
    def pairs(self) -> list[tuple[float, int]]:
        """Pairs (sigma, size) for ``patch_sizes`` of :class:`golddiff.Kamb`.

        The size is the median over samples; of two middle ones the smaller, as in their code.
        """
        ordered = np.sort(self.chosen, axis=1)
        medians = ordered[:, (ordered.shape[1] - 1) // 2]
        return list(zip(self.sigmas, medians.tolist(), strict=True))


def calibrated(
    network: Oracle,
    store: ImageStore,
    settings: Settings,
    on_step: OnStep = lambda done, total: None,
) -> Calibration:
    """Run the calibration described in the module's docstring, without classes.

    ``on_step`` is called with the finished and the total work, in arbitrary units.
    """
    check_oracle(network, store)
    side, boundary = min(store.shape[1:]), settings.boundary
    tried = sorted(set(settings.sizes or range(3, side + 1, 2)))
    denoisers = [Kamb(store, size, boundary) for size in tried]
    within = store.everything(None)
    if settings.images < store.n:
        within = within.sampled(RandomSample(settings.images, (settings.seed,)))
    sigmas = [calibration_sigma(i / LEVELS) for i in range(LEVELS, 0, -1)]
    sigmas = [s for s in sigmas if network.sigma_min <= s <= network.sigma_max]
    # A prediction's time is proportional to the positions compared along one axis.
    runs = [Axis.of(side, size, boundary).runs for size in tried]
    work = [int((run[:, 1] - run[:, 0]).sum()) for run in runs]
    done, total = 0, len(sigmas) * sum(work)
    start, cosines = initial_noise(settings.samples, store.shape, settings.seed), []
    # As in their code, predictions are not clipped.
    for state in SAMPLERS["ddim"].run(network, start, sigmas, False):
        x = state.x.flatten(1)
        direction, by_size = state.x0.flatten(1).double() - x, []
        for denoiser, cost in zip(denoisers, work, strict=True):
            x0 = torch.from_numpy(denoiser.denoise_over(x.numpy(), state.sigma, within))
            by_size.append(torch.cosine_similarity(x0.double() - x, direction).numpy())
            done += cost
            on_step(done, total)
        cosines.append(np.stack(by_size))
    return Calibration(sigmas[::-1], tried, np.stack(cosines[::-1]))
