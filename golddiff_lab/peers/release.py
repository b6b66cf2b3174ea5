"""The authors' release, ``methods/ours.py``: GoldDiff over PCA with random pre-samples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from golddiff.estimators.pca import PCA
from golddiff.noise import alpha_of_sigma
from golddiff.store.images import ImageStore
from golddiff.support import Support
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
from golddiff_lab.sides import Check, Side, SideSpec, Step

CHECKED = 1500  # images over which both sides weigh everything

# Imported by the release, not used by a step.
STUBS = {
    "data_src": ["DatasetBundle"],
    "methods.baseline_unet": [],
    "methods.baseline_edm_unconditional": [],
    "methods.baseline_edm_conditional": [],
}


def check(spec: SideSpec, store: ImageStore) -> None:
    """Refuse a store or settings that the release has no counterpart of."""
    check_square(store, "the release")
    if spec.settings.variant == "text":
        raise ArgumentError("variant: got 'text', the release has its own schedule only")
    _sizes(spec, store)


def make(spec: SideSpec, store: ImageStore) -> Side:
    """``OursDenoiser`` as its configuration files set it, over the images of ``store``.

    The same covariance as ours is given to it: factoring it is no part of a step. The masks are:
    it makes them anew at every step.
    """
    assert spec.path is not None
    path, threshold = spec.path, threshold_of(spec.settings, store)
    torch.manual_seed(spec.seed)  # of its random draws
    batches = torch.split(store.images(), 256)
    step = release_step(path, store, batches, threshold, _sizes(spec, store))

    def made() -> Check:
        count = min(CHECKED, store.n)
        base = PCA(store, threshold)
        batches = torch.split(store.images(slice(count)), 256)
        theirs = release_step(path, store, batches, threshold, (count, count))
        return Check(
            theirs,
            lambda x, sigma: over(base, x, sigma, count),
            f"PCA over the first {count:,} images, all of them in the subset",
        )

    return Side(step, made)


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
    """A step of the release.

    Args:
        path: a checkout.
        store: gives the images' shape and covariance.
        batches: the images that it is given, (b, *shape) each.
        threshold: of masks.
        sizes: k_min and k_max.
        device: where it runs.
    """
    low = next(side for side in (16, 14, store.shape[1]) if store.shape[1] % side == 0)
    params = {
        "mask_threshold": threshold, "k_min": sizes[0], "k_max": sizes[1], "low_res_dim": low,
    }  # fmt: skip
    given = bundle(store, batches)
    with imported(path, "methods.ours", STUBS) as module:
        model = module.OursDenoiser(given, device, 10, params=params)
        model._load_or_compute_wiener_svd = lambda *a, **k: factor_of(store)
        model.train(given)
    del given.dataloader  # type: ignore[attr-defined]

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        # As its ``sample`` does: the noise schedule's own tensor stays on the processor.
        timestep = torch.tensor(vp_timestep("the release", sigma))
        x0: torch.Tensor = model.denoise(x * alpha_of_sigma(sigma) ** 0.5, timestep)
        return x0

    return step


def over(base: PCA, x: torch.Tensor, sigma: float, count: int) -> torch.Tensor:
    """PCA's posterior means (b, *shape) over the first images."""
    rows = Support(base.store.rows_of(None)[:count])
    out = base.denoise_over(x.reshape(len(x), -1).numpy(), sigma, rows)
    return torch.from_numpy(out).reshape(x.shape)
