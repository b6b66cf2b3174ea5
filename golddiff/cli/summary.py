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
    classes = f"{len(store.classes):,} classes" if store.classes else "no labels"
    return (
        f"{store.path}: {store.n:,} {kind}, {shape_text(store.shape)}, {classes}, "
        f"{byte_size(store.manifest.bytes)}"
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
        "classes": {str(label): n for label, n in store.class_counts.items()} or None,
        "class_names": manifest.class_names,
        "bytes": manifest.bytes,
        "skipped": manifest.skipped,
    }
