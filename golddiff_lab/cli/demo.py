"""``golddiff demo``: draw the novelty dial and all methods."""

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
from golddiff.cli.options import Seed, Size, check_apart
from golddiff.cli.terminal import progress_bar, say, starting, waiting
from golddiff.estimators.registry import DEFAULT_METHOD, SHOWN, MethodSettings, check_method, create
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff.system.units import counted, duration, shape_text

if TYPE_CHECKING:
    from golddiff.figures.methods import Block
    from golddiff.store.images import ImageStore

STEPS = 10
DIAL, COLUMNS = (0.0, 0.3, 0.7, 1.0), 10
# Full scans of larger images take too long for a demo.
MAX_VALUES = 4096


# Training sets, and the number of images that each method draws from them.
BUILT_IN = (("digits", SourceOptions(), 8), ("patches", SourceOptions(limit=1000), 5))


@dataclass(frozen=True)
class DemoOptions:
    """The options of ``golddiff demo``."""

    out: Path = option("Folder for the pictures.", Path("demo"))
    data: str | None = option("Your own images, instead of the built-in digits and patches.", None)
    size: Size = None
    limit: int | None = option("With --data: read at most this many images; default 2000.", None)
    seed: Seed = 0
    novelty: float | None = option(
        "Another novelty to draw, from 0 to 1; the sources are of its first picture.", None
    )


@command
def demo(options: DemoOptions) -> None:
    """Draw two pictures: the novelty dial, and every method from the same noise.

    For example:

      golddiff demo
      golddiff demo --data photos/ --size 32 --out photos-demo
    """
    data, size, seed, out = options.data, options.size, options.seed, options.out
    for name, value in (("size", size), ("limit", options.limit)):
        if value is not None and data is None:
            raise ArgumentError(f"{name}: applies to --data only")
    if size is not None and size**2 > MAX_VALUES:
        raise ArgumentError(
            f"size: got {size}, expected at most {MAX_VALUES:,} values in a picture, such as 32"
        )
    check_method(DEFAULT_METHOD, MethodSettings(novelty=options.novelty))
    paths = [out / f"{name}.png" for name in ("dial", "methods")]
    for path in paths:
        check_writable("out", path)
        check_apart("out", path, data)

    starting()
    from golddiff.estimators.dial import dial_with_bar
    from golddiff.figures.methods import draw_methods
    from golddiff.samplers import check_settings
    from golddiff.system.pictures import save

    check_settings(1, STEPS, "ddim", seed)
    start = time.perf_counter()
    limit = 2000 if options.limit is None else options.limit
    reading = SourceOptions(size=size, limit=limit, skip_bad=True)
    parts = BUILT_IN if data is None else ((data, reading, 8),)
    stores = [_open(source, reading) for source, reading, _ in parts]
    dial_with_bar(stores[-1])
    with waiting("drawing the novelty dial") as watch:
        save("out", draw_novelties(stores[-1], seed, options.novelty, watch), paths[0])
    say(f"{paths[0]}: the same noise at several novelties, and the sources of one output")
    with progress_bar() as bar:
        blocks = [
            _block(Path(source).name, n, store, seed, bar)
            for (source, _, n), store in zip(parts, stores, strict=True)
        ]
    with waiting("drawing"):
        save("out", draw_methods(blocks, _caption()), paths[1])
    say(f"{paths[1]}: one row per method, the same noise in every column")
    say(f"done in {duration(time.perf_counter() - start)}")


def draw_novelties(
    store: ImageStore, seed: int, novelty: float | None, watch: Callable[[int, int], None]
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
    return draw_dial(rows, novelty, explained[0], caption)


def _open(source: str, reading: SourceOptions) -> ImageStore:
    store = cached_store(source, reading, say=say, progress=True)
    if len(store.shape) != 3:
        raise ArgumentError(f"data: {source} holds {shape_text(store.shape)}, expected images")
    if store.d > MAX_VALUES:
        raise ArgumentError(
            f"data: the images of {source} have {store.d:,} values each, expected at most "
            f"{MAX_VALUES:,}; give --size 32"
        )
    return store


def _block(source: str, n: int, store: ImageStore, seed: int, bar: Progress) -> Block:
    from golddiff.figures.methods import Block
    from golddiff.samplers import initial_noise
    from golddiff.sampling import sample

    images, seconds = {}, {}
    for i, name in enumerate(SHOWN, 1):
        denoiser = create(name, store, seed=seed)
        # A bar per method, because some take many times as long as others.
        line = f"{source}, method {i} of {len(SHOWN)}: {name}"
        task = bar.add_task(line, total=2 * n * STEPS)
        on_step = partial(bar.advance, task)
        # Compile the kernels and make the masks before timing. The run is the same as the timed
        # one, because kernels are compiled separately for few and many queries.
        sample(denoiser, n, STEPS, seed=seed, trajectory=False, on_step=on_step)
        start = time.perf_counter()
        samples = sample(denoiser, n, STEPS, seed=seed, trajectory=False, on_step=on_step)
        title = SHOWN[name].title
        images[title] = samples.images
        seconds[title] = (time.perf_counter() - start) / (n * STEPS)
        bar.remove_task(task)
    about = f"{source}: {store.n:,} training images, {shape_text(store.shape)}"
    return Block(source, about, initial_noise(n, store.shape, seed), images, seconds)


def _caption() -> str:
    import torch

    threads = counted(torch.get_num_threads(), "thread")
    return (
        f"{STEPS} DDIM steps. Under each method: measured time per image and step with "
        f"{threads}, without compiling kernels and making masks."
    )
