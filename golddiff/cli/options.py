"""Options and groups of options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import golddiff
from golddiff.cli.command import ADVANCED, option
from golddiff.cli.terminal import say
from golddiff.estimators.registry import METHODS, method_named
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store, is_path
from golddiff.system.errors import ArgumentError
from golddiff.system.files import PICTURES, check_pictures, check_writable, is_folder
from golddiff.system.numbers import check_count

MAX_THREADS = 1024
METHOD_NAMES = (
    ", ".join(name for name, method in METHODS.items() if method.subsets is None)
    + "; over a subset of the images golddiff-NAME and adaptive-NAME, such as golddiff-pca"
)


def advanced(help: str, *names: str, **more: Any) -> Any:
    """An option in the "Advanced" panel of a command's help."""
    return typer.Option(*names, help=help, rich_help_panel=ADVANCED, **more)


def _writable_json(path: Path | None) -> Path | None:
    if path is not None:
        check_writable("json", path)
    return path


def _threads(count: int | None) -> int | None:
    if count is not None and check_count("threads", count) > MAX_THREADS:
        raise ArgumentError(f"threads: got {count}, expected at most {MAX_THREADS}")
    return count


JsonPath = Annotated[
    Path | None,
    typer.Option(
        "--json", help="Write the settings and results to this JSON file.", metavar="PATH",
        callback=_writable_json,
    ),
]  # fmt: skip
MethodName = Annotated[
    str,
    typer.Option(
        help=f"Method: {METHOD_NAMES}.",
        callback=lambda name: name and method_named(name),
        metavar="NAME",
    ),
]
Steps = Annotated[
    int, typer.Option(help="Number of denoising steps, 1 to 1000; above 200, a divisor of 1000.")
]
Seed = Annotated[int, typer.Option(help="Seed of the starting noise and of random subsets.")]
SamplerName = Annotated[str, advanced("Sampler: ddim (the paper's) or heun (EDM's).")]
Labels = Annotated[
    str | None,
    typer.Option(help="Classes to use, by number or name: one (3), or several in turn (0,1)."),
]
BatchSize = Annotated[int, advanced("Number of images per batch.", "--batch-size", "--batch")]
Threads = Annotated[
    int | None,
    advanced(
        "Number of threads; default: $OMP_NUM_THREADS, or all cores.",
        show_default=False, callback=_threads,
    ),
]  # fmt: skip
Cluster = Annotated[
    str | None,
    advanced(
        "Run on a Ray cluster: host:port of its head node, auto for one running on this machine, "
        "or local to start one on this machine's cores.",
        metavar="ADDRESS", show_default=False,
    ),
]  # fmt: skip

Size = Annotated[
    int | None,
    typer.Option(help="Scale each image's shorter side to this many pixels; crop the square."),
]
ValueRange = Annotated[
    tuple[float, ...] | str | None,
    advanced(
        "Least and largest value of float images that are not in [-1, 1], such as 0,255; any: "
        "take floats as they are.",
        metavar="LOW,HIGH",
    ),
]
Limit = Annotated[int | None, advanced("Read at most this many images.")]


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading a training set."""

    size: Size = None
    limit: Limit = None
    channels: int | None = option(
        "Convert to 1 (grey) or 3 (RGB) channels; default: unchanged.", None, panel=ADVANCED
    )
    split: str | None = option(
        "The split to read, if the source has splits; default train.", None, panel=ADVANCED
    )
    column: str | None = option(
        "The table column or .npz array that holds the images.", None, panel=ADVANCED
    )
    label_column: str | None = option(
        "The table column or .npz array that holds the class labels.", None, panel=ADVANCED
    )
    value_range: ValueRange = None
    skip_bad: bool | None = option(
        "Skip unreadable images and list them, or stop at the first one. Default: golddiff index "
        "stops, other commands skip.",
        None,
        panel=ADVANCED,
        names=("--skip-bad/--no-skip-bad",),
    )

    def given(self) -> dict[str, Any]:
        """The options that are set, as :class:`SourceOptions` takes them."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class TrainingImages:
    """The training images of a command: ``--data`` or ``--store``."""

    data: str | None = option(
        "Training images: a folder, file, built-in set (digits, moons, patches) or dataset on the "
        "Hugging Face hub. Read once, then cached ($GOLDDIFF_CACHE, ~/.cache/golddiff).",
        None,
    )
    store: str | None = option("A store made by golddiff index, instead of --data.", None)
    reading: ReadingOptions = field(default_factory=ReadingOptions)

    def check(self) -> None:
        """Check the options without opening or building a store."""
        if self.store is None:
            return
        if self.data is not None:
            raise ArgumentError("store: give --data or --store, not both")
        for name in self.reading.given():
            raise ArgumentError(f"{name}: does not apply to a store, which is already built")

    def open(self, needed: Callable[[int, int], float] | None = None) -> golddiff.ImageStore:
        """Open or build the store; see ``needed`` of :func:`golddiff.store.cache.cached_store`."""
        if self.store is not None:
            return golddiff.ImageStore.open(self.store)
        reading = SourceOptions(**{"skip_bad": True, **self.reading.given()})
        return cached_store(self.data, reading, say=say, progress=True, needed=needed)


