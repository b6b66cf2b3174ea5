"""Full scans of an estimator, the ground truth for the errors of faster methods.

A full scan takes seconds per image and step, so results are cached on disk. The key covers the
store's pixels, the estimator, the query, sigma and the code that computes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import golddiff
from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.kamb import Kamb
from golddiff.estimators.optimal import Optimal
from golddiff.estimators.pca import PCA
from golddiff.estimators.pspc import PatchComposite
from golddiff.estimators.registry import default_mask_threshold
from golddiff.estimators.scfdm import SCFDM
from golddiff.posterior import Posterior
from golddiff.store.artifacts import Artifacts
from golddiff.store.cache import cache_folder
from golddiff.support import Support

# Modules that affect the values of a full scan; changes elsewhere do not invalidate the cache.
CODE = ("estimators", "kernels", "noise.py", "posterior.py", "store")
# Settings that affect an estimator's full scan.
SETTINGS: dict[type[Estimator], tuple[str, ...]] = {
    PCA: ("mask_threshold",),
    Kamb: ("patch_sizes", "boundary"),
    PatchComposite: ("patch_sizes", "thresholds", "heatmaps"),
    SCFDM: ("smoothing", "copies", "seed"),
}
ROWS_AT_ONCE = 2048  # rows per block; all queries use a block before the next is read
TRIED = 256  # rows timed to estimate the duration of a scan

Level = tuple[float, torch.Tensor]
Watch = Callable[[int, int], None]


def reference_of(denoiser: Denoiser, threshold: float | None) -> Estimator:
    """The full scan that a method approximates: its own base estimator, or else PCA with "ss".

    Args:
        denoiser: the method.
        threshold: mask threshold for methods without a base; None for the default.
    """
    store = denoiser.store
    base: Any = denoiser
    while base is not None and not isinstance(base, Estimator):
        base = getattr(base, "base", None)
    if isinstance(base, PCA):
        return PCA(store, base.mask_threshold)
    if base is not None:
        return base
    return PCA(store, default_mask_threshold(store.shape) if threshold is None else threshold)


def describe(reference: Estimator) -> dict[str, Any]:
    """The estimator's class name and settings as a dictionary."""
    names = [n for kind, own in SETTINGS.items() if isinstance(reference, kind) for n in own]
    settings = {n: getattr(reference, n) for n in names if hasattr(reference, n)}
    return {"estimator": type(reference).__name__, **settings}


def text_of(reference: Estimator) -> str:
    """The estimator and its settings as text, such as 'PCA, mask_threshold 0.02'."""
    settings = describe(reference)
    name = settings.pop("estimator")
    return ", ".join([name, *(f"{k} {v}" for k, v in settings.items() if v is not None)])


def full_scans(
    reference: Estimator,
    levels: Sequence[Level],
    seconds: float = float("inf"),
    watch: Watch = lambda done, images: None,
    *,
    use_cache: bool = True,
) -> list[torch.Tensor]:
    """``reference(x, sigma)`` for each level, from the cache if possible.

    Args:
        reference: the estimator.
        levels: noise levels and queries (B, *shape).
        seconds: approximate time limit, divided equally among the levels. If a level would take
            longer, only its first queries are computed, or none.
        watch: called with the number of images done and their total.
        use_cache: read and write the cache folder.

    Returns:
        For each level (b, *shape), b <= B.
    """
    cache = _cache() if use_cache else None
    results = [[_cached(cache, reference, q, sigma) for q in x] for sigma, x in levels]
    missing: list[tuple[int, list[int]]] = []
    for i, ((sigma, x), values) in enumerate(zip(levels, results, strict=True)):
        rows = [j for j, value in enumerate(values) if value is None]
        if rows and seconds < float("inf"):
            rows = rows[: _affordable(reference, x[:1], sigma, seconds / len(levels))]
        if rows:
            missing.append((i, rows))
    if missing:
        queries = [(levels[i][0], levels[i][1][rows]) for i, rows in missing]
        for (i, rows), (sigma, x), computed in zip(
            missing, queries, one_pass(reference, queries, watch), strict=True
        ):
            for row, query, value in zip(rows, x, computed, strict=True):
                results[i][row] = value
                if cache is not None:
                    cache.save(key(reference, query, sigma), {"x0": value.numpy()})
    return [_leading(values, reference.store.shape) for values in results]


