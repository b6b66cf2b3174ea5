"""Tables of encoded images: parquet files, and datasets of the Hugging Face library."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from golddiff.sources.decode import read_file
from golddiff.sources.examples import ExampleSource, Item
from golddiff.sources.source import class_indices
from golddiff.sources.source_options import SPLIT, SourceOptions
from golddiff.system.errors import ArgumentError, SourceError
from golddiff.system.files import check_unpacked, readable
from golddiff.system.numbers import I64
from golddiff.system.units import counted

# Subfolders and files with these names are splits of a data set, not classes.
SPLIT_NAMES = frozenset({"train", "test", "val", "valid", "validation", "dev", "eval"})

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")

# Rows read at a time: few enough for photographs of a megabyte each, in several threads.
_BATCH_ROWS = 64
_MAX_PATH = 4096  # characters
_BYTES, _TEXT = (pa.binary(), pa.large_binary()), (pa.string(), pa.large_string())
_SHARD_NAME = re.compile(r"^(?P<split>.+?)-\d{4,6}-of-\d{4,6}(-[0-9a-f]+)?$")

Labels = tuple[I64 | None, tuple[str, ...] | None]


def shards_of_split(names: Sequence[str], options: SourceOptions, description: str) -> list[str]:
    """The sorted parquet files of one split, or all files if their names give no splits.

    Names are paths with ``/`` between folders, such as ``data/train-00000-of-00002.parquet``.
    """
    splits = {name: _split_of(name) for name in sorted(names)}
    named = sorted({split for split in splits.values() if split is not None})
    # A single prefix that is not a split's name, as in photos-00000-of-00004, is not a split.
    if not named or (len(named) == 1 and named[0] not in SPLIT_NAMES and named[0] != options.split):
        options.refuse(f"{description}, which has no splits", [SPLIT])
        return list(splits)
    options.require_split(named, description)
    return [name for name, split in splits.items() if split == options.split]


def open_parquet(files: Sequence[Path], options: SourceOptions, description: str) -> ExampleSource:
    """Read the images of parquet files, one file after another."""
    schemas, counts = zip(*map(_schema_and_rows, files), strict=True)
    total = sum(counts)
    image = _image_column(schemas[0], options, description)
    for file, schema in zip(files, schemas, strict=True):
        if image not in _columns_where(schema, _holds_images):
            raise SourceError(
                f"{file.name} has no column {image!r} of images, which {files[0].name} has"
            )

    def column(name: str) -> Any:
        chunks: list[Any] = []
        for file in files:
            # Strings stay dictionary-encoded, as a huge string may repeat in every row.
            with _opened(file, read_dictionary=[name]) as table:
                chunks += table.read(columns=[name]).column(name).chunks
        if len({chunk.type for chunk in chunks}) > 1:
            raise SourceError(f"{description}: the files' columns {name!r} differ in type")
        return pa.chunked_array(chunks)

    labels = _labels(schemas[0], column, total, options, description)
    items = partial(_items_of_files, files, counts, image)
    return ExampleSource(items, total, options, description, *labels)


def open_dataset(
    dataset: Any, options: SourceOptions, description: str = "dataset"
) -> ExampleSource:
    """Read the images of a ``datasets.Dataset``, or of one split of a ``datasets.DatasetDict``."""
    if isinstance(dataset, dict):
        options.require_split(dataset, f"the {description}")
        dataset = dataset[options.split]
    if dataset.format["type"] == "custom":
        raise ArgumentError(
            f"{description} has a transform, which is not applied to stored images; give "
            "dataset.with_format(None) to leave it out, or a list of the transformed images"
        )
    plain = dataset.with_format("arrow")
    schema = plain.features.arrow_schema
    image = _image_column(schema, options, description)
    mode: Any = getattr(plain.features[image], "mode", None)  # set by cast_column
    options = replace(options, channels=options.channels or {"L": 1, "RGB": 3}.get(mode))

    def column(name: str) -> Any:
        tables = plain.select_columns([name]).iter(batch_size=10_000)
        return pa.chunked_array([chunk for t in tables for chunk in t.column(name).chunks])

    labels = _labels(schema, column, len(dataset), options, description)
    items = partial(_items_of_dataset, plain.select_columns([image]), f"the {description}")
    return ExampleSource(items, len(dataset), options, description, *labels)


def _items_of_files(
    files: Sequence[Path], counts: Sequence[int], image: str, start: int, stop: int
) -> Iterator[Item]:
    """The images of the rows ``start`` to ``stop``; it reads only the row groups that hold them."""
    for file, count in zip(files, counts, strict=True):
        if start < count and stop > 0:
            yield from _items_of_file(file, image, max(start, 0), min(stop, count))
        start, stop = start - count, stop - count


def _items_of_file(file: Path, image: str, start: int, stop: int) -> Iterator[Item]:
    with _opened(file, buffer_size=1 << 20) as table:
        counts = [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]
        ends = np.cumsum(counts)
        groups = np.flatnonzero((ends > start) & (ends - counts < stop)).tolist()
        row = int(ends[groups[0]] - counts[groups[0]])
        for batch in table.iter_batches(_BATCH_ROWS, row_groups=groups, columns=[image]):
            items = _items_of_column(batch.column(0), row, file.name)
            yield from itertools.islice(items, max(start - row, 0), max(stop - row, 0))
            row += batch.num_rows
        if row < stop:
            raise SourceError(f"{file.name} is damaged: it holds {row:,} of {ends[-1]:,} rows")


def _items_of_dataset(dataset: Any, name: str, start: int, stop: int) -> Iterator[Item]:
    for first in range(start, stop, _BATCH_ROWS):
        row = first
        for chunk in dataset[first : min(first + _BATCH_ROWS, stop)].column(0).chunks:
            yield from _items_of_column(chunk, row, name, local=True)
            row += len(chunk)


def _items_of_column(images: Any, first: int, name: str, *, local: bool = False) -> Iterator[Item]:
    """The images of a column chunk from row ``first``; ``local`` allows rows with only a path."""
    paths = None
    if pa.types.is_struct(images.type):
        # flatten, unlike field, keeps null rows null.
        fields = dict(zip((field.name for field in images.type), images.flatten(), strict=True))
        images, paths = fields["bytes"], fields.get("path")
    for position in range(len(images)):
        path = None if paths is None else paths[position].as_py()
        # Longer strings are no paths: dictionary encoding can repeat a huge string in every row.
        valid = isinstance(path, str) and 0 < len(path) <= _MAX_PATH
        file = path if valid else None
        load = partial(_load, images, position, file, local)
        yield Item(f"row {first + position} of {name}", load, file=file)


def _load(images: Any, position: int, path: str | None, local: bool) -> bytes:
    data: bytes | None = images[position].as_py()
    if data is not None:
        return data
    if path is None:
        raise OSError("the row holds no bytes")
    if not local:
        # A parquet file's author must not choose local files to read.
        raise OSError(
            "the row holds no bytes but a path, which is not followed; give the folder of the "
            "pictures, or in Python the dataset itself"
        )
    return read_file(path)


def _split_of(name: str) -> str | None:
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".parquet")
    shard = _SHARD_NAME.match(stem)
    if shard:
        return shard["split"]
    prefix = re.split(r"[-_.]", stem, maxsplit=1)[0]
    parent = folder.rpartition("/")[2]
    return next((name for name in (prefix, parent) if name in SPLIT_NAMES), None)


@contextlib.contextmanager
def _opened(file: Path, **how: Any) -> Iterator[Any]:
    with readable(f"{file.name} is not readable as parquet"), pq.ParquetFile(file, **how) as table:
        yield table


def _schema_and_rows(file: Path) -> tuple[Any, int]:
    """The schema and the number of rows of a parquet file."""
    with _opened(file) as table:
        schema, rows = table.schema_arrow, table.metadata.num_rows
        # Only the row groups' metadata is safe: damaged column metadata can crash pyarrow.
        groups = range(table.metadata.num_row_groups)
        unpacked = sum(table.metadata.row_group(g).total_byte_size for g in groups)
    if not 0 <= rows <= file.stat().st_size:
        # Run-length encoding can expand a few bytes to any number of labels.
        raise SourceError(f"{file.name} announces {rows:,} rows, more than it has bytes")
    check_unpacked(file.name, file.stat().st_size, unpacked)
    return schema, rows


def _find_column(
    schema: Any,
    wanted: str | None,
    usual: Sequence[str],
    fits: Callable[[Any], bool],
    expected: str,
    description: str,
) -> str | None:
    """The wanted column, or the first of the usual names, if its type fits; None if none does."""
    fitting = _columns_where(schema, fits)
    if wanted is None:
        return next((name for name in usual if name in fitting), None)
    if wanted in fitting:
        return wanted
    problem = "does not exist"
    if wanted in schema.names:
        problem = f"holds {schema.field(wanted).type}, not {expected}"
    raise SourceError(f"{description}: column {wanted!r} {problem}; {_list_columns(schema)}")


def _image_column(schema: Any, options: SourceOptions, description: str) -> str:
    fitting = _columns_where(schema, _holds_images)
    usual = fitting if len(fitting) == 1 else _IMAGE_COLUMNS
    name = _find_column(schema, options.column, usual, _holds_images, "images", description)
    if name is None:
        raise SourceError(
            f"{description} has no column image or img of encoded images (such as PNG or JPEG); "
            "name one with column=NAME; " + _list_columns(schema)
        )
    return name


def _columns_where(schema: Any, fits: Callable[[Any], bool]) -> list[str]:
    return [field.name for field in schema if fits(field.type)]


def _holds_images(dtype: Any) -> bool:
    if pa.types.is_struct(dtype):
        return any(field.name == "bytes" and _value_type(field.type) in _BYTES for field in dtype)
    return _value_type(dtype) in _BYTES


def _holds_labels(dtype: Any) -> bool:
    types = pa.types
    is_number = types.is_integer(dtype) or types.is_floating(dtype) or types.is_boolean(dtype)
    return is_number or _value_type(dtype) in _TEXT


def _value_type(dtype: Any) -> Any:
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def _list_columns(schema: Any) -> str:
    return "its columns: " + ", ".join(f"{field.name} ({field.type})" for field in schema)


def _labels(
    schema: Any, column: Callable[[str], Any], total: int, options: SourceOptions, description: str
) -> Labels:
    """Class indices of all rows and the class names; (None, None) if the caller gave labels."""
    expected = "class indices or names"
    wanted = options.label_column
    fitting = _find_column(schema, wanted, _LABEL_COLUMNS, _holds_labels, expected, description)
    name = fitting or next((name for name in _LABEL_COLUMNS if name in schema.names), None)
    if name is None or options.labels is not None or total == 0:
        return None, None
    values, where = column(name) if fitting else None, f"{description}: column {name!r}"
    if values is None or values.null_count:
        numbers = np.empty(())  # which are no class indices
        where += f", with {counted(values.null_count, 'empty row')}," if values is not None else ""
    elif _value_type(values.type) in _TEXT:
        return _encode_names(values)
    else:
        numbers = values.to_numpy()
    if numbers.dtype.kind == "i" and (numbers == -1).all():
        return None, None  # on the hub, -1 marks a split whose labels are secret
    indices = class_indices(numbers, where, wanted is not None)
    return indices, None if indices is None else _class_names(schema, name)


def _encode_names(values: Any) -> Labels:
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    values = values.unify_dictionaries().combine_chunks()
    entries = values.dictionary.to_pylist()
    names = sorted({entries[index] for index in values.indices.unique().to_pylist()})
    class_of = {name: label for label, name in enumerate(names)}
    classes = np.array([class_of.get(entry, -1) for entry in entries], np.int64)
    return classes[values.indices.to_numpy()], tuple(names)


def _class_names(schema: Any, column: str) -> tuple[str, ...] | None:
    """Class names from the schema's metadata, where the datasets library stores them."""
    try:
        table = json.loads((schema.metadata or {})[b"huggingface"])
        names = table["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) else None
