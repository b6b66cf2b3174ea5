"""``golddiff studio``: serve the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import golddiff
from golddiff.cli.command import command, option
from golddiff.cli.options import Limit, Size
from golddiff.cli.terminal import say, starting
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store
from golddiff.studio import HOST, PORT, serve
from golddiff.system.errors import ArgumentError


@dataclass(frozen=True)
class _StudioOptions:
    store: list[Path] | None = option(
        "A store made by golddiff index; repeat the option for several.", None
    )
    data: list[str] | None = option(
        "Training images: a folder, file, built-in set (digits, patches) or dataset on the Hugging "
        "Face hub; repeat the option for several. Default digits.",
        None,
    )
    host: str = option("Address to listen on; 0.0.0.0 gives other machines access.", HOST)
    port: int = option("Port to listen on; 0 for any free port.", PORT)
    no_browser: bool = option("Do not open the page in a browser.", False)
    size: Size = None
    limit: Limit = None


@command
def studio(options: _StudioOptions) -> None:
    """Watch all methods denoise side by side, on a web page served by this machine.

    For example:

      golddiff studio
      golddiff studio --store photos.store --store cifar.store --port 8000
      golddiff studio --data photos/ --size 32
    """
    if (options.size is not None or options.limit is not None) and not options.data:
        raise ArgumentError("--size and --limit apply to --data only")
    starting()
    serve(_openers(options), options.host, options.port, not options.no_browser, say)
    # Stop runs that still compute: a normal exit would abort inside their kernels.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _openers(options: _StudioOptions) -> dict[str, Callable[[], golddiff.ImageStore]]:
    """Functions that open each store, by its shortest unique name."""
    reading = SourceOptions(size=options.size, limit=options.limit, skip_bad=True)
    read = partial(cached_store, options=reading, say=say, progress=True)
    opened, stores = golddiff.ImageStore.open, options.store or []
    sources = options.data or ([] if stores else ["digits"])
    openers: list[tuple[str, str, Callable[[], golddiff.ImageStore]]] = [
        *((path.resolve().name, str(path), partial(opened, path)) for path in stores),
        *((Path(source).name or source, source, partial(read, source)) for source in sources),
    ]
    short = [name for name, _, _ in openers]
    return {name if short.count(name) == 1 else full: opener for name, full, opener in openers}
