"""``golddiff bench index``: searches for the nearest images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from golddiff import __version__
from golddiff.cli.options import JsonPath
from golddiff.cli.parse import parse_numbers
from golddiff.cli.terminal import progress_bar, say, show, write_json
from golddiff.system.files import check_writable
from golddiff_lab.arguments import whole_numbers

_NOTES = """\
ms        milliseconds per query, the median search over its batch of queries
ratio     the first one's time over this one's: above 1, this one is faster
recall    share of the k nearest images found, by the principal coordinates that all compare
memory    that it keeps, beyond the store"""


def index(
    store: Annotated[Path, typer.Argument(help="A folder that golddiff index made.")],
    k: Annotated[
        str, typer.Option(help="Numbers of images to find, with commas between.")
    ] = "100,1000,5000",
    levels: Annotated[
        str, typer.Option(help="Noise levels of the queries, with commas between.")
    ] = "6,1,0.1",
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="Another search: module:function, called as search(store, x, sigma, k) with x "
            "(b, D) and returning rows (b, k). Its code is run. May be repeated.",
            show_default=False,
        ),
    ] = None,
    faiss: Annotated[bool, typer.Option("--faiss/--no-faiss", help="Race FAISS's indexes.")] = True,
    probes: Annotated[
        str, typer.Option(help="Lists that FAISS's inverted file looks through, commas between.")
    ] = "1,8,64",
    lists: Annotated[
        int | None,
        typer.Option(help="Lists that it has; default 4 sqrt(images).", show_default=False),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch-size", "--batch", help="Queries of one search.")
    ] = 16,
    repeats: Annotated[int, typer.Option(help="Timed searches, after one to warm up.")] = 3,
    queries_from: Annotated[
        str,
        typer.Option(help="noised (training images) or trajectory (a sampling run's own points)."),
    ] = "noised",
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    threads: Annotated[
        int | None, typer.Option(help="Threads to use; default: all cores.", show_default=False)
    ] = None,
    json: JsonPath = None,
) -> None:
    """Race searches for the k nearest images: time, and recall of the exact ones.

    The store's own index takes part where it has been built (golddiff prepare, Index.build).

    For example:

      golddiff bench index cifar.store

      golddiff bench index cifar.store --k 1000 --search mymodule:search --json index.json
    """
    from golddiff_lab.search.race import SearchJob, figures, race, table

    job = SearchJob(
        store, whole_numbers("k", k), parse_numbers("levels", levels) or (), tuple(search or ()),
        faiss, whole_numbers("probes", probes), lists, batch, repeats, queries_from, seed, threads,
    )  # fmt: skip
    job.check()
    if json is not None:
        check_writable("json", json)
    with progress_bar() as bar:
        task = bar.add_task("", total=None)
        found = race(job, lambda what: bar.update(task, description=what))
    show(table(found))
    say(_NOTES)
    if json is not None:
        write_json(json, {"golddiff": __version__, **figures(job, found)})