def one_pass(
    reference: Estimator, levels: Sequence[Level], watch: Watch = lambda done, images: None
) -> list[torch.Tensor]:
    """``reference(x, sigma)`` for each level, reading every image only once.

    An estimator whose posteriors do not merge reads the images once per level.
    """
    store = reference.store
    if not reference.merges:
        return [reference(x, sigma) for sigma, x in levels]
    queries = [np.ascontiguousarray(x.reshape(len(x), -1).numpy()) for _, x in levels]
    totals: list[Posterior | None] = [None] * len(levels)
    for part in Support(store.rows_of(None)).split(ROWS_AT_ONCE):
        for i, (sigma, _) in enumerate(levels):
            posterior = store.posterior(reference, queries[i], sigma, part)
            total = totals[i]
            totals[i] = posterior if total is None else total.merge(posterior)
        watch(int(part.rows[-1]) + 1, store.n)
    return [
        torch.from_numpy(reference.composed(total.mean(), sigma).astype(np.float32)).reshape(
            len(x), *store.shape
        )
        for total, (sigma, x) in zip(totals, levels, strict=True)
        if total is not None
    ]


def rmse(images: torch.Tensor, truth: torch.Tensor) -> float:
    """Root mean squared difference over all values, in [-1, 1] units."""
    return float((images.double() - truth.double()).square().mean().sqrt())


def key(reference: Estimator, query: torch.Tensor, sigma: float) -> str:
    """The cache key of ``reference``'s output for one query (*shape) at sigma."""
    manifest = reference.store.manifest
    identity: dict[str, Any] = {
        "code": code(CODE),
        "pixels": manifest.files["pixels.bin"].sha256,
        "shape": manifest.shape,
        **describe(reference),
        "query": hashlib.sha256(query.contiguous().numpy().tobytes()).hexdigest(),
        "sigma": float(sigma).hex(),
    }
    if not isinstance(reference, Optimal):  # masks or patch sizes depend on the factor
        eigenvalues = reference.store.factor().eigenvalues
        identity["factor"] = hashlib.sha256(eigenvalues.tobytes()).hexdigest()
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@cache
def code(names: tuple[str, ...]) -> str:
    """A digest of the named modules and folders of the package."""
    root = Path(golddiff.__file__).parent
    digest = hashlib.sha256()
    for name in names:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.suffix != ".py" else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _cache() -> Artifacts:
    """The cache, shared by all stores: keys include a store's checksum."""
    folder = cache_folder() / "truth"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return Artifacts(folder, "full scans")


def _cached(
    cache: Artifacts | None, reference: Estimator, query: torch.Tensor, sigma: float
) -> torch.Tensor | None:
    saved = None if cache is None else cache.load(key(reference, query, sigma))
    return None if saved is None else torch.from_numpy(saved["x0"].copy())


def _affordable(reference: Estimator, x: torch.Tensor, sigma: float, seconds: float) -> int:
    """Estimated number of queries that can be scanned in ``seconds``."""
    store = reference.store
    query = np.ascontiguousarray(x.reshape(1, -1).numpy())
    sample = Support(store.rows_of(None)[:TRIED])
    reference.denoise_over(query, sigma, sample)  # computes masks
    start = time.perf_counter()
    reference.denoise_over(query, sigma, sample)
    per_query = (time.perf_counter() - start) * store.n / len(sample)
    return int(seconds / max(per_query, 1e-9))


def _leading(values: list[torch.Tensor | None], shape: tuple[int, ...]) -> torch.Tensor:
    """The values before the first None, stacked."""
    count = next((i for i, value in enumerate(values) if value is None), len(values))
    known = [value for value in values[:count] if value is not None]
    return torch.stack(known) if known else torch.empty(0, *shape)
