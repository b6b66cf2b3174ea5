"""Checks of a denoiser's arguments: noisy images, noise levels, and priors over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from golddiff.noise import LEAST_SIGMA, Sigma
from golddiff.support import LogWeights, Prior
from golddiff.system.arguments import as_dense_tensor, check_batch, levels_of
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32

# Beyond this noise level, and LEAST_SIGMA, float32 results no longer change, and squares overflow.
MAX_SIGMA = 1e16
# Largest norm of a query, its ratio to the usual norm and to sigma; beyond it, squares and logits
# would overflow in float32.
MAX_NORM, MAX_NORM_RATIO, MAX_SIGMA_RATIO = 1e18, 1e7, 1e17


def checked_queries(store: Any, x: torch.Tensor, sigma: Sigma) -> tuple[F32, list[float]]:
    """Check noisy images and noise levels; return queries (b, D) and one sigma for each."""
    check_batch("x", x, store.shape, "store")
    _check_plain("x", x)
    _check_plain("sigma", sigma)
    queries = x.float().reshape(len(x), store.d).numpy(force=True)
    if not np.isfinite(queries).all():
        bad = int(np.flatnonzero(~np.isfinite(queries).all(axis=1))[0])
        raise ArgumentError(f"x: image {bad} of the batch holds NaN or infinity")
    sigmas = levels_of(sigma, len(x)).clamp(LEAST_SIGMA, MAX_SIGMA)
    lengths = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1))
    usual = sigmas.numpy() * store.d**0.5 + store.radius
    most = np.maximum(MAX_SIGMA_RATIO * sigmas.numpy(), 2 * usual)
    most = np.minimum(most, np.minimum(MAX_NORM_RATIO * usual, MAX_NORM))
    if (lengths > most).any():
        bad = int(np.argmax(lengths / most))
        raise ArgumentError(
            f"x: image {bad} of the batch has norm {lengths[bad]:.3g}, expected at most "
            f"{most[bad]:.3g} at sigma {sigmas[bad]:g}, where {usual[bad]:.3g} is usual"
        )
    return np.ascontiguousarray(queries), sigmas.tolist()


def _check_plain(name: str, value: object) -> None:
    """Raise for forward-mode and vmap tensors, which cannot follow NumPy computations."""
    if not isinstance(value, torch.Tensor):
        return
    try:
        value.data_ptr()
        plain = forward_ad.unpack_dual(value).tangent is None  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch.func's wrapper tensors have no storage
        plain = False
    if not plain:
        raise ArgumentError(
            f"{name}: got a tensor of torch.func.jvp, vmap or forward-mode derivatives, expected a "
            "plain batch; only a call has derivatives, taken backward as torch.func.vjp does"
        )


def added_priors(
    store: Any, before: Sequence[LogWeights], log_weights: Any
) -> tuple[LogWeights, ...]:
    """The earlier priors with log weights (N,), or (B, N) for B queries, added to them."""
    numbers = as_dense_tensor("log_weights", log_weights, "natural logs (N,) or (B, N)")
    values = numbers.double().numpy()
    if values.ndim not in (1, 2) or values.shape[-1] != store.n or 0 in values.shape:
        raise ArgumentError(
            f"log_weights: got shape {tuple(values.shape)}, expected ({store.n},) or "
            f"(B, {store.n}), one for each training image"
        )
    if np.isnan(values).any() or (values == np.inf).any():
        raise ArgumentError("log_weights: got NaN or +inf, expected numbers or -inf")
    rows = np.atleast_2d(values)
    if before and 1 not in (len(rows), len(before)) and len(rows) != len(before):
        raise ArgumentError(
            f"log_weights: got {len(rows)} rows, but {len(before)} were given before"
        )
    if before:
        rows = rows + np.stack([prior.values for prior in before])
    for i, row in enumerate(rows):
        if not np.isfinite(row).any():
            raise ArgumentError(f"log_weights: row {i} is all -inf, so no image is left")
    return tuple(LogWeights.of(row) for row in rows)


def priors_of(
    store: Any, given: Sequence[LogWeights], classes: Sequence[int | None]
) -> list[Prior]:
    """The prior of each query: its class, the given log weights, or both."""
    for label in set(classes):
        store.count_of(label)  # raises where the class has no images
    if not given:
        return list(classes)
    if len(given) not in (1, len(classes)):
        raise ArgumentError(
            f"x: got {len(classes)} images, but log weights were given for {len(given)}"
        )
    priors: list[Prior] = []
    weights = list(given) * len(classes) if len(given) == 1 else given
    for log_weights, label in zip(weights, classes, strict=True):
        rows = store.rows_of(label)
        if not np.isfinite(log_weights.values[rows]).any():
            raise ArgumentError(f"labels: got {label}, but the log weights exclude all of it")
        priors.append(log_weights if label is None else log_weights.of_class(label, rows))
    return priors
