"""``golddiff reproduce``: the paper's tables and figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from golddiff.cli.command import argument, command, option
from golddiff.cli.options import Threads
from golddiff.cli.terminal import counting, say
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff_lab.paper.datasets import DATA_SETS, ORACLE_SUFFIXES, parse_paths
from golddiff_lab.paper.registry import EXPERIMENTS, find, of_the_paper
from golddiff_lab.paper.settings import Settings

ALL = "all"


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of ``golddiff reproduce``."""

    name: str | None = argument("Name of an experiment (see --list), or all.", None)
    listed: bool = option("List the experiments.", False, names=("--list",))
    data: list[str] | None = option(
        "A data set: a store, or images to index; repeat the option for several. Names: "
        f"{', '.join(DATA_SETS)}.",
        None,
        metavar="NAME=PATH",
    )
    oracle: list[str] | None = option(
        "The network to compare with on a data set; use NAME-conditional, NAME-edm-vp and "
        "NAME-edm-ve for networks of these kinds.",
        None,
        metavar="NAME=PATH",
    )
    settings: Settings = field(default_factory=Settings)
    threads: Threads = None
    report: Path | None = option(
        "Collect all finished experiments of --out in this page, with remarks from the files "
        "NAME.notes.md beside it.",
        None,
        metavar="PATH.md",
    )


@command
def reproduce(options: ReproduceOptions) -> None:
    """Compute a table or figure of the paper, with our results beside the paper's.

    Results are kept in --out, so that a later run, or one after an interrupt, continues from them.
    Missing data sets and networks are listed as "no data here" and "no oracle here".

    For example:

      golddiff reproduce --list
      golddiff reproduce mnist --data mnist=mnist.store --oracle mnist=mnist-oracle/
      golddiff reproduce all --data cifar10=cifar.store --oracle cifar10=net/ --kamb-images 1000
      golddiff reproduce --report docs/results/paper.md
    """
    if options.listed:
        for experiment in EXPERIMENTS.values():
            say(f"{experiment.name:<18} {experiment.title} ({experiment.source})")
        return
    if options.name is None and options.report is None:
        raise ArgumentError(f"name: got none, expected all or one of {', '.join(EXPERIMENTS)}")
    if options.report is not None:
        check_writable("report", options.report, (".md",))
    if options.name is not None:
        _run(of_the_paper() if options.name == ALL else [find(options.name).name], options)
    if options.report is not None:
        from golddiff_lab.paper.report import write_report

        finished = write_report(options.settings.out, options.report)
        say(f"{options.report}: {', '.join(finished)}")


def _run(names: list[str], options: ReproduceOptions) -> None:
    settings, out = options.settings, options.settings.out
    check_writable("out", out / f"{names[0]}.md")
    if settings.quick:
        _check_trial(out, names)
    stores = parse_paths("data", options.data or [])
    networks = parse_paths("oracle", options.oracle or [], ORACLE_SUFFIXES)

    from golddiff.samplers import check_settings
    from golddiff.system.parallel import use_threads
    from golddiff_lab.paper.context import Context

    check_settings(settings.n, 10, "ddim", settings.seed)
    use_threads(options.threads)
    context = Context(**vars(settings), data=stores, oracles=networks, say=say, watch=counting)
    # Open all inputs before computing anything, so that a wrong path fails at once.
    for dataset in stores:
        context.store(dataset)
    for network in networks:
        context.oracle(network)
        if not any(network == name or network.startswith(f"{name}-") for name in stores):
            raise ArgumentError(f"oracle: got {network}, but --data has no images of that name")
    for name in names:
        experiment = find(name)
        say(f"{name}: {experiment.title}")
        page = experiment.run(context)
        paths = page.write(out, name, experiment.title, experiment.source, quick=settings.quick)
        say(", ".join(map(str, paths)))


def _check_trial(out: Path, names: list[str]) -> None:
    """Refuse a trial run that would replace a result."""
    for name in names:
        record = out / f"{name}.json"
        if record.is_file() and b'"quick": true' not in record.read_bytes():
            raise ArgumentError(
                f"out: {out} has the result of {name}, which a trial run (--quick) would replace; "
                "give another folder"
            )
