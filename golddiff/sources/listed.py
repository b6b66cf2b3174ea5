"""Images that Python hands over one by one or in batches: lists, torch's Dataset and DataLoader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import Any

from PIL import Image

from golddiff.sources.arrays import is_array
from golddiff.sources.decode import read_file
from golddiff.sources.examples import ExampleSource, Item
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError, SourceError


def is_listed(source: object) -> bool:
    """Whether a source is a list, or a Dataset or DataLoader of torch."""
    data = sys.modules.get("torch.utils.data")
    kinds = (list, tuple) if data is None else (list, tuple, data.Dataset, data.DataLoader)
    return isinstance(source, kinds)


def open_listed(examples: Any, options: SourceOptions) -> ExampleSource:
    """Examples as they come, images or (image, label) pairs; every pass reads them again.

    Args:
        examples: a list, a Dataset with a length, or a DataLoader of one, whose batches are arrays.
            An image is a Pillow image, a path, an array or a tensor.
        options: how they are read.
    """
    options.refuse_columns("images handed over by Python")
    kind, in_batches = type(examples).__name__, not hasattr(examples, "__getitem__")
    try:
        count = len(examples.dataset if in_batches else examples)
    except (TypeError, AttributeError, NotImplementedError):
        raise ArgumentError(f"source is a {kind} without a length; give one that has") from None
    if count == 0:
        raise SourceError(f"source is a {kind} without examples")
    one_by_one = _unbatched if in_batches else _indexed
    items = partial(_items, partial(one_by_one, examples), kind)
    source = ExampleSource(items, count, options, f"{kind} of images")
    if in_batches:  # which need not hold all of their data set
        source.info = replace(source.info, count=None)
    return source


def _indexed(examples: Any, start: int, stop: int) -> Iterator[Any]:
    return (examples[i] for i in range(start, stop))  # all that a Dataset must have


def _unbatched(batches: Any, start: int, stop: int) -> Iterator[Any]:
    pairs = (_pair(batch) for batch in batches)
    unpacked = (
        pair
        for images, labels in pairs
        for pair in zip(images, repeat(None) if labels is None else labels, strict=False)
    )
    return islice(unpacked, start, stop)


def _items(one_by_one: Any, kind: str, start: int, stop: int) -> Iterator[Item]:
    for place, example in enumerate(one_by_one(start, stop), start):
        image, label = _pair(example)
        name = f"example {place}"
        if isinstance(image, str | os.PathLike):
            path = os.fspath(image)
            yield Item(name, partial(read_file, path), label, path)
        elif isinstance(image, Image.Image) or is_array(image):
            yield Item(name, partial(_itself, image), label)
        else:
            raise ArgumentError(
                f"source is a {kind} whose {name} is a {type(image).__name__}; give Pillow images, "
                "paths, arrays or tensors, alone or in pairs with a label"
            )


def _itself(image: Any) -> Any:
    return image


def _pair(example: Any) -> tuple[Any, Any]:
    paired = isinstance(example, tuple | list) and len(example) > 1
    return (example[0], example[1]) if paired else (example, None)
