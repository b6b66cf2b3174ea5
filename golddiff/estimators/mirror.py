"""Denoisers over mirrored images: for sets where an image's mirror image is as likely as itself.

Let F swap left and right. F is orthogonal, so F (x0 + sigma eps) is F x0 with noise of the same
law, and the posterior mean under the prior of the mirrored images is F D(F x). Where the images'
distribution is its own mirror image, m(x) = E[x0 | x] has m(x) = F m(F x): D and F D(F x)
approximate the same m, and their mean errs no more than D does, since

    E ||(D(x) + F D(F x)) / 2 - m(x)||^2 <= (E ||D(x) - m(x)||^2 + E ||F D(F x) - m(x)||^2) / 2

and both terms on the right are the same number.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.support import Prior
from golddiff.system.errors import ArgumentError


class OfMirrored(Denoiser):
    """What :class:`Mirrored` and :class:`Symmetrised` share: the denoiser and the mirroring.

    Args:
        denoiser: over images (C, H, W), pixels or latents.

    Raises:
        ArgumentError: no denoiser, or one over points.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        if not isinstance(denoiser, Denoiser):
            raise ArgumentError(f"denoiser: got {type(denoiser).__name__}, expected a Denoiser")
        if denoiser.priors:
            raise ArgumentError("denoiser: has log weights, which mirror images do not")
        if len(denoiser.store.shape) != 3:
            raise ArgumentError(
                f"denoiser: is over points of shape {denoiser.store.shape}, expected images, which "
                "have a left and a right"
            )
        super().__init__(denoiser.store)
        self.denoiser = denoiser

    @abstractmethod
    def denoise(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> NDArray[np.float32]:
        """Posterior means (b, D)."""

    def mirror(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """F x of images (b, D)."""
        swapped = x.reshape(-1, *self.store.shape)[..., ::-1]
        return np.ascontiguousarray(swapped).reshape(x.shape)


class Mirrored(OfMirrored):
    """F D(F x): the denoiser over the mirror images of what it is made of."""

    def denoise(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> NDArray[np.float32]:
        """Posterior means (b, D), in the time of the denoiser itself."""
        return self.mirror(self.denoiser.denoise(self.mirror(x), sigma, prior))


class Symmetrised(OfMirrored):
    """(D(x) + F D(F x)) / 2: as alike for an image and its mirror image as their noise is."""

    def denoise(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> NDArray[np.float32]:
        """Posterior means (b, D), in the time that the denoiser takes for twice as many."""
        both = self.denoiser.denoise(np.concatenate([x, self.mirror(x)]), sigma, prior)
        there, back = both[: len(x)], both[len(x) :]
        mean: NDArray[np.float32] = (there + self.mirror(back)) / np.float32(2)
        return mean
