"""The options that several commands share, each stated once, and the groups they come in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from golddiff.cli.command import ADVANCED, option
from golddiff.cli.terminal import say
from golddiff.estimators.registry import METHODS, method_named
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store, is_path
from golddiff.system.errors import ArgumentError
from golddiff.system.files import PICTURES, check_writable
from golddiff.system.numbers import check_count

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore


MOST_THREADS = 1024


def advanced(help: str, *names: str, **more: Any) -> Any:
    """An option of the second panel of a command's help."""
    return typer.Option(*names, help=help, rich_help_panel=ADVANCED, **more)


def _writable_json(path: Path | None) -> Path | None:
    if path is not None:
        check_writable("json", path)
    return path


JsonPath = Annotated[
    Path | None,
    typer.Option(
        "--json", help="Write settings and figures to this file.", metavar="PATH",
        callback=_writable_json,
    ),
]  # fmt: skip
MethodName = Annotated[
    str,
    typer.Option(
        help=", ".join(METHODS) + ".",
        callback=lambda given: given and method_named(given),
        metavar="NAME",
    ),
]
Steps = Annotated[int, typer.Option(help="Denoising steps, 1 to 1000.")]
Seed = Annotated[int, typer.Option(help="Of the starting noise and the random picks.")]
SamplerName = Annotated[str, advanced("ddim or heun.")]
Labels = Annotated[
    str | None,
    typer.Option(help="Only these classes, by number or name: one (3), or several in turn (0,1)."),
]
BatchSize = Annotated[int, advanced("Images denoised together.", "--batch-size", "--batch")]
Threads = Annotated[
    int | None,
    advanced(
        "Threads to use; default: all cores.", show_default=False, max=MOST_THREADS,
        callback=lambda given: None if given is None else check_count("threads", given),
    ),
]  # fmt: skip
Cluster = Annotated[
    str | None,
    advanced(
        "Work on a Ray cluster: host:port of its head, auto for one that runs here, or local to "
        "start one of this machine's cores.",
        metavar="ADDRESS", show_default=False,
    ),
]  # fmt: skip

Size = Annotated[
    int | None,
    typer.Option(help="Scale the shorter side of each image to this and crop the middle square."),
]
Limit = Annotated[int | None, advanced("Read at most this many images.")]


@dataclass(frozen=True)
class ReadingOptions:
    """How a training set is read."""

    size: Size = None
    limit: Limit = None
    channels: int | None = option(
        "1 (grey) or 3 (RGB); default: as the images are.", None, panel=ADVANCED
    )
    split: str | None = option(
        "The part to read, where the source has parts; default train.", None, panel=ADVANCED
    )
    column: str | None = option(
        "The column (of a table) or array (of a .npz) that holds the images.", None, panel=ADVANCED
    )
    label_column: str | None = option(
        "The column or array that holds the class labels.", None, panel=ADVANCED
    )
    skip_bad: bool | None = option(
        "Leave out images that cannot be read, and say which; or stop at the first. Default: "
        "golddiff index stops, golddiff sample goes on.",
        None,
        panel=ADVANCED,
        names=("--skip-bad/--no-skip-bad",),
    )

    def source(self, seed: int = 0, *, skip_bad: bool) -> SourceOptions:
        """The same as the readers have it; ``skip_bad`` where it is not given."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return SourceOptions(**{"skip_bad": skip_bad, **given}, seed=seed)

    def refuse_for_store(self) -> None:
        """Raise where one of them is given for a store."""
        for name, value in vars(self).items():
            if value is not None:
                raise ArgumentError(f"{name}: does not apply to a store, which was read already")


@dataclass(frozen=True)
class TrainingImages:
    """What a command takes its training images from: ``--data`` or ``--store``."""

    data: str | None = option(
        "Training images: folder, file, built-in (digits, moons, patches) or hub name. "
        "Indexed once in a cache ($GOLDDIFF_CACHE, ~/.cache/golddiff).",
        None,
    )
    store: str | None = option("A store that golddiff index made, instead of --data.", None)
    reading: ReadingOptions = field(default_factory=ReadingOptions)

    def check(self) -> None:
        """What can be checked before a store is opened or built."""
        if self.store is None:
            return
        if self.data is not None:
            raise ArgumentError("store: give --data or --store, not both")
        self.reading.refuse_for_store()

    def open(self, needed: Callable[[int, int], float] | None = None) -> ImageStore:
        """The store; ``needed`` as of :func:`golddiff.store.cache.cached_store`."""
        from golddiff.store.images import ImageStore

        if self.store is not None:
            return ImageStore.open(self.store)
        reading = self.reading.source(skip_bad=True)
        return cached_store(self.data, reading, say=say, progress=True, needed=needed)


def check_outputs(
    images: TrainingImages,
    brought: Sequence[Path | None],
    out: Path,
    json: Path | None,
    explain: Path | None,
    trajectory: Path | None = None,
) -> None:
    """Raise where a run could not write what it is asked for, or would write one file twice.

    Or over a picture that was ``brought``, or into the folder of its training images, which would
    be other ones the next time.
    """
    data = images.data and os.path.expanduser(images.data)
    folder = _real(Path(data)) if data and is_path(data) else None
    given = [_real(path) for path in brought if path is not None]
    numbered = [path.parent for path in given if path.stem.isdigit()]
    outputs = {
        "out": (out if out.suffix else out / "grid.png", (*PICTURES, ".npz")),
        "trajectory": (trajectory, PICTURES),
        "explain": (explain, (".html", ".htm")),
        "json": (json, ()),
    }
    seen: dict[Path, str] = {}
    for name, (path, endings) in outputs.items():
        if path is None:
            continue
        check_writable(name, path, endings)
        place = _real(path)
        other = seen.setdefault(place, name)
        if other != name:
            raise ArgumentError(f"{name}: {path} is also what --{other} writes")
        if folder in place.parents:
            raise ArgumentError(f"{name}: {path} would lie among the images of --data")
        if place in given or (name == "out" and not out.suffix and place.parent in numbered):
            raise ArgumentError(f"{name}: {path} would replace a picture that is read")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises where links lead round
