"""A denoiser of golddiff where deepinv takes one: DPS, PiGDM, DDRM, DiffPIR, PosteriorDiffusion.

Needs the extra ``deepinv``. deepinv's images lie in [0, 1], half as far apart as here, and so does
its noise: D'(x, s) = (D(2 x - 1, 2 s) + 1) / 2.
"""

from __future__ import annotations

from typing import Any

import torch

from golddiff.noise import Labels
from golddiff.system.errors import ArgumentError

try:
    from deepinv.models import Denoiser
except ImportError as error:
    raise ImportError(
        f"golddiff.deepinv needs deepinv, which does not import ({error}); "
        "install it with: pip install 'golddiff[deepinv]'"
    ) from error


class AnalyticDenoiser(Denoiser):  # type: ignore[misc]
    """The denoiser as a ``deepinv.models.Denoiser``: its range, its noise levels, its gradients.

    Over ``Optimal`` it is deepinv's own ``MMSE``, computed faster.

    Args:
        denoiser: of golddiff, over pixels.
        labels: a class for all images, or one each; None: all classes.

    Raises:
        ArgumentError: no denoiser; one over latents or points, which have no range [0, 1].
    """

    def __init__(self, denoiser: Any, labels: Labels = None) -> None:
        super().__init__()
        if not callable(denoiser) or not hasattr(denoiser, "store"):
            raise ArgumentError(f"denoiser: got {type(denoiser).__name__}, expected a Denoiser")
        if not denoiser.store.is_pixels:
            raise ArgumentError(
                "denoiser: its store holds floats, expected uint8 images, whose range is known"
            )
        self.denoiser, self.labels = denoiser, labels

    def extra_repr(self) -> str:
        """The denoiser, in what ``print`` shows."""
        return repr(self.denoiser)

    def forward(self, x: torch.Tensor, sigma: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """E[x0 | x] in [0, 1] of noisy images (B, C, H, W).

        Args:
            x: noisy images in deepinv's range.
            sigma: noise level in that range: a number, or one for each image in any shape.
            *args: what deepinv hands to some models; not used.
            **kwargs: likewise.
        """
        level = torch.as_tensor(sigma, device=x.device).to(torch.float64).reshape(-1)
        level = level if level.numel() > 1 else level.reshape(())
        x0: torch.Tensor = (self.denoiser(2 * x - 1, 2 * level, self.labels) + 1) / 2
        return x0.to(x.dtype)
