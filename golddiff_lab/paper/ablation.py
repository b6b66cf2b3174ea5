"""What each part of ``network_like`` adds to its likeness to networks: not in the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

import golddiff
from golddiff.denoiser import Denoiser
from golddiff.estimators.mirror import Mirrored, OfMirrored
from golddiff.estimators.network_like import GOLDEN, NetworkLike
from golddiff.store.images import ImageStore
from golddiff_lab.paper.likeness import Row
from golddiff_lab.paper.likeness_tables import (
    GOLDDIFF,
    MAIN_COLUMNS,
    MNIST_COLUMNS,
    OPTIMAL,
    RECOMMENDED,
    WIENER,
    LikenessTable,
)

Change = Callable[[NetworkLike], Denoiser]

# The parts of network_like: golden ones, the best threshold first; mixture; one Gaussian; patches.
MIXTURE, ONE, PATCHES = GOLDEN, GOLDEN + 1, GOLDEN + 2


def _with_weights(
    made: NetworkLike, of: Callable[[float, np.ndarray], np.ndarray]
) -> golddiff.Blend:
    """The parts of ``network_like`` with other weights: of(sigma, its own), scaled to sum to 1."""
    pairs = [(sigma, of(sigma, np.array(row))) for sigma, row in made.blend.weights]
    return golddiff.Blend(
        made.blend.denoisers, [(s, tuple((w / w.sum()).tolist())) for s, w in pairs]
    )


def _without(*parts: int) -> Change:
    def change(made: NetworkLike) -> Denoiser:
        kept = ~np.isin(np.arange(len(made.blend.denoisers)), parts)
        return _with_weights(made, lambda sigma, own: own * kept)

    return change


def _only(*parts: int) -> Change:
    return _without(*set(range(PATCHES + 1)).difference(parts))


def _golden_at_all_levels(made: NetworkLike) -> Denoiser:
    highest = max(sigma for sigma, row in made.blend.weights if row[0] > 0)
    weights = np.array(dict(made.blend.weights)[highest])
    return _with_weights(made, lambda sigma, own: own if sigma < highest else weights)


def _with_parts(made: NetworkLike, of: Callable[[Denoiser], Denoiser]) -> Denoiser:
    return golddiff.Blend([of(part) for part in made.blend.denoisers], made.blend.weights)


def _with_subsets(k_min: int, k_max: int) -> Change:
    """The golden parts with subsets of other sizes: k_min, k_max."""

    def resized(part: Denoiser) -> Denoiser:
        if isinstance(part, Mirrored):
            return Mirrored(resized(part.denoiser))
        if not isinstance(part, golddiff.GoldDiff):
            return part
        n = part.store.n
        schedule = golddiff.PaperSchedule(min(k_min, n), min(k_max, n), variant="released")
        return golddiff.GoldDiff(part.base, schedule, part.seed)

    return lambda made: _with_parts(made, resized)


def _unmirrored(part: Denoiser) -> Denoiser:
    return part.denoiser if isinstance(part, OfMirrored) else part


CHANGES: dict[str, Change] = {
    "without golden": _without(*range(GOLDEN)),
    "without the better golden part": _without(0),
    "without the second golden part": _without(1),
    "without the third golden part": _without(2),
    "without mixture": _without(MIXTURE),
    "without one Gaussian": _without(ONE),
    "without patches": _without(PATCHES),
    "without mirror images": lambda made: _with_parts(made, _unmirrored),
    "golden at all noise levels": _golden_at_all_levels,
    "equal weights": lambda made: _with_weights(made, lambda sigma, own: 1.0 * (own > 0)),
    "weights 1 / squared error": lambda made: _with_weights(made, lambda sigma, own: own**2),
    "subsets of 200 to 400": _with_subsets(200, 400),
    "subsets of 800 to 1,600": _with_subsets(800, 1600),
    "mixture alone": _only(MIXTURE),
}


def _changed(change: Change, store: ImageStore, seed: int) -> Denoiser:
    return change(NetworkLike(store, seed))


ROWS = (
    GOLDDIFF, RECOMMENDED,
    *(
        Row(title, f"network-like, {title}", make=partial(_changed, change))
        for title, change in CHANGES.items()
    ),
    OPTIMAL, WIENER,
)  # fmt: skip
ABLATION = LikenessTable(
    None,
    tuple(replace(column, stand_in=True) for column in (*MNIST_COLUMNS, *MAIN_COLUMNS)),
    ROWS,
    ("MSE", "r2", "Time"),
    tuple((row.title, GOLDDIFF.title) for row in ROWS[1:]),
)
