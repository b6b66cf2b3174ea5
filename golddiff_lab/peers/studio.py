"""Lukoianov et al.'s PCA locality denoiser: a full scan, averaging the softmaxes of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from golddiff.errors import ArgumentError
from golddiff.estimators.pca import PCA
from golddiff.noise import alpha_of_sigma
from golddiff.registry import default_mask_threshold
from golddiff.store.images import ImageStore
from golddiff.support import Support
from golddiff_lab.peers.checkout import imported, vp_timestep
from golddiff_lab.race.side import Check, Side, SideSpec, Step
from golddiff_lab.race.work import dense_pca_work

BATCH = 512  # images at once in their configuration files
CHECKED = 3 * BATCH

# Imported by their package, not used by a step of this model.
STUBS: dict[str, list[str]] = {
    "faiss": [],
    "local_diffusion.data": ["DatasetBundle"],
    "local_diffusion.models.nearest_dataset": [],
    "local_diffusion.models.optimal": [],
    "local_diffusion.models.scfdm": [],
    "local_diffusion.models.wiener": [],
    "local_diffusion.utils.neural_networks": ["UNet"],
}


def make(spec: SideSpec, store: ImageStore) -> Side:
    """``PCALocalityDenoiser`` over the images of ``store``, or over the first ``spec.images``.

    The same covariance as ours is given to it; the masks it makes anew at every step.

    Raises:
        ArgumentError: images that are not square.
    """
    assert spec.path is not None
    path = spec.path
    if len(store.shape) != 3 or store.shape[1] != store.shape[2]:
        raise ArgumentError(f"store: got shape {store.shape}, their code takes square images")
    threshold = spec.settings.mask_threshold
    if threshold is None:
        threshold = default_mask_threshold(store.shape)
    part = spec.images // (4 * BATCH) * 4 * BATCH  # a quarter of it is whole batches
    count = part if 0 < part < store.n else store.n
    rank = store.factor().eigenvectors.shape[1]
    images = store.images(slice(count))

    def check() -> Check:
        checked = min(CHECKED, store.n)
        base = PCA(store, threshold, "wss", BATCH)
        rows = Support(store.rows_of(None)[:checked])

        def ours(x: torch.Tensor, sigma: float) -> torch.Tensor:
            out = base.denoise_over(x.reshape(len(x), -1).numpy(), sigma, rows)
            return torch.from_numpy(out).reshape(x.shape)

        theirs = _step(path, store, images[:checked], threshold)
        return Check(theirs, ours, f"PCA wss over the first {checked:,} images")

    return Side(
        _step(path, store, images, threshold),
        lambda x, sigma: dense_pca_work(len(x), store.n, store.d, rank + store.d, shared=True),
        check,
        images=count if count < store.n else None,
        half=_step(path, store, images[: count // 2], threshold),
        quarter=_step(path, store, images[: count // 4], threshold),
    )


def _step(path: Path, store: ImageStore, images: torch.Tensor, threshold: float) -> Step:
    class Bundle:
        name = "benchmark"
        resolution = store.shape[1]
        in_channels = store.shape[0]
        dataloader: Any = torch.split(images, BATCH)

    factor = store.factor()
    vectors = torch.from_numpy(factor.eigenvectors).float()
    spectrum, mean = (torch.from_numpy(a).float() for a in (factor.eigenvalues, factor.mean))
    with imported(path / "src", "local_diffusion.models.pca_locality", STUBS) as module:
        module.load_wiener_filter = lambda *a, **k: (vectors, spectrum, vectors.T, mean)
        model = module.PCALocalityDenoiser(Bundle, "cpu", 10, params={"mask_threshold": threshold})
        model.train(Bundle)

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        timestep = torch.tensor(vp_timestep("analytic-diffusion-studio", sigma))
        x0: torch.Tensor = model.denoise(x * alpha_of_sigma(sigma) ** 0.5, timestep)
        return x0

    return step
