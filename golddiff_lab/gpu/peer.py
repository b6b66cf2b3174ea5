"""The authors' released code as a step on a device; imported from its checkout, never copied."""

from __future__ import annotations

import importlib
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch

from golddiff.noise import alpha_of_sigma, ddim_scheduler, ddim_sigmas
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff_lab.gpu.cases import Case

Step = Callable[[torch.Tensor, float], torch.Tensor]

LOADED_AT_ONCE = 4096

# Modules that the release imports but that a step does not use, and what it takes from them.
UNUSED = {
    "data_src": ["DatasetBundle"],
    "methods.baseline_unet": [],
    "methods.baseline_edm_unconditional": [],
    "methods.baseline_edm_conditional": [],
}


def check_peer(peer: Path) -> None:
    """Raise where there is no checkout of the release.

    Raises:
        ArgumentError: no ``methods/ours.py`` there.
    """
    if not (peer / "methods" / "ours.py").is_file():
        raise ArgumentError(
            f"peer: got {peer}, expected a checkout of the GoldDiff release (methods/ours.py)"
        )


def peer_step(
    peer: Path, store: ImageStore, case: Case, label: int | None, device: torch.device
) -> Step:
    """The release's ``OursDenoiser``, set as its configuration files set it.

    Args:
        peer: a checkout of the release.
        store: the training set; of a class, only its images are given to the release.
        case: gives k and the mask threshold.
        label: the class, or None.
        device: where it runs.

    Raises:
        ArgumentError: ``peer`` is no checkout of the release.
    """
    check_peer(peer)
    for name, names in UNUSED.items():
        module = types.ModuleType(name)
        for attribute in names:
            setattr(module, attribute, object)
        sys.modules.setdefault(name, module)
    if str(peer) not in sys.path:
        sys.path.insert(0, str(peer))
    denoiser = importlib.import_module("methods.ours").OursDenoiser
    rows = store.rows_of(label)
    n = len(rows)
    parts = range(0, n, LOADED_AT_ONCE)

    class Bundle:
        name = "benchmark"
        resolution = store.shape[1]
        in_channels = store.shape[0]
        dataloader = (store.images(rows[i : i + LOADED_AT_ONCE]) for i in parts)

    k_min, k_max = case.k or (max(1, n // 20), max(1, n // 10))
    low = 16 if store.shape[1] % 16 == 0 else 14
    params = {
        "mask_threshold": case.mask_threshold, "k_min": k_min, "k_max": k_max, "low_res_dim": low,
    }  # fmt: skip
    model = denoiser(Bundle, str(device), 10, params=params)
    factor = store.factor()
    vectors, eigenvalues, mean = (
        torch.from_numpy(a).float() for a in (factor.eigenvectors, factor.eigenvalues, factor.mean)
    )
    # The same covariance as ours: its factoring is not part of a step.
    model._load_or_compute_wiener_svd = lambda *a, **k: (vectors, eigenvalues, vectors.T, mean)
    model.train(Bundle)
    # As its ``sample`` does: the noise schedule's own tensor stays on the CPU.
    timesteps = dict(zip(ddim_sigmas(10), ddim_scheduler(10, clip=True).timesteps, strict=True))

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        scaled = x * math.sqrt(alpha_of_sigma(sigma))
        result: torch.Tensor = model.denoise(scaled, timesteps[sigma])
        return result

    return step
