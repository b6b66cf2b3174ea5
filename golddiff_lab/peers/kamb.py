"""Kamb & Ganguli's patch denoisers, ``src/utils/idealscore.py``: full scans."""

from __future__ import annotations

import math

import torch

from golddiff.estimators.kamb import Kamb
from golddiff.noise import alpha_of_sigma
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff_lab.peers.checkout import check_square, imported
from golddiff_lab.sides import SideSpec, Step

BATCH = 64  # default batch size of their code

STUBS: dict[str, list[str]] = {
    "torchvision": ["datasets", "models", "transforms"],
    "torchvision.transforms": [],
}

# Their class for each of our boundary rules.
CLASSES = {"zeros": "LocalEquivBordersScoreModule", "circular": "LocalEquivScoreModule"}


def check(spec: SideSpec, store: ImageStore) -> None:
    """Raise ArgumentError for a missing or unsuitable patch size, or an unsupported boundary."""
    size, boundary = spec.settings.patch_size, spec.settings.boundary or "zeros"
    check_square(store, "their code")
    if not isinstance(size, int):
        raise ArgumentError(f"patch_size: got {size!r}, expected an odd number to race Kamb's code")
    if boundary not in CLASSES:
        raise ArgumentError(f"boundary: got {boundary!r}, expected 'zeros' or 'circular'")
    Kamb(store, size, boundary)  # checks the size
    if not 3 <= size < store.shape[1]:
        raise ArgumentError(
            f"patch_size: got {size}, expected 3 to {store.shape[1] - 1} to race Kamb's code"
        )


def make(spec: SideSpec, store: ImageStore) -> Step:
    """Their score module for the boundary rule and patch size, as a denoiser.

    Their circular module does not wrap the training images, and overweights the images of a
    smaller last batch. Here it gets images padded by wrapping, in batches of equal size, which
    makes it the equivariant machine of their paper.
    """
    assert spec.path is not None
    size, boundary = spec.settings.patch_size, spec.settings.boundary or "zeros"
    assert isinstance(size, int)
    images = store.images()
    if boundary == "circular":
        images = torch.nn.functional.pad(images, (size // 2,) * 4, mode="circular")
    batch = max(b for b in range(1, BATCH + 1) if store.n % b == 0)
    data = torch.utils.data.TensorDataset(images, torch.zeros(len(images)))
    beta = torch.zeros(1)
    with imported(spec.path, "src.utils.idealscore", STUBS) as module:
        model = getattr(module, CLASSES[boundary])(
            data,
            kernel_size=size,
            batch_size=batch,
            image_size=store.shape[1],
            channels=store.shape[0],
            schedule=lambda t: beta,
        )

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        alpha = alpha_of_sigma(sigma)
        beta.fill_(1 - alpha)
        noisy = x * math.sqrt(alpha)
        with torch.no_grad():
            score = model(torch.zeros(1), noisy, device=torch.device("cpu"))
        return (noisy + (1 - alpha) * score) / math.sqrt(alpha)

    return step
