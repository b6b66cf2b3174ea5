"""Draw the figures of the guides and concepts: ``python docs/pictures/draw.py NAME=SOURCE ...``.

Each SOURCE is a store, or what ``golddiff index`` reads; NAME what the figures call it. The first
is the one whose masks and sources are shown. The ones in the repository are of the first 5,000
images of Fashion-MNIST (MIT licence), MNIST and CIFAR-10; those restored of all of Fashion-MNIST.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import golddiff
from golddiff import GoldDiff, ImageStore, Optimal, PaperSchedule
from golddiff.estimators import operators
from golddiff.estimators.dial import dial
from golddiff.estimators.masks import locality_mask
from golddiff.estimators.measurement import linear, pictures_of
from golddiff.estimators.restoring import for_restoring
from golddiff.figures.curves import COLOURS, Panel, Series, draw_panels
from golddiff.noise import ddim_sigmas
from golddiff.samplers import initial_noise
from golddiff.support import Support
from golddiff.system.pictures import draw_grid

HERE = Path(__file__).parent
METHODS_SHOWN = ("recommended", "network-like", "optimal", "wiener", "kamb", "pca", "golddiff-pca")
LIMIT = 5000


def noisy(store: ImageStore, sigma: float, n: int, seed: int = 0) -> torch.Tensor:
    """Training images plus noise, (n, *shape)."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(store.n, (n,), generator=generator)
    return store.images(rows) + sigma * torch.randn((n, *store.shape), generator=generator)


def draw_masks(store: ImageStore, threshold: float = 0.02) -> Figure:
    """The mask of one output value at falling noise levels."""
    _, height, width = store.shape
    shown = [20.0, 5.0, 2.0, 1.0, 0.3, 0.05]
    figure = Figure(figsize=(9, 1.8), layout="constrained")
    for axes, sigma in zip(figure.subplots(1, len(shown)), shown, strict=True):
        mask = locality_mask(store.factor(), sigma, threshold)  # (D, D), [input, output]
        output = height // 3 * width + width // 2
        axes.imshow(mask[:, output].reshape(height, width), cmap="gray", vmin=0, vmax=1)
        axes.set_title(f"sigma {sigma:g}", fontsize=9)
        axes.set(xticks=[], yticks=[])
    return figure


def draw_subsets(store: ImageStore) -> Figure:
    """The error of random and of nearest subsets to the full scan."""
    exact, levels = Optimal(store), ddim_sigmas(10)
    generator = np.random.default_rng(0)
    kinds: dict[str, list[Series]] = {"random subset": [], "nearest images": []}
    for k in (10, 100, 1000):
        nearest = GoldDiff(exact, PaperSchedule(k, k, store.n, store.n))
        errors = []
        for sigma in levels:
            x = noisy(store, sigma, 16)
            rows = np.sort(generator.permutation(store.n)[:k])
            drawn = exact.denoise_over(x.flatten(1).numpy(), sigma, Support(rows))
            full = exact(x, sigma)
            gaps = (torch.from_numpy(drawn).reshape(x.shape) - full, nearest(x, sigma) - full)
            errors.append([max(float(gap.square().mean().sqrt()), 1e-7) for gap in gaps])
        for lines, curve in zip(kinds.values(), np.transpose(errors), strict=True):
            lines.append(Series(f"{k:,} of {store.n:,}", levels, curve))
    y = "RMSE to all images (1e-7 or less)"
    figure = draw_panels(
        [Panel(kind, "noise level σ", y, lines, "log", "log", falling=True)
         for kind, lines in kinds.items()]
    )  # fmt: skip
    for axes in figure.axes:
        axes.set_ylim(5e-8, 1)
    return figure


def draw_dials(stores: dict[str, ImageStore]) -> Figure:
    """Novelty against the mask threshold."""
    lines = []
    for name, store in stores.items():
        found = dial(store)
        lines.append(Series(f"{name}, {store.n:,}", found.thresholds, found.novelty))
    ends = [f(f(line.x) for line in lines) for f in (min, max)]
    lines.append(Series("the default, 0.7", ends, [0.7, 0.7], dashed=True))
    return draw_panels([Panel("", "mask threshold", "novelty of the pictures", lines, "log")])


