"""``golddiff novelty``: measure how new pictures are, and find copies of training images."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import golddiff
from golddiff.cli.command import argument, command, option
from golddiff.cli.options import (
    JsonPath,
    ReadingOptions,
    Size,
    TrainingImages,
    ValueRange,
    check_apart,
)
from golddiff.cli.terminal import say, starting, waiting, write_json
from golddiff.system.errors import ArgumentError, printable
from golddiff.system.files import check_writable
from golddiff.system.units import shape_text

if TYPE_CHECKING:
    import torch

MAX_VALUES = 2**28  # one gigabyte of float32
REFERENCE = 500  # training images for the reference sharpness and speckle


@dataclass(frozen=True)
class _NoveltyOptions:
    pictures: str = argument("A model's pictures: a file, folder, .npz, .npy, .zip or .parquet.")
    store: str = argument("The model's training images: a store or a source of golddiff index.")
    size: Size = None
    out: Path | None = option(
        "Web page of each picture beside its nearest training image.", None, metavar="PATH.html"
    )
    value_range: ValueRange = None  # of the pictures; golddiff index has one for training images
    json: JsonPath = None


@command
def novelty(options: _NoveltyOptions) -> None:
    """Measure how new any model's pictures are, and find copies of training images.

    Novelty is the distance to the nearest training image over the usual distance between nearest
    training images: 0 is an exact copy, 1 is as new as another picture of the same kind. A copy is
    less than a third as far from its nearest training image as from the second (Yoon et al. 2023).
    Training images that are nearly the same count as one.

    For example:

      golddiff novelty outputs/ photos/ --size 64 --out novelty.html
      golddiff novelty samples.npz cifar.store --json novelty.json
    """
    out = options.out
    if out is not None:
        check_writable("out", out, (".html", ".htm"))
    for source in (options.pictures, options.store):
        check_apart("out", out, source)
        check_apart("json", options.json, source)

    starting()
    from golddiff.evaluation.novelty_report import write_novelty_report
    from golddiff.sources import resolve_source

    # Bad input is refused before a store is built.
    pictures = resolve_source(options.pictures)
    pictures = _without_grid(pictures) if isinstance(pictures, Path) else pictures
    opened = TrainingImages(options.store, reading=ReadingOptions(size=options.size)).open()
    if out is not None and len(opened.shape) != 3:
        raise ArgumentError("out: got a training set of points, expected images")
    with waiting("reading pictures") as watch:
        images, names, skipped = _read(pictures, opened, options.value_range, watch)
    with waiting("finding the nearest training images") as watch:
        result = golddiff.novelty(images, opened, watch)
    with waiting("measuring sharpness and speckle"):
        quality = _sharpness_and_speckle(images, opened)
    figures: dict[str, Any] = {
        "pictures": len(images),
        "skipped": skipped,
        "training_images": opened.n,
        "mean_novelty": float(result.novelty.mean()),
        "copies": int(result.copies.sum()),
        "share_of_copies": float(result.copies.double().mean()),
        "spacing": result.spacing,
        **quality,
        "novelty": result.novelty.tolist(),
        "files": names or None,
        "nearest": result.nearest.tolist(),
        "nearest_files": result.files,
        "distances": result.distances.tolist(),
        "copied": result.copies.tolist(),
    }
    say(f"{result.about} pictures, compared with {opened.n:,} training images")
    measured = [f"{name} {value:.2f}" for name, value in quality.items() if value is not None]
    if measured:
        say(f"{', '.join(measured)} (training images: 1)")
    if out is not None:
        with waiting("writing the page"):
            write_novelty_report(result, images, opened, out, names, len(skipped))
        say(f"{out}: the pictures, least new first, beside their nearest training images")
    write_json(options.json, figures)


def _read(
    pictures: Any,
    store: golddiff.ImageStore,
    value_range: tuple[float, ...] | str | None,
    watch: Callable[[int, int], None],
) -> tuple[torch.Tensor, list[str], list[tuple[str, str]]]:
    """The pictures in the store's form, their file names if any, and those that are unreadable."""
    import torch

    from golddiff.store.opening import open_source

    channels, *sides = store.shape
    reading: dict[str, Any] = {"skip_bad": True, "value_range": value_range}
    if store.is_pixels and channels in (1, 3) and len(sides) == 2:
        reading |= {"size": sides[0] if sides[0] == sides[1] else None, "channels": channels}
    source = open_source(pictures, **reading)
    parts, most, what = [], MAX_VALUES // store.d, source.info.description
    for batch in source.batches(256):
        values = batch.pixels.astype(np.float32)
        parts.append(values / 127.5 - 1 if batch.pixels.dtype == np.uint8 else values)
        done = sum(map(len, parts))
        watch(done, source.total)
        if done > most:
            raise ArgumentError(
                f"pictures: {what} holds more than {most:,} pictures, the limit at this size"
            )
    say(*source.skipped.lines())
    images = torch.from_numpy(np.concatenate(parts))
    if images.shape[1:] != store.shape:
        raise ArgumentError(
            f"pictures: are {shape_text(tuple(images.shape[1:]))}, expected the training images' "
            f"{shape_text(store.shape)}"
        )
    names = [printable(name) for name in source.names]
    if isinstance(pictures, list):  # of one folder
        above = os.path.commonpath([path.parent for path in pictures])
        names = [os.path.relpath(name, above) for name in names]
    return images, names if len(names) == len(images) else [], source.skipped


def _without_grid(folder: Path) -> Path | list[Path]:
    """The pictures of a path, without the grid.png that ``golddiff sample --out FOLDER`` adds."""
    from golddiff.sources.decode import EXTENSIONS
    from golddiff.sources.folders import files_below
    from golddiff.system.pictures import own_texts

    if folder.suffix.lower() in EXTENSIONS and folder.is_file():
        texts = own_texts(folder)
        if texts and "image" not in texts:
            raise ArgumentError(
                f"pictures: {folder} is a grid of pictures, expected single ones; golddiff sample "
                "writes them with --out folder/ or --out pictures.npz"
            )
        return [folder]
    texts = own_texts(folder / "grid.png")
    if not texts or "image" in texts:
        return folder
    others = (folder / name for name in files_below(folder)[0] if name != "grid.png")
    return [path for path in others if path.suffix.lower() in EXTENSIONS]


def _sharpness_and_speckle(
    images: torch.Tensor, store: golddiff.ImageStore
) -> dict[str, float | None]:
    if len(store.shape) != 3 or min(store.shape[1:]) < 3:
        return {"sharpness": None, "speckle": None}
    reference = store.images(store._spread(REFERENCE))
    measured = {
        "sharpness": golddiff.metrics.sharpness(images, reference),
        "speckle": golddiff.metrics.speckle(images, reference),
    }
    return {name: None if math.isnan(value) else value for name, value in measured.items()}
