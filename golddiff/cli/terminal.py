"""Terminal output: results on stdout; progress bars on stderr, in a terminal or notebook only."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import golddiff
from golddiff.system.errors import printable
from golddiff.system.files import atomic_write
from golddiff.system.progress import progress_bar as progress_bar
from golddiff.system.progress import waiting as waiting
from golddiff.system.units import byte_size, shape_text

unsaid: list[OSError] = []  # why this run gave up stdout


def say(*lines: str) -> None:
    """Print lines of results and flush them; without stdout, a command still writes its files."""
    for line in lines:
        try:
            print(printable(line), flush=True)  # file names may contain control characters
        except OSError as error:  # its reader has ended, or its disk is full
            unsaid.append(OSError(error.errno, error.strerror, "standard output"))
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def starting() -> None:
    """Import the slow packages behind a progress bar."""
    gc.disable()  # collecting garbage during the imports would take half a second
    with waiting("starting"):
        golddiff.sample  # noqa: B018  imports torch and numba
    gc.enable()


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar up to ``total``; yield a function that advances it."""
    with progress_bar() as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)


def write_json(path: Path | None, figures: dict[str, Any], name: str = "json") -> None:
    """Write results to a JSON file atomically; does nothing if the path is None.

    ``name`` is the argument that error messages name.
    """
    if path is None:
        return
    with atomic_write(name, path) as temporary:
        temporary.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n", "utf-8")


def describe(store: golddiff.ImageStore) -> str:
    """One line: 'digits.store: 1,797 images, 8 x 8 grey, 10 classes, 210 kB'."""
    points = len(store.shape) == 1
    what = shape_text(store.shape) if points else f"images, {shape_text(store.shape)}"
    classes = f"{len(store.classes):,} classes" if store.classes else "no labels"
    return f"{store.path}: {store.n:,} {what}, {classes}, {byte_size(store.manifest.bytes)}"


def summary(store: golddiff.ImageStore) -> dict[str, Any]:
    """A description of a store for JSON."""
    manifest = store.manifest
    return {
        "golddiff": golddiff.__version__,
        "path": str(store.path),
        "source": manifest.source,
        "checksum": manifest.images_checksum,
        "n": store.n,
        "shape": list(store.shape),
        "dtype": manifest.dtype,
        "classes": {str(label): n for label, n in store.class_counts.items()} or None,
        "class_names": manifest.class_names,
        "bytes": manifest.bytes,
        "skipped": manifest.skipped,
    }
