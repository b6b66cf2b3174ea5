"""The authors' release, ``methods/ours.py``: GoldDiff over PCA with random pre-samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from golddiff.errors import ArgumentError
from golddiff.estimators.pca import PCA
from golddiff.noise import alpha_of_sigma
from golddiff.registry import default_mask_threshold
from golddiff.store.images import ImageStore
from golddiff.store.proxy import side_16_shape
from golddiff.support import Support
from golddiff.supports.paper import PaperSchedule
from golddiff_lab.peers.checkout import imported, vp_timestep
from golddiff_lab.race.side import Check, Side, SideSpec, Step
from golddiff_lab.race.work import DISTANCE, Work, dense_pca_work

CHECKED = 1500  # images over which both sides weigh everything

# Imported by the release, not used by a step.
STUBS = {
    "data_src": ["DatasetBundle"],
    "methods.baseline_unet": [],
    "methods.baseline_edm_unconditional": [],
    "methods.baseline_edm_conditional": [],
}


def make(spec: SideSpec, store: ImageStore) -> Side:
    """``OursDenoiser`` as its configuration files set it, over the images of ``store``.

    The same covariance as ours is given to it: factoring it is no part of a step. The masks are:
    it makes them anew at every step.

    Raises:
        ArgumentError: a store or settings that the release has no counterpart of.
    """
    assert spec.path is not None
    path, settings = spec.path, spec.settings
    if len(store.shape) != 3 or store.shape[1] != store.shape[2]:
        raise ArgumentError(f"store: got shape {store.shape}, the release takes square images")
    if settings.variant == "text":
        raise ArgumentError("variant: got 'text', the release has its own schedule only")
    threshold = settings.mask_threshold
    if threshold is None:
        threshold = default_mask_threshold(store.shape)
    sizes = {name: v for name, v in settings.given().items() if name in ("k_min", "k_max")}
    schedule = PaperSchedule(variant="released", **sizes)  # type: ignore[arg-type]
    k_min, k_max = (schedule.budgets(sigma, store.n)[1] for sigma in (1e-9, 1e9))
    torch.manual_seed(spec.seed)  # of its random draws
    step = _step(path, store, store.images(), threshold, k_min, k_max)

    def check() -> Check:
        count = min(CHECKED, store.n)
        base = PCA(store, threshold)
        theirs = _step(path, store, store.images(slice(count)), threshold, count, count)
        return Check(
            theirs,
            lambda x, sigma: _over(base, x, sigma, count),
            f"PCA over the first {count:,} images, all of them in the subset",
        )

    return Side(step, lambda x, sigma: _work(store, schedule, len(x), sigma), check)


def _step(
    path: Path, store: ImageStore, images: torch.Tensor, threshold: float, k_min: int, k_max: int
) -> Step:
    class Bundle:
        name = "benchmark"
        resolution = store.shape[1]
        in_channels = store.shape[0]
        dataloader: Any = torch.split(images, 256)

    params = {"mask_threshold": threshold, "k_min": k_min, "k_max": k_max, "low_res_dim": 16}
    with imported(path, "methods.ours", STUBS) as module:
        model = module.OursDenoiser(Bundle, "cpu", 10, params=params)
        factor = store.factor()
        vectors = torch.from_numpy(factor.eigenvectors).float()
        spectrum, mean = (torch.from_numpy(a).float() for a in (factor.eigenvalues, factor.mean))
        model._load_or_compute_wiener_svd = lambda *a, **k: (vectors, spectrum, vectors.T, mean)
        model.train(Bundle)
    del Bundle.dataloader

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        timestep = torch.tensor(vp_timestep("the release", sigma))
        x0: torch.Tensor = model.denoise(x * alpha_of_sigma(sigma) ** 0.5, timestep)
        return x0

    return step


def _over(base: PCA, x: torch.Tensor, sigma: float, count: int) -> torch.Tensor:
    rows = Support(base.store.rows_of(None)[:count])
    out = base.denoise_over(x.reshape(len(x), -1).numpy(), sigma, rows)
    return torch.from_numpy(out).reshape(x.shape)


def _work(store: ImageStore, schedule: PaperSchedule, queries: int, sigma: float) -> Work:
    """Distances in the proxy and in all pixels as products; the dense masked distances."""
    m, k = schedule.budgets(sigma, store.n)
    keep = max(k, schedule.budgets(1e9, store.n)[1])
    width = 1
    for side in side_16_shape(store.shape):
        width *= side
    rank = store.factor().eigenvectors.shape[1]
    screening = Work(
        DISTANCE * queries * (m * width + keep * store.d),
        4 * queries * (m * width + keep * store.d),
        "float32_matrix",
    )
    return dense_pca_work(queries, k, store.d, rank) + screening
