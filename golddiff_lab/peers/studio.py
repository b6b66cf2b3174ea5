"""Lukoianov et al.'s PCA locality denoiser: a full scan that averages softmax means of batches."""

from __future__ import annotations

from pathlib import Path

import torch

from golddiff.estimators.pca import PCA
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
from golddiff_lab.peers.release import over
from golddiff_lab.sides import Check, Side, SideSpec, Step

BATCH = 512  # batch size in their configuration files
CHECKED = 3  # batches of the equivalence check

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


def make(spec: SideSpec, store: ImageStore) -> Side:
    """``PCALocalityDenoiser`` over the images of ``store``.

    It gets our factor of the covariance, and recomputes the masks at every step.
    """
    assert spec.path is not None
    path, threshold = spec.path, threshold_of(spec.settings, store)
    images = store.images()

    def make_check() -> Check:
        checked = min(CHECKED * BATCH, store.n)
        base = PCA(store, threshold, "wss", BATCH)
        theirs = _step(path, store, images[:checked], threshold)
        text = f"PCA wss over the first {checked:,} images"
        return Check(theirs, lambda x, sigma: over(base, x, sigma, checked), text)

    return Side(_step(path, store, images, threshold), make_check)


def _step(path: Path, store: ImageStore, images: torch.Tensor, threshold: float) -> Step:
    dataset = bundle(store, torch.split(images, BATCH))
    with imported(path / "src", "local_diffusion.models.pca_locality", STUBS) as module:
        module.load_wiener_filter = lambda *a, **k: factor_of(store)
        model = module.PCALocalityDenoiser(dataset, "cpu", 10, params={"mask_threshold": threshold})
        model.train(dataset)

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        timestep = torch.tensor(vp_timestep("analytic-diffusion-studio", sigma))
        x0: torch.Tensor = model.denoise(x * alpha_of_sigma(sigma) ** 0.5, timestep)
        return x0

    return step
