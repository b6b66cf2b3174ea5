"""The training set on disk: built once in one streaming pass, memory-mapped afterwards.

A store is a folder: ``pixels.bin`` (uint8, or float32 for latents and points), ``labels.bin``,
``proxies.bin`` (for screening), ``norms.bin``, ``factor.safetensors`` (mean and covariance), and
a manifest with the format version and a checksum of each.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from golddiff.errors import ArgumentError, StoreError
from golddiff.posterior import Posterior
from golddiff.store.build import FACTOR, LABELS, NORMS, PIXELS, PROXIES, add_file, build
from golddiff.store.manifest import Manifest, file_record, identity_of
from golddiff.store.nearest import Drawing, Metric, nearest
from golddiff.store.proxy import pool
from golddiff.store.residency import DEFAULT_LIMIT, Residency, at_hand, parts
from golddiff.store.spill import spilled
from golddiff.store.statistics import (
    Factor,
    covariance_factor,
    default_images,
    factor_rows,
    images_in,
)
from golddiff.store.weighing import Weigher, weighed
from golddiff.support import AnySupport, DescribedSupport, one_each, whole

T = TypeVar("T")

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
        share: of the images that results see: all of them.
        first_row: where the images are a part of a larger training set, the row of the first there.
    """

    share = 1.0
    first_row = 0

    def __init__(self, path: Path, manifest: Manifest, memory_limit: float = DEFAULT_LIMIT) -> None:
        """Use :meth:`open` or :meth:`build`."""
        self._residency = Residency(memory_limit)
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
    def open(cls, path: str | Path, memory_limit: float = DEFAULT_LIMIT) -> ImageStore:
        """Open the store at ``path``; its format, manifest and file sizes are checked.

        Args:
            path: its folder.
            memory_limit: bytes of the store's files that may be resident in this process at a
                time; the store may be larger (docs/scale.md). What methods need for their own
                work comes on top: that is the limit of the same name of an estimator.

        Raises:
            ArgumentError: ``memory_limit`` is no number above 0.
            StoreError: missing, incomplete, of another format version, truncated or altered.
        """
        folder = Path(path)
        manifest = Manifest.read(folder)
        manifest.check_sizes(folder)
        return cls(folder, manifest, memory_limit)

    @property
    def memory_limit(self) -> float:
        """Bytes of the store's files that may be resident at a time; see :meth:`open`."""
        return self._residency.limit

    @property
    def fits(self) -> bool:
        """Whether all of the store's files may be resident; else rows that lie apart are read."""
        return self._residency.fits

    def beside(self, path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A file that belongs to the store, read-only, within its memory limit."""
        return self._residency.beside(path, dtype, shape)

    def in_memory(self, size: int, make: Callable[[], T]) -> T | None:
        """What is made, of so many bytes that stay in memory; None: past the memory limit."""
        if not self._residency.reserve(size):
            return None
        made = make()
        weakref.finalize(made, self._residency.give_up, size)
        return made

    def release(self) -> None:
        """Give back the memory that pages of the store's files take now; they are read again."""
        self._residency.release()

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
        from golddiff.store.opening import open_source

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
        rows = checked_rows(indices, self.n)
        return torch.from_numpy(self.values(rows)).reshape(len(rows), *self.shape)

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Flattened images as float32 in [-1, 1], (k, d)."""
        values = np.empty((len(rows), self.d), np.float32)
        for start, part in parts(rows):
            with at_hand(self.flat, part) as (flat, places):
                values[start : start + len(part)] = flat[places]
        return self.scaled(values)

    def scaled(self, stored: NDArray[np.float32]) -> NDArray[np.float32]:
        """Stored values, as float32, to [-1, 1]; in place."""
        if self.is_pixels:
            stored *= np.float32(self.scale)
            stored += np.float32(self.offset)
        return stored

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

    def everything(self, label: int | None, without: Sequence[int] = ()) -> DescribedSupport:
        """The support of all images of a class, or of the whole store for None, but for some rows.

        Raises:
            ArgumentError: as :meth:`rows_of`.
        """
        images = self.count_of(label)
        return DescribedSupport(images, self._listed, label, without=tuple(without))

    def _listed(self, support: DescribedSupport) -> NDArray[np.int64]:
        return support.rows_in(self.rows_of(support.label))

    def posterior(
        self,
        estimator: Weigher,
        x: NDArray[np.float32],
        sigma: float,
        supports: AnySupport | Sequence[AnySupport],
    ) -> Posterior:
        """The posterior of queries (b, D), each over its support; see :func:`weighed`."""
        return weighed(estimator, x, sigma, supports)

    def nearest(
        self,
        x: NDArray[np.float32],
        k: int,
        metric: Metric,
        within: AnySupport | Sequence[AnySupport],
    ) -> list[AnySupport]:
        """Of each query (b, D) the k nearest images, of those that it may have.

        Args:
            x: queries.
            k: how many, for each location of the metric; of equally near ones the first rows.
            metric: what is near.
            within: the images that compete, for all queries or for each; where they are no more
                than k, they come back as they are.

        Returns:
            A support for each query, rows ascending, with the log weights they have in ``within``.
        """
        return nearest(self, x, k, metric, within)

    def draw(
        self,
        x: NDArray[np.float32],
        drawing: Drawing,
        within: AnySupport | Sequence[AnySupport],
    ) -> list[AnySupport]:
        """Images drawn at random by weight for each query (b, D); see :class:`Drawing`.

        Args:
            x: queries.
            drawing: decides how many, by which weights.
            within: the images that compete, for all queries or for each.
        """
        among = [whole(support) for support in one_each(within, len(x))]
        return list(drawing.chosen(self, x, among, drawing.summary(self, x, among)))

    def contributions(
        self, estimator: Any, x: NDArray[np.float32], sigma: float, support: AnySupport, top: int,
        pixel: int | None,
    ) -> Iterator[Any]:  # fmt: skip
        """The terms of one query's posterior (D,), some images at a time; the estimator's own."""
        yield from estimator.contributions(x, sigma, support, top, pixel)

    def sampled_rows(self, most: int) -> NDArray[np.int64]:
        """All rows; a store in shards gives at most ``most``, drawn once and for all."""
        return self._all_rows

    def factor(
        self, label: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> Factor:
        """Mean and covariance factor of the store, or of one class (computed once, kept).

        Of all its images; of 100,000 drawn at random where there are more, of more than 4,096
        values each (``Factor.images`` tells). :meth:`estimate_factor` takes another number.

        Args:
            label: the class; None for all images.
            progress: called with the number of images done, where it is computed.
        """
        if label not in self._factors:
            kept = self.kept(FACTOR) if label is None else None
            if kept is not None:
                self._factors[None] = self._sound_factor(kept)
            elif label is None:
                return self.estimate_factor(None, progress=progress)
            else:
                rows = factor_rows(self.rows_of(label), self.d)
                self._factors[label] = covariance_factor(
                    self.flat, self.scale, self.offset, rows, progress
                )
        return self._factors[label]

    def _sound_factor(self, kept: dict[str, NDArray[Any]]) -> Factor:
        try:
            factor = Factor.of_tensors(kept, self.n)
            factor.check(self.d)
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"store: {self.path / FACTOR} is damaged ({error}); build the store again"
            ) from None
        return factor

    def estimate_factor(
        self,
        images: int | None,
        seed: int = 0,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Factor:
        """Make the store's factor from some of its images, and keep it in place of the one it has.

        Denoisers that were made before keep the masks that they have.

        Args:
            images: how many, drawn at random without replacement; None for the default of
                :meth:`factor`; as many as there are, or more, for all.
            seed: of the draw.
            progress: called with the number of images done.

        Raises:
            ArgumentError: ``images`` is no integer of 2 or more.
        """
        check_factor_images(images)
        rows = factor_rows(self._all_rows, self.d, images, seed)
        factor = covariance_factor(self.flat, self.scale, self.offset, rows, progress)
        self._factors[None] = factor
        # Kept for next time where the store may be written to; made again where it may not.
        self.keep(FACTOR, factor.tensors())
        return factor

    def factor_mark(self) -> str | None:
        """What tells the factor that is kept with the store from others; made where there is none.

        None where it is not kept.
        """
        if FACTOR not in self.manifest.files:
            self.factor()  # makes it, and adds it to the manifest where that may be written
        record = self.manifest.files.get(FACTOR)
        return None if record is None else record.sha256

    def has_factor(self) -> bool:
        """Whether the factor of all images is kept with the store."""
        return FACTOR in self.manifest.files

    @property
    def factor_images(self) -> int | None:
        """Of how many images :meth:`factor` is; it is neither made nor read for this.

        None where that is not known.
        """
        if None in self._factors:
            return self._factors[None].images
        if self.has_factor():
            return images_in(self.path / FACTOR, self.n)
        return default_images(self.n, self.d)

    def kept(self, name: str) -> dict[str, NDArray[Any]] | None:
        """What was computed from the store before and kept under a file name, or None."""
        if name not in self.manifest.files:
            return None
        now = Manifest.read(self.path)
        if identity_of(now) != identity_of(self.manifest):
            raise StoreError(
                f"store: {self.path} was replaced by another since it was opened; open it again"
            )
        try:
            return load_file(self.path / name)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"store: {self.path / name} is damaged ({error}); build the store again"
            ) from error

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
        """Average-pooled images of the given shape, (n, d').

        Those of a quarter of the sides lie in the store. Others are made when first asked for and
        kept: in memory, or where that would take more than ``memory_limit`` in a temporary file.

        Raises:
            StoreError: there is no room for that file.
        """
        if shape not in self._proxies:
            width = math.prod(shape)
            made = (
                pool(self.values(rows).reshape(-1, *self.shape), shape)
                for _, rows in parts(self._all_rows, 1024)
            )
            if 4 * self.n * width <= self.memory_limit:
                whole = np.empty((self.n, width), np.float32)
                for (_, rows), part in zip(parts(self._all_rows, 1024), made, strict=True):
                    whole[rows] = part
                self._proxies[shape] = whole
            else:
                self._proxies[shape] = spilled(made, (self.n, width), self.path, self._residency)
        return self._proxies[shape]

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        classes = "no labels" if self.labels is None else f"{len(self.classes)} classes"
        return (
            f"ImageStore({str(self.path)!r}: {self.n:,} x {self.shape} {self.manifest.dtype}, "
            f"{classes})"
        )

    def _map(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return self._residency.map(self.path / name, dtype, shape)


def checked_rows(indices: Indices | None, n: int) -> NDArray[np.int64]:
    """The rows that indices stand for, of n; None: all.

    Raises:
        ArgumentError: an index outside 0..n-1.
    """
    if indices is None:
        return np.arange(n)
    if isinstance(indices, slice):
        return np.arange(*indices.indices(n))
    rows = np.atleast_1d(np.asarray(indices))
    if rows.size == 0:
        return np.empty(0, np.int64)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ArgumentError(
            f"indices: got {rows.dtype} of shape {rows.shape}, expected integers of shape (k,)"
        )
    if rows.min() < 0 or rows.max() >= n:
        worst = rows.min() if rows.min() < 0 else rows.max()
        raise ArgumentError(f"indices: got {worst}, expected 0 to {n - 1}")
    return rows.astype(np.int64)


def check_factor_images(images: int | None) -> None:
    """Raise where this is no number of images to make a factor from.

    Raises:
        ArgumentError: it is no integer of 2 or more, and not None.
    """
    whole = isinstance(images, int) and not isinstance(images, bool)
    if images is not None and not (whole and images >= 2):
        raise ArgumentError(f"images: got {images!r}, expected a number of 2 or more, or None")
