"""``golddiff demo``: draw the novelty dial, all methods, a trajectory and the paper's Figure 1."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

from golddiff.cli.command import command, option
from golddiff.cli.options import Limit, Seed, Size
from golddiff.cli.sample import golden_subsets
from golddiff.cli.terminal import progress_bar, say, starting, waiting
from golddiff.estimators.registry import (
    DEFAULT_METHOD,
    SHOWN,
    MethodSettings,
    check_method,
    create,
)
from golddiff.store.cache import SourceOptions, cached_store
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff.system.units import duration, shape_text

if TYPE_CHECKING:
    from golddiff.denoiser import Denoiser
    from golddiff.figures.methods import Block
    from golddiff.store.images import ImageStore

STEPS = 10
DIAL, COLUMNS = (0.0, 0.3, 0.7, 1.0), 10
TRAJECTORY_OF = "golddiff-pca"
# Full scans of larger images take too long for a demo.
MAX_VALUES = 4096


@dataclass(frozen=True)
class Part:
    """One training set of the demo, and the number of images that each method draws."""

    source: str
    reading: SourceOptions
    n: int


BUILT_IN = (Part("digits", SourceOptions(), 8), Part("patches", SourceOptions(limit=1000), 5))


@dataclass(frozen=True)
class DemoOptions:
    """The options of ``golddiff demo``."""

    out: Path = option("Folder for the pictures.", Path("demo"))
    data: str | None = option("Your own images, instead of the built-in digits and patches.", None)
    size: Size = None
    limit: Limit = 2000
    seed: Seed = 0
    novelty: float | None = option("A novelty to draw, from 0 to 1; default 0.7.", None)


@command
def demo(options: DemoOptions) -> None:
    """Draw four pictures: novelty dial, all methods, a trajectory and the paper's Figure 1.

    For example:

      golddiff demo
      golddiff demo --data photos/ --size 32 --out photos-demo
    """
    data, size, seed, out = options.data, options.size, options.seed, options.out
    if size is not None and data is None:
        raise ArgumentError("size: applies to --data only")
    check_method(DEFAULT_METHOD, MethodSettings(novelty=options.novelty))
    paths = [out / f"{name}.png" for name in ("dial", "methods", "trajectory", "moons")]
    for path in paths:
        check_writable("out", path)

    starting()
    from golddiff.estimators.dial import dial_with_bar
    from golddiff.figures.methods import draw_methods
    from golddiff.samplers import check_settings
    from golddiff.system.pictures import save
    from golddiff_lab.figures.concentration import draw_concentration

    check_settings(1, STEPS, "ddim", seed)
    start = time.perf_counter()
    reading = SourceOptions(size=size, limit=options.limit, skip_bad=True)
    parts = BUILT_IN if data is None else (Part(data, reading, 8),)
    stores = [_open(part) for part in parts]
    moons = cached_store("moons", SourceOptions(), say=say)
    dial_with_bar(stores[-1])
    with waiting("drawing the novelty dial") as watch:
        save("out", draw_novelties(stores[-1], seed, options.novelty, watch), paths[0])
    say(f"{paths[0]}: the same noise at several novelties, and the sources of one output")
    denoisers = [{name: create(name, store, seed=seed) for name in SHOWN} for store in stores]
    with progress_bar() as bar:
        blocks = [
            _block(part, made, seed, bar) for part, made in zip(parts, denoisers, strict=True)
        ]
    with waiting("drawing"):
        save("out", draw_methods(blocks, _caption()), paths[1])
        save("out", _trajectory(denoisers[-1][TRAJECTORY_OF], seed), paths[2])
        save("out", draw_concentration(moons, seed), paths[3])
    say(f"{paths[1]}: one row per method, the same noise in every column")
    say(f"{paths[2]}: one sample of {TRAJECTORY_OF}, step by step, with its golden subset's size")
    say(f"{paths[3]}: the posterior narrows from all points to a neighbourhood (paper, Figure 1)")
    say(f"done in {duration(time.perf_counter() - start)}")


def draw_novelties(
    store: ImageStore,
    seed: int,
    novelty: float | None,
    watch: Callable[[int, int], None],
) -> Any:
    """A figure of the store's novelty dial, with the sources of the first output at ``novelty``."""
    from golddiff.estimators.dial import NOVELTY, recommended
    from golddiff.sampling import sample
    from golddiff_lab.figures.novelty_dial import draw_dial

    novelty = NOVELTY if novelty is None else novelty
    settings = sorted({*DIAL, novelty})
    done = itertools.count(1)
    runs = {
        setting: sample(
            recommended(store, setting), COLUMNS, STEPS, seed=seed, trajectory=False,
            attribution=setting == novelty,
            on_step=lambda _: watch(next(done), STEPS * len(settings)),
        )
        for setting in settings
    }  # fmt: skip
    rows = [(value, run.images, float(run.novelty.novelty.mean())) for value, run in runs.items()]
    explained = runs[novelty].attribution
    assert explained is not None
    caption = f"The same noise, {store.n:,} training images of {store.manifest.source}"
    return draw_dial(rows, novelty, 0, explained[0], caption)


