"""The full scan of an estimator at the same queries: what errors are measured against.

It takes seconds an image and step, so results are kept in the user's cache folder, under a name
that changes with the store's pixels, the estimator, the query, sigma and the code that computes it.
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

# The modules that a full scan's values come from; others may change without making it stale.
CODE = ("estimators", "kernels", "noise.py", "posterior.py", "store")
# What decides an estimator's full scan.
SETTINGS: dict[type[Estimator], tuple[str, ...]] = {
    PCA: ("mask_threshold",),
    Kamb: ("patch_sizes", "boundary"),
    PatchComposite: ("patch_sizes", "thresholds", "heatmaps"),
    SCFDM: ("smoothing", "copies", "seed"),
}
ROWS_AT_ONCE = 2048  # rows that all queries are compared with before the next are read
TRIED = 256  # rows that the time of a scan is estimated from

Level = tuple[float, torch.Tensor]
Watch = Callable[[int, int], None]


def reference_of(denoiser: Denoiser, threshold: float | None) -> Estimator:
    """The full scan that a method approximates: of its own base estimator, or else PCA's (ss).

    Args:
        denoiser: the method.
        threshold: mask threshold of PCA where the method does not say; None for the default.
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
    """The estimator and its settings, as plain values."""
    names = [n for kind, own in SETTINGS.items() if isinstance(reference, kind) for n in own]
    settings = {n: getattr(reference, n) for n in names if hasattr(reference, n)}
    return {"estimator": type(reference).__name__, **settings}


def text_of(reference: Estimator) -> str:
    """The same as one phrase: 'PCA, mask_threshold 0.02'."""
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
    """``reference(x, sigma)`` for each level, from the cache where it is there.

    Args:
        reference: the estimator.
        levels: noise levels and queries (B, *shape).
        seconds: that this may take, about, each level an equal part. A level that would take longer
            has only its first queries answered, or none.
        watch: called with the images done and those that there are.
        use_cache: read and keep answers in the cache folder.

    Returns:
        For each level (b, *shape), b <= B.
    """
    kept = _kept() if use_cache else None
    answers = [[_recalled(kept, reference, q, sigma) for q in x] for sigma, x in levels]
    wanted: list[tuple[int, list[int]]] = []
    for i, ((sigma, x), known) in enumerate(zip(levels, answers, strict=True)):
        missing = [j for j, value in enumerate(known) if value is None]
        if missing and seconds < float("inf"):
            missing = missing[: _affordable(reference, x[:1], sigma, seconds / len(levels))]
        if missing:
            wanted.append((i, missing))
    if wanted:
        asked = [(levels[i][0], levels[i][1][rows]) for i, rows in wanted]
        for (i, rows), (sigma, x), values in zip(
            wanted, asked, one_pass(reference, asked, watch), strict=True
        ):
            for row, query, value in zip(rows, x, values, strict=True):
                answers[i][row] = value
                if kept is not None:
                    kept.save(key(reference, query, sigma), {"x0": value.numpy()})
    return [_leading(known, reference.store.shape) for known in answers]


def one_pass(
    reference: Estimator, levels: Sequence[Level], watch: Watch = lambda done, images: None
) -> list[torch.Tensor]:
    """``reference(x, sigma)`` for each level; every image is read once for all of them.

    But for an estimator whose posteriors do not merge, which reads them at each level.
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
    """Root of the mean squared difference over all values, in [-1, 1] units."""
    return float((images.double() - truth.double()).square().mean().sqrt())


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


@cache
def code(names: tuple[str, ...]) -> str:
    """A digest of some of the package's modules and folders of modules."""
    root = Path(golddiff.__file__).parent
    digest = hashlib.sha256()
    for name in names:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.suffix != ".py" else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _kept() -> Artifacts:
    """Answers of any store: which one is part of their names."""
    folder = cache_folder() / "truth"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return Artifacts(folder, "full scans")


def _recalled(
    kept: Artifacts | None, reference: Estimator, query: torch.Tensor, sigma: float
) -> torch.Tensor | None:
    found = None if kept is None else kept.load(key(reference, query, sigma))
    return None if found is None else torch.from_numpy(found["x0"].copy())


def _affordable(reference: Estimator, x: torch.Tensor, sigma: float, seconds: float) -> int:
    """How many queries can be compared with all images in the time there is."""
    store = reference.store
    query = np.ascontiguousarray(x.reshape(1, -1).numpy())
    few = Support(store.rows_of(None)[:TRIED])
    reference.denoise_over(query, sigma, few)  # makes masks
    start = time.perf_counter()
    reference.denoise_over(query, sigma, few)
    each = (time.perf_counter() - start) * store.n / len(few)
    return int(seconds / max(each, 1e-9))


def _leading(known: list[torch.Tensor | None], shape: tuple[int, ...]) -> torch.Tensor:
    """The answers up to the first that is not known."""
    count = next((i for i, value in enumerate(known) if value is None), len(known))
    values = [value for value in known[:count] if value is not None]
    return torch.stack(values) if values else torch.empty(0, *shape)
