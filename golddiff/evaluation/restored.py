"""``golddiff.restore``: reconstruct pictures from measurements, without training."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from golddiff import samplers, sampling
from golddiff.denoiser import Denoiser
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.measurement import linear, measurements
from golddiff.estimators.noise_level import estimated_noise
from golddiff.estimators.pca import PCA
from golddiff.estimators.restoring import Restoring, for_restoring
from golddiff.noise import Labels
from golddiff.sampling import Samples
from golddiff.store.device import on_disk
from golddiff.store.images import ImageStore, StoreOrPath, opened
from golddiff.store.likelihood import check_measured, log_likelihood
from golddiff.support import LogWeights
from golddiff.supports.paper import PaperSchedule
from golddiff.system.arguments import check_not_negative, classes_of
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F64, check_count

SOFTNESS = 0.07  # tuned on 16 faces: the sharpest restorations with a low error
GOLDEN = 300  # golden subset size if the denoiser has no golden subset or draws it at random

_EXPECTED = (
    "expected an ImageStore, PCA with weighting 'ss', or GoldDiff over it with a PaperSchedule"
)


def restore(
    denoiser: Denoiser | StoreOrPath,
    y: torch.Tensor,
    operator: Any,
    noise: float | None = None,
    *,
    softness: float = SOFTNESS,
    n: int = 1,
    steps: int = 10,
    seed: int = 0,
    labels: Labels = None,
    attribution: bool = False,
    on_step: sampling.OnStep | None = None,
    progress: bool = False,
) -> Samples:
    """Reconstruct pictures x0 from y = A x0 + noise * eps as weighted sums of training images.

    For output value q the logit of image i combines the masks M (input n, output q) with the
    measured values c::

        l_q(i) = - sum_n M_nq (x_n - x_in)^2 / (2 sigma^2)
                 - sum_c W_cq (y_c - (A x_i)_c)^2 / (2 s^2)
        W_cq = sum_n |A_cn| M_nq / sum_n |A_cn|,   s^2 = noise^2 + (g softness)^2

    g is the gain of A, 1 for masks, means and blurs. softness^2 is also added to sigma^2, because
    no training image fits x or y exactly.

    After each step the estimate is projected towards the measurement, and unmeasured values move
    with their neighbours: x0 + a K A^T (A K A^T)^+ (y - A x0), with the least a that brings A x0
    within ``noise`` of y (``Measurement.project_smoothly`` of ``golddiff.estimators.measurement``).
    LSQR approximates the pseudo-inverse and stops at the noise, so that noise is not amplified.
    The golden subset is the nearest images by the sum of both terms.

    The measurement nearly determines the result, so restorations from the same training images
    would be almost equal. The first uses all training images, each other one a random half.

    Args:
        denoiser: a store or its path, for which masks for restoring are chosen; or PCA, or
            GoldDiff over it. Golden subsets drawn at random become the nearest 300. Log weights
            (B, N) of ``given`` have a row for each measurement.
        y: (B, *measured) measurements of B images.
        operator: A, linear plus a constant, with a local footprint, the same for all y: a callable
            on (b, *shape) in [-1, 1], or a deepinv physics. If y was measured from images in
            [0, 1], pass ``lambda x: physics.A((x + 1) / 2)``.
        noise: standard deviation of y's noise, >= 0, in y's units; None: estimated from y, see
            :func:`golddiff.estimators.noise_level.estimated_noise`.
        softness: standard deviation allowed between training images and x or y, in units of the
            images, in addition to the noise. Larger values mix more images: lower error on average,
            but less sharp.
        n: number of restorations of each measurement.
        steps: number of denoising steps.
        seed: seed of the starting noise and of the random halves.
        labels: class of the training images to use, one for all measurements or one for each.
        attribution: also compute which training images each restoration is made of.
        on_step: called after each step with the number of images in it.
        progress: show a progress bar for each measurement.

    Returns:
        Samples whose images (B * n, *shape) are grouped by measurement, n each. ``novelty``
        compares them with all images of the store, including those that ``given`` excludes.

    Raises:
        ArgumentError: an unsupported denoiser, a store of points, an operator that is not linear
            or has another shape than y, noise or softness out of range or both 0; as ``sample``.
    """
    if isinstance(denoiser, StoreOrPath):
        denoiser = for_restoring(opened(denoiser))
    base, schedule = parts_of(denoiser)
    softness = check_not_negative("softness", softness)
    check_measured(y)
    if y.ndim < 2:
        raise ArgumentError(f"y: got shape {tuple(y.shape)}, expected (B, *measured)")
    noise = None if noise is None else check_not_negative("noise", noise)
    n = check_count("n", n)
    if denoiser.batch not in (1, len(y)):
        raise ArgumentError(
            f"y: got a batch of {len(y)}, expected {denoiser.batch}, the rows of the log weights"
        )
    store = base.store
    if noise is None:
        noise, _ = estimated_noise(store, operator, y)
    if noise == softness == 0:
        raise ArgumentError("noise: got 0, and softness 0; expected one of them above 0")
    _, _, seed, _ = samplers.check_settings(n * len(y), steps, "ddim", seed)
    sampling.check_room(n * len(y), store.shape, 0)
    classes = [None] * len(y) if labels is None else classes_of(labels, len(y)).tolist()
    for label in classes:
        store.count_of(label)  # raises before the first picture is restored
    linearized = linear(operator, store.shape, tuple(y.shape[1:]))
    soft = math.hypot(noise, linearized.gain * softness)
    measured = measurements(linearized, y, store.shape, noise, soft)
    logs = log_likelihood(store, operator, y, soft).numpy()
    noises = samplers.initial_noise(n * len(y), store.shape, seed).reshape(-1, n, *store.shape)
    priors = denoiser.priors * (len(y) // denoiser.batch)  # one per measurement, or none
    runs = []
    for i, (measurement, log, label) in enumerate(zip(measured, logs, classes, strict=True)):
        own = copy.copy(denoiser)
        own.priors, own.batch = priors[i : i + 1], 1
        own = own.given(halves(store, own.priors, n, seed)) if n > 1 else own
        restoring = Restoring(base, schedule, measurement, LogWeights.of(log), own, softness)
        run = sampling.sample(
            restoring, n, steps, labels=label, trajectory=False, on_step=on_step,
            attribution=attribution, x_init=noises[i], progress=progress,
        )  # fmt: skip
        runs.append(run)
    about = {**runs[0].about, "seed": f"seed {seed}"}
    if labels is not None:
        about["labels"] = " ".join(str(label) for label in classes for _ in range(n))
    return replace(
        runs[0],
        images=torch.cat([run.images for run in runs]),
        x_init=torch.cat([run.x_init for run in runs]),
        attribution=[image for run in runs for image in run.attribution or []] or None,
        subsets=runs[0].subsets if len(runs) == 1 else None,
        about=about,
    )


def halves(store: Any, priors: Sequence[LogWeights], n: int, seed: int) -> F64:
    """Log weights (n, N): 0 for all images in the first row, for a random half in each other row.

    Each class, and the images that ``priors`` (one or none) exclude, are halved separately,
    rounding up.
    """
    logs = np.zeros((n, store.n))
    classes = np.zeros(store.n, np.int64) if store.labels is None else store.labels.numpy()
    group = 2 * classes + (priors[0].values == -np.inf if priors else False)
    for i in range(1, n):
        order = np.lexsort((np.random.default_rng([seed, i]).random(store.n), group))
        rank = np.arange(store.n) - np.searchsorted(group[order], group[order])
        logs[i, order[rank % 2 == 1]] = -np.inf
    return logs


def parts_of(denoiser: Any) -> tuple[PCA, PaperSchedule]:
    """The PCA estimator and the schedule of golden subsets that ``restore`` uses for a denoiser.

    Raises:
        ArgumentError: an unsupported denoiser, or a store of points.
    """
    base = denoiser.base if isinstance(denoiser, GoldDiff) else denoiser
    schedule = denoiser.schedule if isinstance(denoiser, GoldDiff) else None
    if not isinstance(base, PCA) or base.weighting != "ss":
        raise ArgumentError(f"denoiser: got {denoiser!r:.60}, {_EXPECTED}")
    if not isinstance(schedule, PaperSchedule | None):
        raise ArgumentError(f"denoiser: its schedule is {schedule!r:.60}, {_EXPECTED}")
    if schedule is None or schedule.variant == "released":  # "released" draws at random
        fraction = min(1.0, GOLDEN / base.store.n)  # applied to a class too
        schedule = PaperSchedule(fraction, fraction)
    if not isinstance(on_disk(base.store), ImageStore):
        raise ArgumentError("denoiser: its store is in shards, expected a single store")
    if len(base.store.shape) != 3:
        raise ArgumentError("denoiser: its store holds points, expected images (C, H, W)")
    return base, schedule
