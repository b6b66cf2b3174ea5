"""``golddiff studio``: the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from golddiff.cli.command import command, option
from golddiff.cli.options import Limit, Size
from golddiff.cli.terminal import say, starting
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store
from golddiff.studio import HOST, PORT, check_installed, serve
from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore


@dataclass(frozen=True)
class _StudioOptions:
    store: list[Path] | None = option(
        "A store that golddiff index made; may come several times.", None
    )
    data: list[str] | None = option(
        "Training images: folder, file, built-in (digits, patches) or hub name; may come "
        "several times. Default digits.",
        None,
    )
    host: str = option("The address to listen on; 0.0.0.0 lets other machines in.", HOST)
    port: int = option("0 for any that is free.", PORT)
    no_browser: bool = option("Do not open the page in a browser.", False)
    size: Size = None
    limit: Limit = None


@command
def studio(options: _StudioOptions) -> None:
    """Watch every method denoise side by side, on a page that never leaves this machine.

    For example:

      golddiff studio

      golddiff studio --store photos.store --store cifar.store --port 8000

      golddiff studio --data photos/ --size 32
    """
    check_installed()
    if (options.size is not None or options.limit is not None) and not options.data:
        raise ArgumentError("--size and --limit apply to --data only")
    starting()
    serve(_openers(options), options.host, options.port, not options.no_browser, say)
    # Ends runs that still compute: Python's own end would abort in the midst of their kernels.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _openers(options: _StudioOptions) -> dict[str, Callable[[], ImageStore]]:
    """What opens each store, by the shortest name that no other has."""
    from golddiff.store.images import ImageStore

    reading = SourceOptions(size=options.size, limit=options.limit)
    read = partial(cached_store, options=reading, say=say, progress=True)
    stores = options.store or []
    sources = options.data or ([] if stores else ["digits"])
    openers: list[tuple[str, str, Callable[[], ImageStore]]] = [
        *((path.resolve().name, str(path), partial(ImageStore.open, path)) for path in stores),
        *((Path(source).name or source, source, partial(read, source)) for source in sources),
    ]
    short = [name for name, _, _ in openers]
    return {name if short.count(name) == 1 else full: opener for name, full, opener in openers}
