"""Every path of a device beside the processor's: the largest difference of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from golddiff import (
    AdaptiveSchedule,
    GoldDiff,
    Kamb,
    Optimal,
    PaperSchedule,
    PSPCFlex,
    PSPCSquare,
    Wiener,
    sample,
)
from golddiff.denoiser import Denoiser
from golddiff.estimators.pca import PCA
from golddiff.noise import ddim_sigmas
from golddiff.store.device import DeviceStore
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Pixels, Pooled
from golddiff.store.proxy import quarter_shape
from golddiff.support import Support
from golddiff_lab.arguments import STEPS
from golddiff_lab.queries import noised

Make = Callable[[ImageStore], Denoiser]

IMAGES, FEW = 2000, 200  # of Kamb's, whose every position meets every other
BATCH = 3
# Of images in [-1, 1]: float32 logits of two images that are about as likely differ in their last
# digits from device to device, the more, the less noise there is.
ALLOWED = 1e-3

TEXT = PaperSchedule(1 / 10, 1 / 5, 1 / 4, 1 / 2)
RELEASED = PaperSchedule(1 / 10, 1 / 5, variant="released")

METHODS: dict[str, tuple[Make, int]] = {
    "Optimal": (Optimal, IMAGES),
    "PCA": (lambda store: PCA(store, 0.03), IMAGES),
    "PCA, wss": (lambda store: PCA(store, 0.03, "wss"), IMAGES),
    "PCA, a softmax a pixel (by the processor)": (
        lambda store: PCA(store, 0.03, share="pixel"), IMAGES,
    ),
    "Kamb, zeros": (lambda store: Kamb(store, 5), FEW),
    "Kamb, circular": (lambda store: Kamb(store, 5, "circular"), FEW),
    "Kamb, none": (lambda store: Kamb(store, 5, "none"), FEW),
    "PSPC-Square": (lambda store: PSPCSquare(store, 5), FEW),
    "PSPC-Flex": (PSPCFlex, FEW),
    "Wiener (by the processor)": (Wiener, IMAGES),
    "GoldDiff, the text's schedule": (lambda store: GoldDiff(PCA(store, 0.03), TEXT), IMAGES),
    "GoldDiff, the released schedule": (lambda store: GoldDiff(PCA(store, 0.03), RELEASED), IMAGES),
    "GoldDiff over Optimal": (lambda store: GoldDiff(Optimal(store), RELEASED), IMAGES),
    "GoldDiff over Kamb": (lambda store: GoldDiff(Kamb(store, 5), RELEASED), FEW),
    "adaptive (by the processor)": (
        lambda store: GoldDiff(PCA(store, 0.03), AdaptiveSchedule()), FEW,
    ),
}  # fmt: skip


def paths(
    device: torch.device, made: Callable[[int], ImageStore]
) -> dict[str, Callable[[], dict[str, Any]]]:
    """By name of the path, what compares it: the largest difference, and where.

    Args:
        device: to compare with the processor.
        made: gives a new store of so many images with classes.
    """

    def comparing(name: str, labels: Any, *, streamed: bool) -> dict[str, Any]:
        make, images = METHODS[name]
        store = made(images)
        there = on_device(make(store), device, streamed=streamed)
        return _compared(make(store), there, store, device, labels)

    def over_all(compare: Callable[[ImageStore, torch.device], dict[str, Any]]) -> dict[str, Any]:
        return compare(made(IMAGES), device)

    found: dict[str, Callable[[], dict[str, Any]]]
    found = {name: partial(comparing, name, None, streamed=False) for name in METHODS}
    for name in ("PCA", "GoldDiff, the released schedule"):
        found[f"{name}, streamed"] = partial(comparing, name, None, streamed=True)
        found[f"{name}, of one class"] = partial(comparing, name, [0, 1, 0], streamed=False)
    others: dict[str, Callable[[ImageStore, torch.device], dict[str, Any]]] = {
        "importance weights": _weighted,
        "ten steps of sampling": _sampled,
        "the nearest by pixels": partial(_nearest, by="pixels"),
        "the nearest by pooled pixels": partial(_nearest, by="pooled pixels"),
    }
    for name, compare in others.items():
        found[name] = partial(over_all, compare)
    return found


def on_device(denoiser: Denoiser, device: torch.device, *, streamed: bool) -> Denoiser:
    """A denoiser over a newly opened store with that store's images on a device, or streamed."""
    store = denoiser.store
    placed = DeviceStore(store, device, resident=not streamed)
    store.__dict__["_on_device"] = {device: placed}
    return denoiser.to(device)


