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
from golddiff.denoisers.recommended import FewImages, Recommended
from golddiff.methods import make_denoiser
from golddiff.metrics import mse_per_image, r2_per_image
from golddiff.sampling import sample

Make = Callable[[golddiff.ImageStore, Recommended], Denoiser]
RESAMPLES = 10_000
YARDSTICK = "golddiff-pca"


def _pca_of(made: Recommended) -> golddiff.PCA:
    base = made.golden.base
    assert isinstance(base, golddiff.PCA)
    return base


def _blend(made: Recommended, weight: Callable[[float, float], float]) -> golddiff.Blend:
    """The halves of ``recommended`` with other weights: weight(sigma, its own) of the golden."""
    pairs = [(s, weight(s, w[0])) for s, w in made.blend.weights]
    return golddiff.Blend(made.blend.denoisers, [(s, (w, 1 - w)) for s, w in pairs])


METHODS: dict[str, Make] = {
    YARDSTICK: lambda store, made: make_denoiser(YARDSTICK, store),
    "recommended": lambda store, made: made,
    "optimal": lambda store, made: golddiff.Optimal(store),
    "wiener": lambda store, made: golddiff.Wiener(store),
    "golden half alone": lambda store, made: made.golden,
    "mixture alone": lambda store, made: made.blend.denoisers[1],
    "equal weights": lambda store, made: _blend(made, lambda sigma, own: 0.5),
    "paper's subset sizes": lambda store, made: golddiff.Blend(
        [
            golddiff.GoldDiff(_pca_of(made), golddiff.PaperSchedule(variant="released")),
            made.blend.denoisers[1],
        ],
        made.blend.weights,
    ),
    "paper's mask threshold": lambda store, made: golddiff.Blend(
        [
            golddiff.GoldDiff(make_denoiser("pca", store), FewImages()),  # type: ignore[arg-type]
            made.blend.denoisers[1],
        ],
        made.blend.weights,
    ),
    "Wiener for the mixture": lambda store, made: golddiff.Blend(
        [made.golden, golddiff.Wiener(store)], made.blend.weights
    ),
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