def draw_patchwork(store: ImageStore, row: int = 7) -> Figure:
    """One query at two noise levels: output, heaviest source of each pixel, heaviest images."""
    denoiser = golddiff.recommended(store)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for panels, sigma in zip(figure.subplots(2, 7), (1.2, 0.3), strict=True):
        noise = torch.randn(store.shape, generator=torch.Generator().manual_seed(1))
        x = (store.images([row])[0] + sigma * noise)[None]
        (found,) = denoiser.attribute(x, sigma)
        main = found.patchwork()
        heaviest, weights = found.top_images(5)
        colours = np.full((*main.shape, 3), 0.8)
        for image, colour in zip(heaviest, COLOURS, strict=False):
            colours[main == image] = to_rgb(colour)
        shown = [denoiser(x, sigma)[0], None, *store.images(heaviest)]
        heads = [f"output\nsigma {sigma:g}", f"main sources\n{len(np.unique(main))} images"]
        heads += [f"{weight:.1%}" for weight in weights]
        edges = ["white", "white", *COLOURS]
        for axes, image, head, edge in zip(panels, shown, heads, edges, strict=False):
            if image is None:
                axes.imshow(colours)
            else:
                axes.imshow(image[0], cmap="gray", vmin=-1, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.set_title(head, fontsize=9)
            axes.spines[:].set(color=edge, linewidth=4)
    return figure


def draw_methods(store: ImageStore, n: int = 8) -> Figure:
    """A row a method, the same noise in every column."""
    noise = initial_noise(n, store.shape, seed=0)
    rows = {"starting noise": noise / noise.abs().max()}
    for name in METHODS_SHOWN:
        rows[name] = golddiff.sample(golddiff.create(name, store), n, seed=0).images
    figure = Figure(figsize=(8, 0.82 * len(rows)), layout="constrained")
    for axes, (name, images) in zip(figure.subplots(len(rows)), rows.items(), strict=True):
        axes.imshow(draw_grid(images, columns=n).convert("RGB"), interpolation="nearest")
        axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    return figure


def draw_restored(store: ImageStore, n: int = 2) -> Figure:
    """Images that lost something, restored from all others of the store."""
    _, height, width = store.shape
    known = torch.ones(height, width, dtype=torch.bool)
    known[height // 4 : 3 * height // 4, width // 4 : 3 * width // 4] = False
    lost = {
        "a hole": (operators.kept(known), lambda truth, y: truth * known),
        "4 times\ntoo small": (
            operators.smaller(4), lambda truth, y: torch.kron(y, torch.ones(1, 4, 4))
        ),
        "blurred by\n2 pixels": (operators.blurred(2.0), lambda truth, y: y),
    }  # fmt: skip
    truths = store.images(range(n * len(lost)))
    others = torch.zeros(store.n)
    others[: len(truths)] = -torch.inf
    denoiser = for_restoring(store).given(others)
    heads = ["truth", "known", *(f"restored {i}" for i in range(1, 5)), "their mean"]
    figure = Figure(figsize=(9, 0.98 * len(truths) + 0.3), layout="constrained")
    grid = figure.subplots(len(truths), len(heads))
    rows = [(name, *what) for name, what in lost.items() for _ in range(n)]
    for row, (name, operator, known_in) in enumerate(rows):
        y = operator(truths[row : row + 1])
        of_shape = linear(operator, store.shape, tuple(y.shape[1:]))
        run = golddiff.restore(denoiser, y, of_shape, noise=0.0, n=4)
        shown = [truths[row], *pictures_of(run.images, known_in(truths[row], y[0])).values()]
        for axes, head, image in zip(grid[row], heads, shown, strict=False):
            axes.imshow(image[0], cmap="gray", vmin=-1, vmax=1)
            axes.set(xticks=[], yticks=[], title=head if row == 0 else "")
            axes.title.set_fontsize(9)
        grid[row, 0].set_ylabel(name, fontsize=9)
    return figure


def main(*given: str) -> None:
    """Draw all of them."""
    sources = dict(word.split("=", 1) for word in given)
    stores = {name: golddiff.load(source, limit=LIMIT) for name, source in sources.items()}
    first = next(iter(stores.values()))
    figures = {
        "masks": draw_masks(first),
        "subsets": draw_subsets(golddiff.load("digits")),
        "dial-curves": draw_dials(stores),
        "patchwork": draw_patchwork(first),
        "methods": draw_methods(first),
        "restored": draw_restored(golddiff.load(next(iter(sources.values())))),
    }
    for name, figure in figures.items():
        figure.savefig(HERE / f"{name}.png", dpi=130, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])