def _compared(
    here: Denoiser, there: Denoiser, store: ImageStore, device: torch.device, labels: Any
) -> dict[str, Any]:
    worst, where, total = -1.0, 0.0, 0.0
    sigmas = ddim_sigmas(STEPS)
    for sigma, x in zip(sigmas, noised(store, sigmas, BATCH, 0), strict=True):
        found = there(x.to(device), sigma, labels).cpu()
        apart = (found - here(x, sigma, labels)).double()
        total += float(apart.square().mean()) / len(sigmas)
        # A number that is none counts as infinitely far.
        most = float(apart.abs().max()) if apart.isfinite().all() else float("inf")
        if most > worst:
            worst, where = most, sigma
    return _difference(worst, total**0.5, f"sigma {where:.3g}")


def _difference(worst: float, rms: float | None, where: str) -> dict[str, Any]:
    finite = worst < float("inf")
    return {
        "largest": worst if finite else None, "rms": rms if finite else None, "where": where,
        "allowed": ALLOWED, "holds": worst <= ALLOWED,
    }  # fmt: skip


def _weighted(store: ImageStore, device: torch.device) -> dict[str, Any]:
    """PCA over a support with log importance weights."""
    base = PCA(store, 0.03)
    there = on_device(base, device, streamed=False)
    generator = np.random.default_rng(0)
    rows = np.sort(generator.choice(store.n, store.n // 3, replace=False))
    support = Support(rows, generator.normal(0, 2, len(rows)))
    worst, where = 0.0, 0.0
    for sigma, x in zip(
        ddim_sigmas(STEPS), noised(store, ddim_sigmas(STEPS), BATCH, 0), strict=True
    ):
        flat = x.flatten(1).numpy()
        assert isinstance(there, PCA)
        means = [d.store.posterior(d, flat, sigma, support).mean() for d in (base, there)]
        most = float(np.abs(means[0] - means[1]).max())
        worst, where = max((worst, where), (most, sigma))
    return _difference(worst, None, f"sigma {where:.3g}")


def _sampled(store: ImageStore, device: torch.device) -> dict[str, Any]:
    base = GoldDiff(PCA(store, 0.03), RELEASED)
    there = on_device(base, device, streamed=False)
    ours, theirs = (sample(d, BATCH, STEPS, trajectory=False).images for d in (base, there))
    apart = (ours - theirs.cpu()).double()
    rms = float(apart.square().mean().sqrt())
    return _difference(float(apart.abs().max()), rms, "the last images")


def _nearest(store: ImageStore, device: torch.device, by: str) -> dict[str, Any]:
    """The largest difference is the share of images that are not the processor's."""
    metric = Pixels() if by == "pixels" else Pooled(quarter_shape(store.shape))
    there = DeviceStore(store, device)
    x = torch.cat(noised(store, (0.1, 3.0, 60.0), BATCH, 0)).flatten(1).numpy()
    k, every = store.n // 5, Support(store.rows_of(None))
    others = [
        len(np.setdiff1d(a.rows, b.rows))
        for a, b in zip(store.nearest(x, k, metric, every), there.nearest(x, k, metric, every),
                        strict=True)
    ]  # fmt: skip
    return _difference(sum(others) / (k * len(others)), None, "share of other images")
