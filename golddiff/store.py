"""The training set on disk: built once in one streaming pass, memory-mapped afterwards.

A store is a folder: ``pixels.bin`` (uint8, or float32 for latents and points), ``labels.bin``,
``proxies.bin`` (for screening), ``norms.bin``, ``factor.safetensors`` (mean and covariance), and
a manifest with the format version and a checksum of each.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from golddiff.errors import ArgumentError, StoreError
from golddiff.manifest import Manifest, file_record
from golddiff.proxy import pool
from golddiff.statistics import Factor, covariance_factor
from golddiff.store_build import FACTOR, LABELS, NORMS, PIXELS, PROXIES, add_file, build
from golddiff.support import Support

if TYPE_CHECKING:
    from golddiff.cluster.over_shards import OverShards

PROJECTED_AT_ONCE = 4096

Indices = int | slice | Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor


class ImageStore:
    """A training set on disk, read by row.

    Attributes:
        path: its folder.
        n: number of images.
        shape: shape of one image, (C, H, W), or (D,) for points.
        d: number of values of one image.
        labels: (n,) int64 tensor of class indices, or None.
        class_names: a name for each class index, or None.
        flat: (n, d) uint8 or float32, memory-mapped; value = flat * scale + offset.
        scale, offset: from stored values to [-1, 1]: 1/127.5 and -1 for uint8, 1 and 0 for floats.
        norms: (n,) float32 Euclidean norms in [-1, 1] units.
        shards: what denoises over a store whose rows lie in other processes, see
            :class:`golddiff.cluster.ShardedStore`; None where they lie here.
        share: of the images that the last result saw; below 1 where shards are missing.
    """

    shards: OverShards | None = None
    share: float = 1.0

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Use :meth:`open` or :meth:`build`."""
        self.path = path
        self.manifest = manifest
        self.n = manifest.n
        self.shape = manifest.shape
        self.d = math.prod(manifest.shape)
        self.class_names = manifest.class_names
        self.scale, self.offset = (1 / 127.5, -1.0) if manifest.dtype == "uint8" else (1.0, 0.0)
        self.flat = self._map(PIXELS, manifest.dtype, (self.n, self.d))
        self.norms: NDArray[np.float32] = self._map(NORMS, "float32", (self.n,))
        self.labels = (
            torch.from_numpy(np.array(self._map(LABELS, "int64", (self.n,))))
            if manifest.labelled
            else None
        )
        self._all_rows: NDArray[np.int64] = np.arange(self.n)
        self._class_rows: dict[int, NDArray[np.int64]] = {}
        self._factors: dict[int | None, Factor] = {}
        self._proxies: dict[tuple[int, ...], NDArray[np.float32]] = {
            manifest.proxy_shape: self._map(
                PROXIES, "float32", (self.n, math.prod(manifest.proxy_shape))
            )
        }

    @classmethod
    def open(cls, path: str | Path) -> ImageStore:
        """Open the store at ``path``; its format, manifest and file sizes are checked.

        Raises:
            StoreError: missing, incomplete, of another format version, truncated or altered.
        """
        folder = Path(path)
        manifest = Manifest.read(folder)
        manifest.check_sizes(folder)
        return cls(folder, manifest)

    @classmethod
    def build(
        cls,
        source: object,
        path: str | Path,
        labels: object = None,
        *,
        size: int | None = None,
        channels: int | None = None,
        split: str = "train",
        column: str | None = None,
        label_column: str | None = None,
        skip_bad: bool = False,
        limit: int | None = None,
        seed: int = 0,
        overwrite: bool = False,
        progress: bool = False,
    ) -> ImageStore:
        """Build a store in one streaming pass and open it.

        It is built beside its place and renamed when complete: an interrupted build leaves
        nothing that opens.

        Args:
            source: tensor or array ((N, C, H, W), (N, H, W), (N, D); uint8, or float kept as it
                is, images in [-1, 1]); image folder; parquet, zip, npz, npy, idx or CIFAR pickle
                file; Hugging Face data set or hub name; "digits", "moons" or "patches".
            path: folder to make.
            labels: (N,) class indices >= 0, in place of the source's own.
            size: resize the shorter side to this and crop the centre.
            channels: 1 for grey, 3 for colour; None keeps what the source has.
            split: split of a data set.
            column: image column of a data set, where it is not "image" or "img".
            label_column: label column, where it is not "label".
            skip_bad: leave unreadable images out and count them, instead of stopping.
            limit: use at most this many images.
            seed: for the generated sources "moons" and "patches".
            overwrite: replace a store that is already there, once the new one is complete.
            progress: show a progress bar.

        Raises:
            ArgumentError: a bad argument; ``path`` exists and ``overwrite`` is not set.
            SourceError: the source cannot be read.
            StoreError: the disk is full or cannot be written.
        """
        from golddiff.sources import open_source  # its readers import slowly

        opened = open_source(
            source, labels=labels, size=size, channels=channels, split=split, column=column,
            label_column=label_column, skip_bad=skip_bad, limit=limit, seed=seed,
        )  # fmt: skip
        build(opened, Path(path), overwrite=overwrite, progress=progress)
        return cls.open(path)

    def verify(self) -> None:
        """Recompute every checksum.

        Raises:
            StoreError: names the first file whose contents changed.
        """
        for name, record in self.manifest.files.items():
            if file_record(self.path / name) != record:
                raise StoreError(
                    f"store: {self.path / name} does not match its checksum; build the store again"
                )

    def images(self, indices: Indices | None = None) -> torch.Tensor:
        """Images as float32 in [-1, 1] (float stores: as they were given), (k, *shape).

        Args:
            indices: rows to read, in the order wanted; None for all.

        Raises:
            ArgumentError: an index outside 0..n-1.
        """
        rows = self._checked_rows(indices)
        return torch.from_numpy(self.values(rows)).reshape(len(rows), *self.shape)

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Flattened images as float32 in [-1, 1], (k, d)."""
        values = self.flat[rows].astype(np.float32)
        if self.flat.dtype == np.uint8:
            values *= np.float32(self.scale)
            values += np.float32(self.offset)
        return values

    def projected(
        self, rows: NDArray[np.int64], mean: NDArray[np.float32], axes: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Coordinates (k, r) of images less a mean (D,), along the columns of axes (D, r)."""
        parts = [
            (self.values(rows[i : i + PROJECTED_AT_ONCE]) - mean) @ axes
            for i in range(0, len(rows), PROJECTED_AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.empty((0, axes.shape[1]), np.float32)

    def rows_of(self, label: int | None) -> NDArray[np.int64]:
        """Ascending rows of a class, or of the whole store for None.

        Raises:
            ArgumentError: the store has no labels, or no image of that class.
        """
        if label is None:
            return self._all_rows
        if label not in self._class_rows:
            if self.labels is None:
                raise ArgumentError(f"labels: got {label}, but the store has no labels")
            rows = np.flatnonzero(self.labels.numpy() == label)
            if len(rows) == 0:
                classes = self.classes
                shown = ", ".join(map(str, classes[:12])) + (", ..." if len(classes) > 12 else "")
                raise ArgumentError(
                    f"labels: got {label}, a class with no images; the store has classes {shown}"
                )
            self._class_rows[label] = rows
        return self._class_rows[label]

    def count_of(self, label: int | None) -> int:
        """How many images a class has, or the whole store for None.

        Raises:
            ArgumentError: as :meth:`rows_of`.
        """
        return len(self.rows_of(label))

    def largest_part(self, label: int | None) -> int:
        """How many images of a class (or of all) lie in one memory: all of them."""
        return self.count_of(label)

    def everything(self, label: int | None) -> Support:
        """The support of all images of a class, or of the whole store for None.

        Raises:
            ArgumentError: as :meth:`rows_of`.
        """
        return Support(self.rows_of(label))

    def sampled_rows(self, most: int) -> NDArray[np.int64]:
        """All rows; a store in shards gives at most ``most``, drawn once and for all."""
        return self._all_rows

    def factor(self, label: int | None = None) -> Factor:
        """Mean and covariance factor of the store, or of one class (computed once, kept)."""
        if label not in self._factors:
            if label is not None:
                self._factors[label] = covariance_factor(
                    self.flat, self.scale, self.offset, self.rows_of(label)
                )
            else:
                self._factors[None] = self._whole_factor()
        return self._factors[label]

    def _whole_factor(self) -> Factor:
        kept = self.kept(FACTOR)
        if kept is not None:
            return Factor(**kept)
        factor = covariance_factor(self.flat, self.scale, self.offset)
        self.keep(FACTOR, vars(factor))
        return factor

    def kept(self, name: str) -> dict[str, NDArray[Any]] | None:
        """What was computed from the store before and kept under a file name, or None."""
        return load_file(self.path / name) if name in self.manifest.files else None

    def keep(self, name: str, tensors: dict[str, NDArray[Any]]) -> None:
        """Keep what was computed for next time, where the store may be written to."""
        with contextlib.suppress(OSError):
            add_file(self.path, self.manifest, name, tensors)

    def class_counts(self) -> dict[int, int]:
        """Images of each class that has any, ascending; empty without labels."""
        if self.labels is None:
            return {}
        classes, counts = np.unique(self.labels.numpy(), return_counts=True)
        return dict(zip(classes.tolist(), counts.tolist(), strict=True))

    @property
    def classes(self) -> list[int]:
        """The class indices that have images, ascending; empty without labels."""
        if self.labels is None:
            return []
        present: list[int] = np.unique(self.labels.numpy()).tolist()
        return present

    @property
    def is_pixels(self) -> bool:
        """Whether the store holds 8-bit images: their values lie in [-1, 1]."""
        return self.manifest.dtype == "uint8"

    @property
    def mean(self) -> torch.Tensor:
        """The mean image, float32, (*shape)."""
        return torch.from_numpy(self.factor().mean.astype(np.float32)).reshape(self.shape)

    @property
    def radius(self) -> float:
        """R = max_i ||x_i||, the data radius of the paper's Theorem 1."""
        return float(self.norms.max())

    def proxies(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Average-pooled images of the given shape, (n, d'); kept in memory once made."""
        if shape not in self._proxies:
            made = np.empty((self.n, math.prod(shape)), np.float32)
            for start in range(0, self.n, 1024):
                rows = self._all_rows[start : start + 1024]
                made[rows] = pool(self.values(rows).reshape(-1, *self.shape), shape)
            self._proxies[shape] = made
        return self._proxies[shape]

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        classes = "no labels" if self.labels is None else f"{len(self.classes)} classes"
        return (
            f"ImageStore({str(self.path)!r}: {self.n:,} x {self.shape} {self.manifest.dtype}, "
            f"{classes})"
        )

    def _checked_rows(self, indices: Indices | None) -> NDArray[np.int64]:
        if indices is None:
            return self._all_rows
        if isinstance(indices, slice):
            return self._all_rows[indices]
        rows = np.atleast_1d(np.asarray(indices))
        if rows.size == 0:
            return np.empty(0, np.int64)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise ArgumentError(
                f"indices: got {rows.dtype} of shape {rows.shape}, expected integers of shape (k,)"
            )
        if rows.min() < 0 or rows.max() >= self.n:
            worst = rows.min() if rows.min() < 0 else rows.max()
            raise ArgumentError(f"indices: got {worst}, expected 0 to {self.n - 1}")
        return rows.astype(np.int64)

    def _map(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        # A plain array view of the mapping: compiled kernels take no np.memmap.
        return np.asarray(np.memmap(self.path / name, dtype=dtype, mode="r", shape=shape))
