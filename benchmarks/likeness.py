"""Likeness to a trained network: r2 and MSE of each method, with intervals, and an ablation.

Every method and the network start from the same noise and take the same DDIM steps; the network's
image is the reference. Intervals are 95% bootstrap intervals of the mean over images; "gain" is
the r2 above the paper's GoldDiff (golddiff-pca), image by image.

    python benchmarks/likeness.py STORE ORACLE --n 128 --seed 0
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
from golddiff.denoisers.base import Denoiser
from golddiff.denoisers.recommended import Recommended
from golddiff.methods import make_denoiser
from golddiff.metrics import mse_per_image, r2_per_image
from golddiff.sampling import sample

Make = Callable[[golddiff.ImageStore, Recommended], Denoiser]
RESAMPLES = 10_000
YARDSTICK = "golddiff-pca"


def _with_weights(
    made: Recommended, of: Callable[[float, np.ndarray], np.ndarray]
) -> golddiff.Blend:
    """The parts of ``recommended`` with other weights: of(sigma, its own), scaled to sum to 1."""
    pairs = [(sigma, of(sigma, np.array(row))) for sigma, row in made.blend.weights]
    return golddiff.Blend(
        made.blend.denoisers, [(s, tuple((w / w.sum()).tolist())) for s, w in pairs]
    )


def _only(*parts: int) -> Make:
    kept = np.isin(np.arange(4), parts)
    return lambda store, made: _with_weights(made, lambda sigma, own: own * kept)


def _with_papers_subsets(store: golddiff.ImageStore, made: Recommended) -> Denoiser:
    schedule = golddiff.PaperSchedule(variant="released")
    parts = [
        golddiff.GoldDiff(part.base, schedule) if isinstance(part, golddiff.GoldDiff) else part
        for part in made.blend.denoisers
    ]
    return golddiff.Blend(parts, made.blend.weights)


# The parts of recommended: 0 and 1 golden, the better threshold first; 2 the mixture; 3 Wiener.
METHODS: dict[str, Make] = {
    YARDSTICK: lambda store, made: make_denoiser(YARDSTICK, store),
    "recommended": lambda store, made: made,
    "optimal": lambda store, made: golddiff.Optimal(store),
    "wiener": _only(3),
    "mixture": _only(2),
    "golden, better threshold": _only(0),
    "both golden": _only(0, 1),
    "mixture and Wiener": _only(2, 3),
    "one golden and mixture": _only(0, 2),
    "without Wiener": _only(0, 1, 2),
    "without mixture": _only(0, 1, 3),
    "equal weights": lambda store, made: _with_weights(made, lambda sigma, own: np.ones(4)),
    "weights 1 / error": lambda store, made: _with_weights(made, lambda sigma, own: own**2),
    "paper's subset sizes": _with_papers_subsets,
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

    def images(denoiser: Denoiser) -> torch.Tensor:
        return sample(
            denoiser, options.n, options.steps, seed=options.seed, trajectory=False,
            batch_size=options.batch_size,
        ).images  # fmt: skip

    store = golddiff.ImageStore.open(options.store)
    reference = images(golddiff.load_oracle(options.oracle))
    made = Recommended(store)
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
        figures = {
            "method": name,
            "r2": interval(scores[name]),
            "mse": interval(mse_per_image(generated, reference)),
            "gain": interval(scores[name] - scores[YARDSTICK]),
            "seconds": seconds,
        }
        rows.append(figures)
        print(
            f"| {name} | {text(figures['r2'])} | {text(figures['mse'])} | "
            f"{text(figures['gain'])} | {seconds:.4f} |",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def interval(values: torch.Tensor) -> tuple[float, float, float]:
    """The mean, and the 2.5% and 97.5% quantiles of the means of bootstrap samples."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    means = values[chosen].mean(dim=1).numpy()
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def text(figures: tuple[float, float, float]) -> str:
    """'0.812 [0.790, 0.833]', to three significant decimals of the mean."""
    size = max(abs(figures[0]), 1e-9)
    digits = max(3, 2 - math.floor(math.log10(size)))
    return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*figures, d=min(digits, 6))


if __name__ == "__main__":
    main()
