"""Lukoianov et al.'s PCA locality denoiser: a full scan that averages softmax means of batches."""

from __future__ import annotations

import torch

from golddiff.noise import alpha_of_sigma
from golddiff.store.images import ImageStore
from golddiff_lab.peers.checkout import (
    bundle,
    check_square,
    factor_of,
    imported,
    threshold_of,
    vp_timestep,
)
from golddiff_lab.sides import SideSpec, Step

BATCH = 512  # batch size in their configuration files

# Modules that their package imports but a step of this model does not use.
STUBS: dict[str, list[str]] = {
    "faiss": [],
    "local_diffusion.data": ["DatasetBundle"],
    "local_diffusion.models.nearest_dataset": [],
    "local_diffusion.models.optimal": [],
    "local_diffusion.models.scfdm": [],
    "local_diffusion.models.wiener": [],
    "local_diffusion.utils.neural_networks": ["UNet"],
}


def check(spec: SideSpec, store: ImageStore) -> None:
    """Raise ArgumentError if the images are not square."""
    check_square(store, "their code")


def make(spec: SideSpec, store: ImageStore) -> Step:
    """``PCALocalityDenoiser`` over the images of ``store``.

    It gets our factor of the covariance, and recomputes the masks at every step.
    """
    assert spec.path is not None
    threshold, images = threshold_of(spec.settings, store), store.images()
    dataset = bundle(store, torch.split(images, BATCH))
    with imported(spec.path / "src", "local_diffusion.models.pca_locality", STUBS) as module:
        module.load_wiener_filter = lambda *a, **k: factor_of(store)
        model = module.PCALocalityDenoiser(dataset, "cpu", 10, params={"mask_threshold": threshold})
        model.train(dataset)

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        timestep = torch.tensor(vp_timestep("analytic-diffusion-studio", sigma))
        return model.denoise(x * alpha_of_sigma(sigma) ** 0.5, timestep)

    return step
