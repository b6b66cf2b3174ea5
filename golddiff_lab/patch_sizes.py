"""The size of patch that a network looks at, at each noise level: Kamb & Ganguli's calibration.

Along runs of the network, Kamb's denoiser predicts from the same noisy images with patches of every
size. A sample's size at a level is the one whose x0 - x points most nearly the network's way (by
the cosine, which is that of the scores); the level's is the median over samples.
Source: Kamb & Ganguli 2024, "An analytic theory of creativity in convolutional diffusion models",
and their released code's levels, choice and median.
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
OnStep = Callable[[float, float], None]


@dataclass(frozen=True)
class Settings:
    """How sizes are measured.

    Attributes:
        sizes: odd sizes to try; None: from 3 to the image's shorter side.
        boundary: of Kamb.
        samples: runs of the network; the authors' 20.
        images: training images that are compared, drawn at random; the authors' 5,000.
        seed: of the runs' noise and of the images.

    Raises:
        ArgumentError: a size that is not odd; an unknown boundary; a count below 1.
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
    """What was measured, noise levels ascending.

    Attributes:
        sigmas: (L,) noise levels.
        sizes: (P,) sizes tried.
        cosines: (L, P, samples) of each size's prediction and the network's.
    """

    sigmas: list[float]
    sizes: list[int]
    cosines: F64

    @property
    def chosen(self) -> I64:
        """(L, samples) the size of each sample; of equals the smaller."""
        chosen: I64 = np.array(self.sizes)[self.cosines.argmax(axis=1)]
        return chosen

    @property
    def pairs(self) -> list[tuple[float, int]]:
        """(sigma, size) as ``patch_sizes`` of :class:`golddiff.Kamb` takes them.

        The median over samples, of two middle ones the smaller, as theirs.
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
    """Measure the sizes; see the module.

    Args:
        network: its predictions without a class.
        store: its training images.
        settings: see there.
        on_step: called with the work done and all of it, in units of its own.

    Raises:
        ArgumentError: a network for images of another shape.
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
    # Positions compared along one axis: what a prediction's time goes with.
    runs = [Axis.of(side, size, boundary).runs for size in tried]
    work = [float((run[:, 1] - run[:, 0]).sum()) for run in runs]
    done, total = 0.0, len(sigmas) * sum(work)
    start, cosines = initial_noise(settings.samples, store.shape, settings.seed), []
    # Their runs do not clip predictions.
    for state in SAMPLERS["ddim"].run(network, start, sigmas, False):
        x = state.x.flatten(1)
        theirs, found = state.x0.flatten(1).double() - x, []
        for denoiser, part in zip(denoisers, work, strict=True):
            x0 = torch.from_numpy(denoiser.denoise_over(x.numpy(), state.sigma, within))
            found.append(torch.cosine_similarity(x0.double() - x, theirs).numpy())
            done += part
            on_step(done, total)
        cosines.append(np.stack(found))
    return Calibration(sigmas[::-1], tried, np.stack(cosines[::-1]))
