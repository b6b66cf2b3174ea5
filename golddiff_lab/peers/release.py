"""The authors' release, ``methods/ours.py``: GoldDiff over PCA with a random preselection."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from golddiff.noise import alpha_of_sigma
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff_lab.peers.checkout import (
    bundle,
    check_square,
    factor_of,
    imported,
    released_schedule,
    threshold_of,
    vp_timestep,
)
from golddiff_lab.sides import SideSpec, Step

# Modules that the release imports but a step does not use.
STUBS = {
    "data_src": ["DatasetBundle"],
    "methods.baseline_unet": [],
    "methods.baseline_edm_unconditional": [],
    "methods.baseline_edm_conditional": [],
}


def check(spec: SideSpec, store: ImageStore) -> None:
    """Raise ArgumentError for a store or settings that the release does not support."""
    check_square(store, "the release")
    if spec.settings.variant == "text":
        raise ArgumentError("variant: got 'text', but the release only has its own schedule")
    _sizes(spec, store)


def make(spec: SideSpec, store: ImageStore) -> Step:
    """``OursDenoiser`` with its configuration files' settings, over the images of ``store``.

    It gets our factor of the covariance, so factoring is not timed. It recomputes the masks at
    every step, and that is timed.
    """
    assert spec.path is not None
    torch.manual_seed(spec.seed)  # the release draws from torch's global generator
    batches, threshold = torch.split(store.images(), 256), threshold_of(spec.settings, store)
    return release_step(spec.path, store, batches, threshold, _sizes(spec, store))


def _sizes(spec: SideSpec, store: ImageStore) -> tuple[int, int]:
    schedule = released_schedule(spec.settings)
    return schedule.budgets(1e-9, store.n)[1], schedule.budgets(1e9, store.n)[1]


def release_step(
    path: Path,
    store: ImageStore,
    batches: Iterable[torch.Tensor],
    threshold: float,
    sizes: tuple[int, int],
    device: str = "cpu",
) -> Step:
    """Create a step of the release in the checkout ``path``.

    The store supplies the image shape and the covariance, ``batches`` the training images,
    (b, *shape) each. ``sizes`` are k_min and k_max.
    """
    low = next(side for side in (16, 14, store.shape[1]) if store.shape[1] % side == 0)
    params = {
        "mask_threshold": threshold, "k_min": sizes[0], "k_max": sizes[1], "low_res_dim": low,
    }  # fmt: skip
    dataset = bundle(store, batches)
    with imported(path, "methods.ours", STUBS) as module:
        model = module.OursDenoiser(dataset, device, 10, params=params)
        model._load_or_compute_wiener_svd = lambda *a, **k: factor_of(store)
        model.train(dataset)
    del dataset.dataloader  # type: ignore[attr-defined]

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        # On the CPU as in its ``sample``, because the noise schedule's tensor is on the CPU.
        timestep = torch.tensor(vp_timestep("the release", sigma))
        return model.denoise(x * alpha_of_sigma(sigma) ** 0.5, timestep)

    return step
