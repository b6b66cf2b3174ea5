"""``golddiff evaluate``: run the oracle and each method; print, draw and write the results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import golddiff
from golddiff.cli.command import ADVANCED, argument, command, option
from golddiff.cli.first_use import create_with_bars
from golddiff.cli.options import (
    METHOD_NAMES,
    BatchSize,
    JsonPath,
    Labels,
    SamplerName,
    Seed,
    Steps,
    check_apart,
    parse_labels,
)
from golddiff.cli.terminal import counting, describe, say, starting, summary, waiting, write_json
from golddiff.estimators.registry import METHODS, MethodSettings, check_methods, method_named
from golddiff.system.files import check_writable
from golddiff.system.markdown import markdown_table
from golddiff.system.units import byte_size, duration

if TYPE_CHECKING:
    from golddiff.evaluation.compare import Evaluation
    from golddiff.evaluation.references import OracleFile
    from golddiff.evaluation.runs import Run
    from golddiff.figures.curves import Panel

SHOWN = 8  # images per method in images.png


@dataclass(frozen=True)
class _EvaluateOptions:
    store: Path = argument("A store made by golddiff index.")
    oracle: Path = option("The network's weights: a file or a folder.", metavar="PATH")
    method: list[str] | None = option(
        f"Method; repeat the option for several: {METHOD_NAMES}. Default golddiff-pca.",
        None,
        metavar="NAME",
        callback=lambda names: names and [*map(method_named, names)],
    )
    n: int = option("Number of images; the paper uses 128.", 128)
    steps: Steps = 10
    seed: Seed = 0
    labels: Labels = None
    out: Path | None = option("Folder for evaluation.json, curves.png and images.png.", None)
    json: JsonPath = None
    single_step: bool = option(
        "Also measure the error of each step alone, at the oracle's states; doubles the time.",
        True,
        names=("--single-step/--no-single-step",),
    )
    settings: MethodSettings = field(default_factory=MethodSettings)
    sampler: SamplerName = "ddim"
    oracle_sampler: str | None = option(
        "The oracle's sampler, if it differs from --sampler.", None, panel=ADVANCED
    )
    batch_size: BatchSize = 16


@command
def evaluate(options: _EvaluateOptions) -> None:
    """Compare methods with a trained network from the same noise, by MSE and r2 per image.

    For example:

      golddiff evaluate cifar.store --oracle cifar-oracle/ --method pca --method golddiff-pca
      golddiff evaluate mnist.store --oracle mnist-oracle/ --n 16 --out compared/
    """
    methods = options.method or ["golddiff-pca"]
    check_methods(methods, options.settings)
    method_settings = {name: options.settings.of(name) for name in methods}
    if options.out is not None:
        check_writable("out", options.out / "evaluation.json")
    check_apart("out", options.out, options.store)
    check_apart("json", options.json, options.store)

    starting()
    from golddiff.evaluation.compare import compare
    from golddiff.evaluation.references import OracleFile, reference_run
    from golddiff.evaluation.runs import RunSettings
    from golddiff.samplers import check_settings, sampler_named

    n, steps, seed, batch = check_settings(
        options.n, options.steps, options.sampler, options.seed, options.batch_size
    )
    oracle_sampler = options.oracle_sampler or options.sampler
    sampler_named(oracle_sampler, "oracle_sampler")
    store = golddiff.ImageStore.open(options.store)
    with waiting("computing the network's checksum"):
        oracle = OracleFile(options.oracle)
    labels = parse_labels(options.labels, store, n)
    classes = None if labels is None else tuple(labels)
    method_run = RunSettings(n, steps, options.sampler, seed, classes, batch)
    oracle_run = replace(method_run, sampler=oracle_sampler)
    with counting("sampling with the oracle", n * steps) as on_step:
        reference = reference_run(oracle, store, oracle_run, on_step=on_step)
    evaluations = {}
    for name, settings in method_settings.items():
        denoiser = create_with_bars(name, store, settings, seed)
        with counting(f"evaluating {name}", n * steps) as on_step:
            evaluations[name] = compare(
                denoiser, reference, method_run, single_step=options.single_step, on_step=on_step
            )
    say(f"compared with {options.oracle}")
    _print_table(evaluations)
    results = figures(store, oracle, evaluations, method_settings)
    write_json(options.json, results)
    if options.out is not None:
        write_folder(options.out, reference, evaluations, results)


def _print_table(evaluations: dict[str, Evaluation]) -> None:
    header = ("method", "MSE", "95%", "r2", "95%", "per image and step", "peak memory")
    rows = [
        [name, f"{e.mse.mean:.4f}", e.mse.bounds(".4f"), f"{e.r2.mean:.3f}", e.r2.bounds(".3f"),
         duration(e.seconds), f"{byte_size(e.memory.bytes)} ({e.memory.kind})"]
        for name, e in evaluations.items()
    ]  # fmt: skip
    say(*markdown_table(header, rows))
    (first, baseline), *others = evaluations.items()
    for name, evaluation in others:
        mse, r2 = difference(evaluation, baseline).values()
        say(
            f"{name} less {first}, image by image: MSE {mse.mean:+.4f} ({mse.bounds('+.4f')}), "
            f"r2 {r2.mean:+.3f} ({r2.bounds('+.3f')})"
        )


def difference(first: Evaluation, second: Evaluation) -> dict[str, Any]:
    """95% intervals of the mean per-image difference in MSE and r2, first minus second."""
    from golddiff.evaluation.interval import mean_interval

    return {
        "mse": mean_interval(first.mse_per_image - second.mse_per_image),
        "r2": mean_interval(first.r2_per_image - second.r2_per_image),
    }


def figures(
    store: golddiff.ImageStore,
    oracle: OracleFile,
    evaluations: dict[str, Evaluation],
    settings: dict[str, MethodSettings],
) -> dict[str, Any]:
    """All results except the images, for --json."""
    return {
        "golddiff": golddiff.__version__,
        "kind": "evaluation",
        "store": {"description": describe(store), **summary(store)},
        "oracle": {"path": str(oracle.path), "checksum": oracle.checksum},
        "methods": {
            name: {"settings": settings[name].given(), **evaluation.figures()}
            for name, evaluation in evaluations.items()
        },
        "differences": [
            {"of": a, "less": b, **{k: v.figures() for k, v in difference(x, y).items()}}
            for (a, x), (b, y) in combinations(evaluations.items(), 2)
        ],
        "panels": [asdict(panel) for panel in panels(evaluations)],
    }  # fmt: skip


def panels(evaluations: dict[str, Evaluation]) -> list[Panel]:
    """Plots of MSE and r2 per step, for whole runs and for single steps."""
    from golddiff.figures.curves import Panel, Series

    titles = {"own": "both sides at their own states", "single": "one step, at the oracle's states"}
    axes = (("mse", "MSE", "log", None), ("r2", "r2", "linear", -1.0))
    drawn = []
    for (which, title), (metric, text, scale, floor) in product(titles.items(), axes):
        lines = [
            Series(name, e.sigmas, getattr(e, which).figures()[metric])
            for name, e in evaluations.items()
            if getattr(e, which) is not None
        ]
        if lines:
            x, y = "noise level σ", f"{text} of the predicted x0"
            drawn.append(Panel(title, x, y, lines, "log", scale, falling=True, floor=floor))
    return drawn


def write_folder(
    out: Path, reference: Run, evaluations: dict[str, Evaluation], results: dict[str, Any]
) -> None:
    """Write ``evaluation.json``, ``curves.png`` and ``images.png``."""
    from golddiff.figures.curves import draw_panels
    from golddiff.system.pictures import save

    write_json(out / "evaluation.json", results, "out")
    curves = panels(evaluations)
    if curves:
        name = "" if len(evaluations) > 1 else next(iter(evaluations))  # else in the legend
        save("out", draw_panels(curves, name), out / "curves.png")
    save("out", _figure(reference, evaluations, results), out / "images.png")
    say(f"{out}: evaluation.json" + (", curves.png" if curves else "") + ", images.png")


def _figure(reference: Run, evaluations: dict[str, Evaluation], results: dict[str, Any]) -> Any:
    """Images of each method and the oracle from the same noise, one row each."""
    from golddiff.figures.methods import Block, draw_methods
    from golddiff.samplers import initial_noise

    settings = next(iter(evaluations.values())).settings
    shown = min(SHOWN, settings.n)
    images = {METHODS[m].title: e.images[:shown] for m, e in evaluations.items()}
    seconds = {METHODS[m].title: e.seconds for m, e in evaluations.items()}
    images["oracle"] = reference.images[:shown]
    seconds["oracle"] = reference.seconds / (settings.n * settings.steps)
    noise = initial_noise(shown, tuple(reference.images.shape[1:]), settings.seed)
    name = Path(results["store"]["path"]).name
    block = Block("", f"{name}, {settings.steps} steps", noise, images, seconds)
    return draw_methods([block], "Under each method: measured time per image and step.")
