"""``golddiff reproduce``: the paper's tables and figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from golddiff.cli.command import argument, command, option
from golddiff.cli.options import Threads
from golddiff.cli.terminal import counting, say
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff_lab.paper.datasets import parse_data, parse_oracles
from golddiff_lab.paper.registry import EXPERIMENTS, find, of_the_paper
from golddiff_lab.paper.settings import Settings

ALL = "all"


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of ``golddiff reproduce``."""

    name: str | None = argument("Which (see --list), or all.", None)
    listed: bool = option("List the experiments.", False, names=("--list",))
    data: list[str] | None = option(
        "A data set: a store, or images to index. Repeat for several. Names: mnist, "
        "fashion-mnist, cifar10, celeba-hq, afhq, imagenet, imagenet64-100.",
        None,
        metavar="NAME=PATH",
    )
    oracle: list[str] | None = option(
        "The network to compare with on a data set; NAME-conditional, NAME-edm-vp and NAME-edm-ve "
        "for networks of these kinds.",
        None,
        metavar="NAME=PATH",
    )
    settings: Settings = field(default_factory=Settings)
    threads: Threads = None
    report: Path | None = option(
        "Collect all finished experiments in --out into this page, with the remarks of "
        "NAME.notes.md beside it.",
        None,
        metavar="PATH.md",
    )


@command
def reproduce(options: ReproduceOptions) -> None:
    """Compute a table or figure of the paper, our figures beside the paper's.

    What is computed is kept in --out: a second run, or one after an interrupt, goes on from there.
    Data sets and networks that are not given stand as "no data here" and "no oracle here".

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
        raise ArgumentError(f"name: none given, expected all or one of {', '.join(EXPERIMENTS)}")
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
    stores, networks = parse_data(options.data or []), parse_oracles(options.oracle or [])

    from golddiff.sampling import check_settings
    from golddiff.system.parallel import use_threads
    from golddiff_lab.paper.context import Context

    check_settings(settings.n, 10, "ddim", settings.seed)
    use_threads(options.threads)
    context = Context(**vars(settings), data=stores, oracles=networks, say=say, watch=counting)
    # What is given is opened before anything is computed: a wrong path shows at once.
    for given in stores:
        context.store(given)
    for given in networks:
        context.oracle(given)
    for name in names:
        experiment = find(name)
        say(f"{name}: {experiment.title}")
        page = experiment.run(context)
        paths = page.write(out, name, experiment.title, experiment.source, quick=settings.quick)
        say(", ".join(map(str, paths)))
