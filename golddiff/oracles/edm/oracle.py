"""A network of NVIDIA's as a denoiser D(x, sigma, labels)."""

from __future__ import annotations

import torch

from golddiff.denoiser import Labels, Sigma
from golddiff.errors import ArgumentError
from golddiff.oracles.edm.preconditioning import Preconditioned
from golddiff.oracles.oracle import Images, classes_of, levels


class EDMOracle:
    """A trained network with the call of a denoiser; made by :func:`golddiff.oracles.edm.load_edm`.

    Args:
        network: the network with its preconditioning, in evaluation mode.
        shape: (C, H, W) of its images.
        num_classes: classes that it was trained with; 0: unconditional.
        kind: what it is, in words.
        device: where it runs.
        batch_size: images that it denoises together.

    Attributes:
        shape: (C, H, W).
        num_classes: classes; 0: unconditional.
        sigma_min: lowest noise level that the network was made for. Others are not refused.
        sigma_max: highest; infinity where there is none.
        kind: such as "EDM (SongUNet, DDPM++)".
        store: what :func:`golddiff.sampling.sample` reads of a denoiser's store: ``shape`` and
            ``is_pixels``.
    """

    def __init__(
        self,
        network: Preconditioned,
        shape: tuple[int, int, int],
        num_classes: int,
        kind: str,
        device: torch.device,
        batch_size: int,
    ) -> None:
        self.network = network.to(device)
        self.shape, self.num_classes, self.kind = shape, num_classes, kind
        self.sigma_min, self.sigma_max = network.sigma_min, network.sigma_max
        self.device, self.batch_size = device, batch_size
        self.store = Images(shape)

    @torch.no_grad()
    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Denoise a batch.

        Args:
            x: (B, C, H, W) noisy images x0 + sigma * eps, x0 in [-1, 1]; any float type and device.
            sigma: noise level > 0, one number or (B,).
            labels: class index for all, or (B,) of them; needed by a class-conditional network,
                refused by an unconditional one.

        Returns:
            (B, C, H, W) float32 on x's device.

        Raises:
            ArgumentError: x of another shape, or not finite; sigma not positive and finite; labels
                missing, not wanted, or outside the classes.
        """
        self._check_x(x)
        sigmas = levels(sigma, len(x), torch.float32).to(self.device)
        classes = self._one_hot(labels, len(x))
        made = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        for start in range(0, len(x), self.batch_size):
            part = slice(start, start + self.batch_size)
            made[part] = self.network(
                x[part].to(self.device, torch.float32),
                sigmas[part],
                None if classes is None else classes[part],
            )
        return made

    def _check_x(self, x: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise ArgumentError(f"x: got {kind}, expected a floating-point torch.Tensor")
        if x.ndim != 4 or tuple(x.shape[1:]) != self.shape:
            raise ArgumentError(
                f"x: got shape {tuple(x.shape)}, expected (B, "
                f"{', '.join(map(str, self.shape))}) to match the network"
            )
        if not torch.isfinite(x).all():
            raise ArgumentError("x: it holds NaN or infinity")

    def _one_hot(self, labels: Labels, b: int) -> torch.Tensor | None:
        if self.num_classes == 0:
            if labels is not None:
                raise ArgumentError("labels: this network is unconditional, expected None")
            return None
        if labels is None:
            raise ArgumentError(
                f"labels: this network is class-conditional, expected a class from 0 to "
                f"{self.num_classes - 1}, or one for each image"
            )
        values = classes_of(labels, b)
        for label in values.tolist():
            if not 0 <= label < self.num_classes:
                raise ArgumentError(
                    f"labels: got {label}, expected a class from 0 to {self.num_classes - 1}"
                )
        one_hot = torch.nn.functional.one_hot(values, self.num_classes)
        return one_hot.to(self.device, torch.float32)
