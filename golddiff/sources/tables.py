"""Tables of encoded images: parquet shards, and datasets of the Hugging Face library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from golddiff.errors import ArgumentError, SourceError
from golddiff.sources.bombs import check_unpacked
from golddiff.sources.classes import SPLIT_NAMES
from golddiff.sources.encoded import EncodedSource, Item, Listing
from golddiff.sources.options import Options, check_labels

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")

# Rows read at a time: photographs of a megabyte each must fit a few times over.
_ROWS = 64
_SHARD = re.compile(r"^(?P<split>.+?)-\d{4,6}-of-\d{4,6}(-[0-9a-f]+)?$")


def shards_of_split(names: Sequence[str], split: str, description: str) -> list[str]:
    """The parquet files of one split, sorted; all of them where names tell no split.

    Args:
        names: paths with ``/`` between folders, such as ``data/train-00000-of-00002.parquet``.
        split: the split that is wanted.
        description: the source's name for messages.

    Raises:
        SourceError: the names tell splits, and this one is not among them.
    """
    splits = {name: _split_of(name) for name in sorted(names)}
    found = sorted({told for told in splits.values() if told is not None})
    # One name that is no split's, as in photos-00000-of-00004, tells nothing.
    if not found or (len(found) == 1 and found[0] not in SPLIT_NAMES and found[0] != split):
        return list(splits)
    chosen = [name for name, told in splits.items() if told == split]
    if not chosen:
        raise SourceError(f"{description} has no split {split!r}; it has: {', '.join(found)}")
    return chosen


def open_parquet(files: Sequence[Path], options: Options, description: str) -> EncodedSource:
    """Read the images of parquet files, one after another.

    Raises:
        SourceError: a file is damaged or lacks the columns, or labels are missing or negative.
    """
    schemas, rows = zip(*map(_head, files), strict=True)
    schema = schemas[0]
    image = _image_column(schema, options.column, description)
    for file, other in zip(files, schemas, strict=True):
        if image not in other.names:
            raise SourceError(f"{file.name} has no column {image!r}, which {files[0].name} has")
    label = _label_column(schema, options.label_column, description)
    labels, class_names = None, None
    if label is not None and options.labels is None:
        column = [_read_column(file, label) for file in files]
        labels, class_names = _labels(column, label, _names_in(schema, label), description)

    def part(start: int, stop: int) -> Callable[[], Iterator[Item]]:
        return partial(_rows_between, files, rows, image, start, stop)

    total = sum(rows)
    if labels is not None and len(labels) != total:
        raise SourceError(f"{description} is damaged: it has {len(labels)} labels for {total} rows")
    listing = Listing(part(0, total), total, labels, class_names, description, part)
    return EncodedSource(listing, options)


def _rows_between(
    files: Sequence[Path], rows: Sequence[int], image: str, start: int, stop: int
) -> Iterator[Item]:
    """The images of some consecutive rows; row groups that hold none of them are not read."""
    first = 0
    for file, count in zip(files, rows, strict=True):
        if first < stop and start < first + count:
            yield from _rows_of(file, image, max(start - first, 0), min(stop - first, count))
        first += count


def _rows_of(file: Path, image: str, start: int, stop: int) -> Iterator[Item]:
    try:
        with pq.ParquetFile(file, buffer_size=1 << 20) as table:
            groups, row = [], 0
            skipped = 0
            for group in range(table.num_row_groups):
                count = table.metadata.row_group(group).num_rows
                if row < stop and start < row + count:
                    groups.append(group)
                elif row + count <= start:
                    skipped = row + count
                row += count
            row = skipped
            batches = table.iter_batches(batch_size=_ROWS, row_groups=groups, columns=[image])
            for batch in batches:
                low, high = max(start - row, 0), min(stop - row, batch.num_rows)
                if low < high:
                    wanted = batch.column(0).slice(low, high - low)
                    yield from _items(wanted, row + low, file.name, None)
                row += batch.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(file, error) from error


def open_dataset(dataset: Any, options: Options, description: str | None = None) -> EncodedSource:
    """Read the images of a ``datasets.Dataset``, or of one split of a ``datasets.DatasetDict``.

    Raises:
        SourceError: the split or a column is missing, or labels are missing or negative.
    """
    if isinstance(dataset, dict):
        if options.split not in dataset:
            raise SourceError(
                f"{description or 'the dataset'} has no split {options.split!r}; it has: "
                + ", ".join(map(str, dataset))
            )
        dataset = dataset[options.split]
    description = description or "dataset"
    plain = dataset.with_format("arrow")
    schema = plain.features.arrow_schema
    image = _image_column(schema, options.column, description)
    label = _label_column(schema, options.label_column, description)
    labels, class_names = None, None
    if label is not None and options.labels is None:
        names = getattr(dataset.features[label], "names", None)
        tables = plain.select_columns([label]).iter(batch_size=10_000)
        column = [table.column(label) for table in tables]
        labels, class_names = _labels(column, label, names, description)

    def items() -> Iterator[Item]:
        row = 0
        for table in plain.select_columns([image]).iter(batch_size=_ROWS):
            for chunk in table.column(image).chunks:
                yield from _items(chunk, row, f"the {description}", _read_local)
                row += len(chunk)

    return EncodedSource(Listing(items, len(dataset), labels, class_names, description), options)


def _split_of(name: str) -> str | None:
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".parquet")
    shard = _SHARD.match(stem)
    if shard:
        return shard["split"]
    word = re.split(r"[-_.]", stem, maxsplit=1)[0]
    if word in SPLIT_NAMES:
        return word
    parent = folder.rpartition("/")[2]
    return parent if parent in SPLIT_NAMES else None


def _head(file: Path) -> tuple[Any, int]:
    """The schema and the number of rows of a parquet file."""
    try:
        with pq.ParquetFile(file) as table:
            schema, rows = table.schema_arrow, table.metadata.num_rows
            # Of the groups alone: to ask damaged metadata for a column can end the process.
            groups = range(table.metadata.num_row_groups)
            unpacked = sum(table.metadata.row_group(g).total_byte_size for g in groups)
    except Exception as error:
        # Metadata of a damaged file raise more than Arrow's own errors.
        raise _damaged(file, error) from error
    if not 0 <= rows <= file.stat().st_size:
        # Run lengths let a few bytes stand for any number of labels.
        raise SourceError(f"{file.name} tells of {rows:,} rows, more than it has bytes")
    check_unpacked(file.name, file.stat().st_size, unpacked)
    return schema, rows


def _read_column(file: Path, column: str) -> Any:
    try:
        with pq.ParquetFile(file, read_dictionary=[column]) as table:
            return table.read(columns=[column]).column(column)
    except Exception as error:
        raise _damaged(file, error) from error


def _image_column(schema: Any, asked: str | None, description: str) -> str:
    fits = [field.name for field in schema if _holds_images(field.type)]
    if asked is not None:
        if asked in fits:
            return asked
        problem = "holds no images" if asked in schema.names else "does not exist"
        raise SourceError(f"{description}: column {asked!r} {problem}; {_list_columns(schema)}")
    for name in (*_IMAGE_COLUMNS, *(fits if len(fits) == 1 else ())):
        if name in fits:
            return str(name)
    raise SourceError(
        f"{description} has no column of images that is named image or img; say which with "
        f"column=; {_list_columns(schema)}"
    )


def _label_column(schema: Any, asked: str | None, description: str) -> str | None:
    if asked is not None:
        if asked not in schema.names:
            raise SourceError(
                f"{description}: column {asked!r} does not exist; {_list_columns(schema)}"
            )
        if not _holds_labels(schema.field(asked).type):
            raise SourceError(
                f"{description}: column {asked!r} holds {schema.field(asked).type}, not class "
                f"indices or names; {_list_columns(schema)}"
            )
        return asked
    usual = (name for name in _LABEL_COLUMNS if name in schema.names)
    return next((name for name in usual if _holds_labels(schema.field(name).type)), None)


def _holds_images(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _holds_labels(kind: Any) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind))


def _list_columns(schema: Any) -> str:
    return "its columns: " + ", ".join(f"{field.name} ({field.type})" for field in schema)


def _names_in(schema: Any, column: str) -> Sequence[str] | None:
    """Class names in the schema's metadata, where the hub's library puts them."""
    try:
        table = json.loads((schema.metadata or {})[b"huggingface"])
        names = table["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return names if isinstance(names, list) else None


def _labels(
    columns: Sequence[Any], name: str, class_names: Sequence[str] | None, description: str
) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
    """Class indices of all rows, and the classes' names."""
    values = pa.chunked_array([chunk for column in columns for chunk in column.chunks])
    if values.null_count:
        raise SourceError(f"{description}: {values.null_count} rows of column {name!r} are empty")
    if not pa.types.is_integer(values.type):
        words = values.to_pylist() if not pa.types.is_dictionary(values.type) else _words(values)
        known = sorted(set(words))
        index = {word: position for position, word in enumerate(known)}
        return np.array([index[word] for word in words], np.int64), tuple(known)
    numbers = values.to_numpy()
    if len(numbers) and (numbers.astype(np.int64) == -1).all():
        return None, None  # how the hub marks a split whose classes are kept secret
    try:
        labels = check_labels(numbers, len(numbers))
    except ArgumentError as error:
        raise SourceError(f"{description}, column {name!r}: {error}") from error
    return labels, None if class_names is None else tuple(map(str, class_names))


