"""Likeness to a trained network: r2 and MSE of each method, with intervals, and an ablation.

Every method and the network start from the same noise and take the same DDIM steps; the network's
image is the reference. Intervals are 95% bootstrap intervals of the mean over images; "gain" is
the r2 above the paper's GoldDiff (golddiff-pca), image by image.

    python -m golddiff_lab.ablation STORE ORACLE --n 128 --seed 0
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import golddiff
from golddiff.denoiser import Denoiser
from golddiff.estimators.mirror import Mirrored, OfMirrored
from golddiff.estimators.network_like import GOLDEN, NetworkLike
from golddiff.estimators.registry import create
from golddiff.evaluation.bootstrap import Interval, bootstrap
from golddiff.metrics import mse_per_image, r2_per_image
from golddiff.sampling import Denoises, sample

Make = Callable[[golddiff.ImageStore, NetworkLike], Denoiser]
YARDSTICK = "golddiff-pca"


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


def _without(*parts: int) -> Make:
    def make(store: golddiff.ImageStore, made: NetworkLike) -> Denoiser:
        kept = ~np.isin(np.arange(len(made.blend.denoisers)), parts)
        return _with_weights(made, lambda sigma, own: own * kept)

    return make


def _only(*parts: int) -> Make:
    return _without(*set(range(PATCHES + 1)).difference(parts))


def _golden_at_all_levels(store: golddiff.ImageStore, made: NetworkLike) -> Denoiser:
    highest = max(sigma for sigma, row in made.blend.weights if row[0] > 0)
    weights = np.array(dict(made.blend.weights)[highest])
    return _with_weights(made, lambda sigma, own: own if sigma < highest else weights)


def _with_parts(made: NetworkLike, of: Callable[[Denoiser], Denoiser]) -> Denoiser:
    return golddiff.Blend([of(part) for part in made.blend.denoisers], made.blend.weights)


def _with_subsets(k_min: int, k_max: int) -> Make:
    """The golden parts with subsets of other sizes: k_min, k_max."""

    def resized(part: Denoiser) -> Denoiser:
        if isinstance(part, Mirrored):
            return Mirrored(resized(part.denoiser))
        if not isinstance(part, golddiff.GoldDiff):
            return part
        return golddiff.GoldDiff(
            part.base, golddiff.PaperSchedule(k_min, k_max, variant="released"), part.seed
        )

    return lambda store, made: _with_parts(made, resized)


def _unmirrored(part: Denoiser) -> Denoiser:
    return part.denoiser if isinstance(part, OfMirrored) else part


METHODS: dict[str, Make] = {
    YARDSTICK: lambda store, made: create(YARDSTICK, store),
    "network-like": lambda store, made: made,
    "without golden": _without(*range(GOLDEN)),
    "without the better golden part": _without(0),
    "without the second golden part": _without(1),
    "without the third golden part": _without(2),
    "without mixture": _without(MIXTURE),
    "without one Gaussian": _without(ONE),
    "without patches": _without(PATCHES),
    "without mirror images": lambda store, made: _with_parts(made, _unmirrored),
    "golden at all noise levels": _golden_at_all_levels,
    "equal weights": lambda store, made: _with_weights(made, lambda sigma, own: 1.0 * (own > 0)),
    "weights 1 / squared error": lambda store, made: _with_weights(made, lambda sigma, own: own**2),
    "subsets of 200 to 400": _with_subsets(200, 400),
    "subsets of 800 to 1,600": _with_subsets(800, 1600),
    "optimal": lambda store, made: golddiff.Optimal(store),
    "wiener": lambda store, made: golddiff.Wiener(store),
    "mixture": _only(MIXTURE),
}


def main() -> None:
    """Sample from the network and from each method, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("oracle", type=Path)
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    def images(denoiser: Denoises) -> torch.Tensor:
        return sample(
            denoiser, options.n, options.steps, seed=options.seed, trajectory=False,
            batch_size=options.batch_size,
        ).images  # fmt: skip

    store = golddiff.ImageStore.open(options.store)
    reference = images(golddiff.load_oracle(options.oracle))
    made = NetworkLike(store)
    made.blend  # noqa: B018  its weights are found before any clock runs
    print(f"{store!r}, {options.n} images from seed {options.seed}, {options.steps} DDIM steps")
    print(
        "| method | r2 | MSE | gain in r2 | processor seconds an image and step |\n"
        + "|---" * 5
        + "|"
    )
    scores: dict[str, torch.Tensor] = {}
    rows = []
    for name in dict.fromkeys([YARDSTICK, *options.methods]):
        denoiser = METHODS[name](store, made)
        sample(denoiser, 1, options.steps, trajectory=False)  # kernels compiled, masks made
        begin = time.process_time()
        generated = images(denoiser)
        seconds = (time.process_time() - begin) / (options.n * options.steps)
        scores[name] = r2_per_image(generated, reference)
        told = {
            "r2": bootstrap(scores[name]),
            "mse": bootstrap(mse_per_image(generated, reference)),
            "gain": bootstrap(scores[name] - scores[YARDSTICK]),
        }
        made_of = {measure: interval.figures() for measure, interval in told.items()}
        rows.append({"method": name, **made_of, "seconds": seconds})
        print(f"| {name} | {' | '.join(map(text, told.values()))} | {seconds:.4f} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def text(interval: Interval) -> str:
    """'0.812 [0.790, 0.833]', to three significant decimals of the mean."""
    size = max(abs(interval.mean), 1e-9)
    digits = min(max(3, 2 - math.floor(math.log10(size))), 6)
    return f"{interval.mean:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


if __name__ == "__main__":
    main()
