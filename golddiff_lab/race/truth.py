"""The full scan of an estimator at the same queries: what errors are measured against.

It takes seconds an image and step, so results are kept in the user's cache folder, under a name
that changes with the store's pixels, the estimator, the query, sigma and the code that computes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import golddiff
from golddiff.denoiser import Denoiser, Estimator
from golddiff.errors import ArgumentError
from golddiff.estimators.kamb import Kamb
from golddiff.estimators.optimal import Optimal
from golddiff.estimators.pca import PCA
from golddiff.registry import default_mask_threshold
from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.system.files import written_whole

# The modules that a full scan's values come from; others may change without making it stale.
CODE = ("estimators", "kernels", "noise.py", "posterior.py", "store")


def reference_of(
    denoiser: Denoiser | None, store: ImageStore, threshold: float | None
) -> Estimator:
    """The full scan that a method approximates: of its own base estimator, or else PCA's (ss).

    Args:
        denoiser: the method; None for a peer.
        store: the training set.
        threshold: mask threshold of PCA where the method does not say; None for the default.
    """
    base: Any = denoiser
    while base is not None and not isinstance(base, Estimator):
        base = getattr(base, "base", None)
    if isinstance(base, Optimal):
        return Optimal(store)
    if isinstance(base, Kamb):
        return Kamb(store, base.patch_sizes, base.boundary)
    if isinstance(base, PCA):
        return PCA(store, base.mask_threshold)
    return PCA(store, default_mask_threshold(store.shape) if threshold is None else threshold)


def describe(reference: Estimator) -> dict[str, Any]:
    """The estimator and its settings, as plain values."""
    settings: dict[str, Any] = {"estimator": type(reference).__name__}
    if isinstance(reference, PCA):
        settings["mask_threshold"] = reference.mask_threshold
    if isinstance(reference, Kamb):
        settings |= {"patch_sizes": reference.patch_sizes, "boundary": reference.boundary}
    return settings


def text_of(reference: Estimator) -> str:
    """The same as one phrase: 'PCA, mask_threshold 0.02'."""
    settings = describe(reference)
    name = settings.pop("estimator")
    return ", ".join([name, *(f"{k} {v}" for k, v in settings.items() if v is not None)])


def full_scan(
    reference: Estimator, x: torch.Tensor, sigma: float, *, use_cache: bool = True
) -> torch.Tensor:
    """``reference(x, sigma)``, (B, *shape), from the cache where each query's is there.

    A damaged entry is made again; a cache that cannot be written is done without.
    """
    if not use_cache:
        return reference(x, sigma)
    found = [recall(reference, query, sigma) for query in x]
    missing = [i for i, value in enumerate(found) if value is None]
    if missing:
        for i, value in zip(missing, reference(x[missing], sigma), strict=True):
            found[i] = value
            remember(reference, x[i], sigma, value)
    return torch.stack([value for value in found if value is not None])


def recall(reference: Estimator, query: torch.Tensor, sigma: float) -> torch.Tensor | None:
    """``reference``'s answer to one query (*shape) from the cache; None where it is not there."""
    return _read(_path(reference, query, sigma), query.shape)


def remember(reference: Estimator, query: torch.Tensor, sigma: float, value: torch.Tensor) -> None:
    """Keep an answer in the cache, where it can be written."""
    with contextlib.suppress(ArgumentError):
        _write(_path(reference, query, sigma), value)


def _path(reference: Estimator, query: torch.Tensor, sigma: float) -> Path:
    return cache_folder() / "truth" / f"{key(reference, query, sigma)}.safetensors"


def key(reference: Estimator, query: torch.Tensor, sigma: float) -> str:
    """A name for ``reference``'s answer to one query (*shape) at sigma."""
    manifest = reference.store.manifest
    identity: dict[str, Any] = {
        "code": code(CODE),
        "pixels": manifest.files["pixels.bin"].sha256,
        "shape": manifest.shape,
        **describe(reference),
        "query": hashlib.sha256(query.contiguous().numpy().tobytes()).hexdigest(),
        "sigma": float(sigma).hex(),
    }
    if not isinstance(reference, Optimal):  # its masks, or patch sizes, come from the factor
        eigenvalues = reference.store.factor().eigenvalues
        identity["factor"] = hashlib.sha256(eigenvalues.tobytes()).hexdigest()
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def rmse(images: torch.Tensor, truth: torch.Tensor) -> float:
    """Root of the mean squared difference over all values, in [-1, 1] units."""
    return float((images.double() - truth.double()).square().mean().sqrt())


def _read(path: Path, shape: torch.Size) -> torch.Tensor | None:
    try:
        with safe_open(path, framework="pt") as file:
            value: torch.Tensor = file.get_tensor("x0")
            intact = (file.metadata() or {}).get("sha256") == _digest(value)
    except (OSError, SafetensorError):
        return None
    return value if intact and value.shape == shape and value.dtype == torch.float32 else None


def _write(path: Path, value: torch.Tensor) -> None:
    value = value.contiguous()
    with written_whole("cache", path) as temporary:
        save_file({"x0": value}, temporary, {"sha256": _digest(value)})


def _digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.numpy().tobytes()).hexdigest()


@cache
def code(names: tuple[str, ...]) -> str:
    """A digest of some of the package's modules and folders of modules."""
    root = Path(golddiff.__file__).parent
    digest = hashlib.sha256()
    for name in names:
        path = root / name
        for file in sorted(path.glob("*.py")) if path.suffix != ".py" else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()