def check_outputs(
    images: TrainingImages,
    inputs: Sequence[Path | None],
    out: Path,
    json: Path | None,
    explain: Path | None,
    trajectory: Path | None = None,
) -> None:
    """Raise if an output is unwritable, a duplicate, one of ``inputs`` or in the training set."""
    check_pictures("out", out)
    read = [_real(path) for path in inputs if path is not None]
    numbered = [path.parent for path in read if path.stem.isdigit()]
    outputs = {
        "out": (out / "grid.png" if is_folder(out) else out, ()),
        "trajectory": (trajectory, PICTURES),
        "explain": (explain, (".html", ".htm")),
        "json": (json, ()),
    }
    seen: dict[Path, str] = {}
    for name, (path, endings) in outputs.items():
        if path is None:
            continue
        check_writable(name, path, endings)
        target = _real(path)
        other = seen.setdefault(target, name)
        if other != name:
            raise ArgumentError(f"{name}: {path} is also the file of --{other}")
        check_apart(name, path, images.data or images.store)
        if target in read or (name == "out" and is_folder(out) and target.parent in numbered):
            raise ArgumentError(f"{name}: {path} would overwrite an input picture")


def check_apart(name: str, path: Path | None, source: str | Path | None) -> None:
    """Raise if an output is the file or lies in the folder that images are read from.

    It would replace an image or the whole set, or be an image of the next run.
    """
    if path is None or source is None or not is_path(str(source)):
        return
    target, read = _real(path), _real(Path(source))
    if target == read or read in target.parents:
        where = "is" if target == read else "is in"
        raise ArgumentError(f"{name}: {path} {where} {source}, which is read; give another place")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises on cyclic links


def parse_labels(text: str | None, store: golddiff.ImageStore, n: int) -> list[int] | None:
    """The classes of ``n`` images from comma-separated class indices or names, used in turn.

    None if ``text`` is None. A number is a class name if there is one, else an index.
    """
    if text is None:
        return None
    words = [text] if text in (store.class_names or []) else text.split(",")
    classes = [_class_index(word.strip(), store) for word in words]
    for label in classes:
        store.count_of(label)  # raises where the class has no images
    return [classes[i % len(classes)] for i in range(n)]


def _class_index(word: str, store: golddiff.ImageStore) -> int:
    names = store.class_names or []
    if word in names:
        return names.index(word)
    if re.fullmatch("-?[0-9]+", word):
        return int(word)
    if not store.classes:
        raise ArgumentError(f"labels: got {word!r}, but the store has no labels")
    more = ", ..." if len(names) > 8 else ""
    known = f" or a name ({', '.join(names[:8])}{more})" if names else ""
    raise ArgumentError(
        f"labels: got {word!r}, expected a class index{known}, or a comma-separated list"
    )
