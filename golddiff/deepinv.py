"""golddiff denoisers for deepinv: DPS, PiGDM, DDRM, DiffPIR, PosteriorDiffusion.

Needs the extra ``deepinv``. Images of deepinv are in [0, 1] instead of [-1, 1], which halves noise
levels as well: D'(x, s) = (D(2 x - 1, 2 s) + 1) / 2.
"""

from __future__ import annotations

from typing import Any

import torch

from golddiff.noise import LEAST_SIGMA, Labels
from golddiff.samplers import check_denoises
from golddiff.system.errors import ArgumentError

try:
    from deepinv.models import Denoiser
except ImportError as error:
    raise ImportError(
        f"golddiff.deepinv needs deepinv, which does not import ({error}); "
        "install it with: pip install 'golddiff[deepinv]'"
    ) from error


class AnalyticDenoiser(Denoiser):  # type: ignore[misc]
    """A denoiser as a ``deepinv.models.Denoiser``, with deepinv's range and noise levels.

    Gradients are supported. With ``Optimal`` it equals deepinv's ``MMSE``, but is faster.

    Args:
        denoiser: golddiff denoiser over pixels.
        labels: a class for all images, or one per image; None: all classes.

    Raises:
        ArgumentError: not a denoiser, or one over latents or points, which have no range [0, 1].
    """

    def __init__(self, denoiser: Any, labels: Labels = None) -> None:
        super().__init__()
        check_denoises(denoiser)
        if not denoiser.store.is_pixels:
            raise ArgumentError(
                "denoiser: its store holds floats without value_range=, expected pixels"
            )
        self.denoiser, self.labels = denoiser, labels

    def extra_repr(self) -> str:
        """The denoiser, for ``print``."""
        return repr(self.denoiser)

    def forward(self, x: torch.Tensor, sigma: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """E[x0 | x] in [0, 1] for noisy images (B, C, H, W).

        Args:
            x: noisy images in deepinv's range.
            sigma: noise level in deepinv's range: a number, or one per image in any shape. Some
                samplers end at 0, which counts as 1e-9.
            *args: ignored; deepinv passes them to some models.
            **kwargs: ignored.

        Raises:
            ArgumentError: no noise level, or labels, which are given to the constructor.
        """
        if sigma is None:
            raise ArgumentError("sigma: got None, expected a noise level")
        if kwargs.get("labels") is not None:
            raise ArgumentError("labels: give them to AnalyticDenoiser, not to its call")
        # At once in float64: a golden subset drawn at random depends on every bit of sigma.
        level = torch.as_tensor(sigma, dtype=torch.float64, device=x.device).reshape(-1)
        level = torch.where(level == 0, LEAST_SIGMA, level)
        x0: torch.Tensor = (self.denoiser(2 * x - 1, 2 * level, self.labels) + 1) / 2
        return x0.to(x.dtype)
