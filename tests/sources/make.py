"""Helpers of the tests: small images, parquet files, and reading a whole source."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def pixels(seed=0, height=8, width=8, channels=3):
    """(H, W, C) or, for one channel, (H, W) uint8 noise."""
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(image, kind="PNG", **options):
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(seed=0, height=8, width=8, channels=3):
    return encoded(pixels(seed, height, width, channels))


def first(array):
    """The image with its channels first, as sources return it."""
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def read(source, size=3):
    """All pixels and labels of a source, read ``size`` at a time."""
    batches = list(source.batches(size))
    assert all(len(batch.pixels) == size for batch in batches[:-1])
    assert all(batch.pixels.dtype == source.info.dtype for batch in batches)
    assert all(batch.pixels.shape[1:] == source.info.shape for batch in batches)
    assert all(batch.pixels.flags.c_contiguous for batch in batches)
    assert sum(len(batch.pixels) for batch in batches) + len(source.skipped) == source.total
    labels = None
    if source.info.labelled:
        assert all(batch.labels.dtype == np.int64 for batch in batches)
        labels = np.concatenate([batch.labels for batch in batches])
    else:
        assert all(batch.labels is None for batch in batches)
    return np.concatenate([batch.pixels for batch in batches]), labels


def write_parquet(path, images, labels=None, *, image="image", label="label", metadata=None):
    """A parquet file in the hub's layout; an image of None has no bytes."""
    rows = [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(images)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {image: pa.array(rows, kind)}
    if labels is not None:
        columns[label] = pa.array(labels)
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": metadata})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=4)
    return path
