"""``golddiff studio``: the page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from golddiff.cli.options import Limit, Size
from golddiff.cli.terminal import say, watched
from golddiff.errors import ArgumentError
from golddiff.store.cache import SourceOptions, cached_store
from golddiff.studio import HOST, PORT, check_installed, serve

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

Opener = Callable[[], "ImageStore"]


def studio(
    store: Annotated[
        list[Path] | None,
        typer.Option(help="A store that golddiff index made; may come several times."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Training images: folder, file, built-in (digits, patches) or hub name; may come "
            "several times. Default digits.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")
    ] = HOST,
    port: Annotated[int, typer.Option(help="0 for any that is free.")] = PORT,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open the page in a browser.")
    ] = False,
    size: Size = None,
    limit: Limit = None,
) -> None:
    """Watch every method denoise side by side, on a page that never leaves this machine.

    For example:

      golddiff studio

      golddiff studio --store photos.store --store cifar.store --port 8000

      golddiff studio --data photos/ --size 32
    """
    check_installed()
    reading = SourceOptions(size=size, limit=limit)
    if reading != SourceOptions() and not data:
        raise ArgumentError("--size and --limit apply to --data only")
    sources = data or ([] if store else ["digits"])
    serve(_openers(store or [], sources, reading), host, port, not no_browser, say)


def _openers(stores: list[Path], sources: list[str], reading: SourceOptions) -> dict[str, Opener]:
    """What opens each store, by the shortest name that tells it from the others."""
    openers: list[tuple[str, str, Opener]] = [
        (path.resolve().name, str(path), partial(_open, path)) for path in stores
    ]
    openers += [
        (Path(source).name or source, source,
         partial(cached_store, source, reading, say=say, progress=watched()))
        for source in sources
    ]  # fmt: skip
    short = [name for name, _, _ in openers]
    return {name if short.count(name) == 1 else full: opener for name, full, opener in openers}


def _open(path: Path) -> ImageStore:
    from golddiff.store.images import ImageStore

    return ImageStore.open(path)
