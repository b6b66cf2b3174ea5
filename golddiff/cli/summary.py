"""What a store holds, as one line and as figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from golddiff import __version__
from golddiff.system.units import byte_size, shape_text

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore


def describe(store: ImageStore) -> str:
    """One line: 'digits.store: 1,797 images, 8 x 8 grey, 10 classes, 210 kB'."""
    kind = "points" if len(store.shape) == 1 else "images"
    counts = class_counts(store)
    classes = f"{len(counts):,} classes" if counts else "no labels"
    return (
        f"{store.path}: {store.n:,} {kind}, {shape_text(store.shape)}, {classes}, "
        f"{byte_size(bytes_on_disk(store))}"
    )


def summary(store: ImageStore) -> dict[str, Any]:
    """Everything about a store that fits in JSON."""
    manifest = store.manifest
    return {
        "golddiff": __version__,
        "path": str(store.path),
        "source": manifest.source,
        "n": store.n,
        "shape": list(store.shape),
        "dtype": manifest.dtype,
        "classes": class_counts(store) or None,
        "class_names": manifest.class_names,
        "bytes": bytes_on_disk(store),
        "skipped": manifest.skipped,
    }


def class_counts(store: ImageStore) -> dict[str, int]:
    """Images of each class index that has any, in order; empty without labels."""
    return {str(label): count for label, count in store.class_counts.items()}


def bytes_on_disk(store: ImageStore) -> int:
    """Size of the store's files."""
    return sum(record.bytes for record in store.manifest.files.values())