def _words(values: Any) -> list[str]:
    """Texts of a column kept as a dictionary: one object for all rows that say the same."""
    words: list[str] = []
    for chunk in values.chunks:
        known = chunk.dictionary.to_pylist()
        words += [known[index] for index in chunk.indices.to_pylist()]
    return words


def _items(
    rows: Any, first: int, name: str, read_path: Callable[[str], bytes] | None
) -> Iterator[Item]:
    paths = None
    if pa.types.is_struct(rows.type):
        # flatten, unlike field, keeps the empty rows empty.
        fields = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))
        rows, paths = fields["bytes"], fields.get("path")
    for position in range(len(rows)):
        load = partial(_load, rows, paths, position, read_path)
        yield Item(f"row {first + position} of {name}", load)


def _load(rows: Any, paths: Any, position: int, read_path: Callable[[str], bytes] | None) -> bytes:
    data = rows[position].as_py()
    if data is not None:
        return bytes(data)
    path = None if paths is None else paths[position].as_py()
    if path is None or read_path is None:
        # A file that came from elsewhere must not choose what is read on this machine.
        raise OSError("the row holds no bytes")
    return read_path(path)


def _read_local(path: str) -> bytes:
    if not os.path.isfile(path):
        raise OSError(f"the row holds no bytes, and its path {path} is no file here")
    return Path(path).read_bytes()


def _damaged(file: Path, error: BaseException) -> SourceError:
    return SourceError(f"{file.name} is not readable as parquet: {' '.join(str(error).split())}")
