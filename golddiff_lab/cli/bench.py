"""``golddiff bench step | kamb | enlarge | gpu | index | scaling``: times that can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from golddiff import __version__
from golddiff.cli.options import (
    BoundaryRule,
    JsonPath,
    KMax,
    KMin,
    MaskThreshold,
    MMax,
    MMin,
    PatchSize,
    Tol,
    Variant,
    Weighting,
    method_settings,
)
from golddiff.cli.parse import parse_numbers
from golddiff.cli.summary import describe, summary
from golddiff.cli.terminal import progress_bar, say, show, write_json
from golddiff.estimators.registry import METHODS
from golddiff.system.files import check_writable
from golddiff_lab.cli.enlarge import enlarge
from golddiff_lab.cli.gpu import gpu
from golddiff_lab.cli.index import index
from golddiff_lab.cli.scaling import scaling

bench = typer.Typer(
    help="Time methods, and other people's code, in one run beside the machine's own rates.",
    rich_markup_mode="rich",
)

_STORE = typer.Argument(help="A folder that golddiff index made.")
_PEER = (
    "A checkout of another's code, told by its content (shangxinyi/GoldDiff, analytic-diffusion-"
    "studio, convolutional_diffusion), or 'faiss'. Its code is run. May be repeated."
)
bench.command()(enlarge)
bench.command()(gpu)
bench.command()(index)
bench.command()(scaling)

Threads = Annotated[
    int | None, typer.Option(help="Threads to use; default: all cores.", show_default=False)
]


@bench.command()
def step(
    store: Annotated[Path, _STORE],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(METHODS)}; repeated or with commas. Default golddiff-pca.",
            show_default=False,
        ),
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help=_PEER, show_default=False)] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="The side that ratios are taken to; default: the first peer, or method.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images of one step.")] = 4,
    repeats: Annotated[int, typer.Option(help="Timed steps a level, after one to warm up.")] = 5,
    levels: Annotated[
        str | None,
        typer.Option(
            help="Noise levels, with commas between; default: the ten of 10-step DDIM (three "
            "digits of one of those are enough).",
            show_default=False,
        ),
    ] = None,
    queries_from: Annotated[
        str,
        typer.Option(help="trajectory (a sampling run's own points) or noised (training images)."),
    ] = "trajectory",
    truth: Annotated[
        bool, typer.Option("--truth/--no-truth", help="Errors against the full scan.")
    ] = True,
    truth_queries: Annotated[int, typer.Option(help="Queries that errors are measured at.")] = 4,
    cache: Annotated[
        bool,
        typer.Option("--cache/--no-cache", help="Keep full scans in $GOLDDIFF_CACHE."),
    ] = True,
    memory: Annotated[
        bool,
        typer.Option("--memory/--no-memory", help="Peak memory of each side's process."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(help="Use the first so many images only.", show_default=False)
    ] = None,
    peer_images: Annotated[
        int,
        typer.Option(help="Time a peer that scans everything over so many images; 0: all."),
    ] = 4096,
    seed: Annotated[int, typer.Option(help="Of the noise and the random picks.")] = 0,
    threads: Threads = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Say what each side does at each level.")
    ] = False,
    tol: Tol = None,
    mask_threshold: MaskThreshold = None,
    weighting: Weighting = None,
    patch_size: PatchSize = None,
    boundary: BoundaryRule = None,
    variant: Variant = None,
    k_min: KMin = None,
    k_max: KMax = None,
    m_min: MMin = None,
    m_max: MMax = None,
    json: JsonPath = None,
) -> None:
    """Time one denoising step at every noise level, with its error against the full scan.

    All sides get the same noisy images and take turns, each in a process of its own. Mask
    threshold, patch size, boundary rule and subset sizes are every side's that has them, peers'
    included.

    For example:

      golddiff bench step cifar.store --method golddiff-pca,golddiff-optimal

      golddiff bench step cifar.store --peer GoldDiff/ --memory --json race.json

      golddiff bench step cifar.store --method golddiff-optimal --peer faiss --batch 16
    """
    from golddiff_lab.step.job import StepJob

    settings = method_settings(
        mask_threshold, weighting, patch_size, boundary, variant, k_min, k_max, m_min, m_max, tol
    )
    names = tuple(name.strip() for text in method or ["golddiff-pca"] for name in text.split(","))
    job = StepJob(
        store, names, tuple(peer or ()), against, settings, batch, repeats,
        parse_numbers("levels", levels), queries_from, truth_queries if truth else 0, cache, limit,
        peer_images, seed, threads,
    )  # fmt: skip
    job.check()
    if json is not None:
        check_writable("json", json)

    from golddiff_lab.step import report
    from golddiff_lab.step.run import run

    with progress_bar() as bar:
        sides = len(names) + len(peer or ())
        total = sides * (repeats + 1) * len(job.sigmas())
        tasks = {
            "machine": bar.add_task("machine's rates, queries", total=None, visible=False),
            "queries": bar.add_task("queries", total=None, visible=False),
            "truth": bar.add_task("full scans, unless kept", total=None, visible=False),
            "steps": bar.add_task("steps", total=total, visible=False),
        }
        outcome = run(job, lambda what, n: bar.update(tasks[what], advance=n, visible=True))
    say(
        f"{describe(outcome.store)}; batch {batch}, {repeats} timed steps a level, "
        f"{outcome.machine.threads} threads, queries: {queries_from}"
    )
    say(report.machine_line(outcome.machine))
    show(report.levels_table(job, outcome))
    for line in report.notes(job, outcome):
        say(line)
    if memory:
        show(report.memory_table(outcome))
    if verbose:
        for level in outcome.levels:
            for name, words in level.words.items():
                if words is not None:
                    say(f"sigma {level.sigma:.3g}, {name}: {words}")
    if json is not None:
        about = {"golddiff": __version__, "store": summary(outcome.store)}
        write_json(json, {**about, **report.figures(job, outcome)})


@bench.command()
def kamb(
    store: Annotated[Path, _STORE],
    peer: Annotated[str, typer.Option(help="A checkout of convolutional_diffusion.")],
    sizes: Annotated[
        str, typer.Option(help="Patch sizes, odd, with commas between.")
    ] = "3,5,7,9,11,13,15",
    boundary: Annotated[
        list[str] | None,
        typer.Option(help="zeros (default) or circular; may be repeated.", show_default=False),
    ] = None,
    sigma: Annotated[float, typer.Option(help="Noise level.")] = 1.0,
    limit: Annotated[int, typer.Option(help="Use the first so many images.")] = 2000,
    batch: Annotated[int, typer.Option(help="Images of one step.")] = 1,
    repeats: Annotated[int, typer.Option(help="Timed steps, after one to warm up.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    threads: Threads = None,
    json: JsonPath = None,
) -> None:
    """Race Kamb's denoiser against its authors' code, for each patch size; compare the outputs.

    For example:

      golddiff bench kamb cifar.store --peer convolutional_diffusion/
    """
    from golddiff_lab.step.kamb import PatchJob, PatchRow, run_patches

    numbers = parse_numbers("sizes", sizes) or ()
    job = PatchJob(
        store, peer, numbers, tuple(boundary or ["zeros"]), sigma, limit, batch, repeats, seed,
        threads,
    )  # fmt: skip
    job.check()
    if json is not None:
        check_writable("json", json)
    say(
        f"full scan of {limit:,} images, sigma {sigma:g}, batch {batch}: ms per image and step, "
        "their time over ours, largest difference of the outputs"
    )
    say("boundary  patch      ours ms    theirs ms   ratio  difference")

    def on_row(row: PatchRow) -> None:
        say(
            f"{row.boundary:8}  {row.size:5}  {1e3 * row.ours:11.1f}  {1e3 * row.theirs:11.1f}  "
            f"{row.ratio:6.1f}  {row.difference:10.1e}"
        )

    rows = run_patches(job, on_row)
    if json is not None:
        figures: dict[str, Any] = {
            "golddiff": __version__,
            "limit": limit, "sigma": sigma, "batch": batch, "repeats": repeats, "seed": seed,
            "rows": [{**vars(row), "ratio": row.ratio} for row in rows],
        }  # fmt: skip
        write_json(json, figures)