def _open(part: Part) -> ImageStore:
    store = cached_store(part.source, part.reading, say=say, progress=True)
    if len(store.shape) != 3:
        raise ArgumentError(f"data: {part.source} holds {shape_text(store.shape)}, expected images")
    if store.d > MAX_VALUES:
        raise ArgumentError(
            f"data: the images of {part.source} have {store.d:,} values each, expected at most "
            f"{MAX_VALUES:,}; give --size 32"
        )
    return store


def _block(part: Part, denoisers: dict[str, Denoiser], seed: int, bar: Progress) -> Block:
    from golddiff.figures.methods import Block, MethodImages
    from golddiff.samplers import initial_noise
    from golddiff.sampling import sample

    made, source = {}, Path(part.source).name
    for i, (name, denoiser) in enumerate(denoisers.items(), 1):
        # A bar per method, because some take many times as long as others.
        line = f"{source}, method {i} of {len(denoisers)}: {name}"
        task = bar.add_task(line, total=2 * part.n * STEPS)
        on_step = partial(bar.advance, task)
        # Compile the kernels and make the masks before timing. The run is the same as the timed
        # one, because kernels are compiled separately for few and many queries.
        sample(denoiser, part.n, STEPS, seed=seed, trajectory=False, on_step=on_step)
        start = time.perf_counter()
        samples = sample(denoiser, part.n, STEPS, seed=seed, trajectory=False, on_step=on_step)
        seconds = (time.perf_counter() - start) / (part.n * STEPS)
        made[SHOWN[name].title] = MethodImages(samples.images, seconds)
        bar.remove_task(task)
    store = denoisers["optimal"].store
    title = f"{source}: {store.n:,} training images, {shape_text(store.shape)}"
    return Block(source, title, initial_noise(part.n, store.shape, seed), made)


def _caption() -> str:
    import torch

    count = torch.get_num_threads()
    return (
        f"{STEPS} DDIM steps. Under each method: measured time per image and step with "
        f"{count} thread{'s' * (count > 1)}, without compiling kernels and making masks."
    )


def _trajectory(denoiser: Denoiser, seed: int) -> Any:
    """A figure of one sample: the noisy input and the prediction of each step."""
    import torch

    from golddiff.figures.trajectory import Row, draw_trajectory
    from golddiff.samplers import initial_noise, noise_levels, steps

    noise = initial_noise(1, denoiser.store.shape, seed)
    run = list(steps(denoiser, noise, noise_levels(STEPS, "ddim")))
    # Scaled to about unit variance, as in the variance-preserving process.
    noisy = torch.cat([state.x / (1 + state.sigma**2) ** 0.5 for state in run])
    predicted = torch.cat([state.x0 for state in run])
    subsets = golden_subsets(denoiser, [state.sigma for state in run], None) or []
    return draw_trajectory(
        [Row("noisy xₜ", noisy), Row("prediction x₀", predicted)],
        [state.sigma for state in run],
        [f"{k:,}" for k in subsets[0]["k"]],
        f"{SHOWN[TRAJECTORY_OF].title}: one sample, k of the {denoiser.store.n:,} "
        "training images per step",
    )
