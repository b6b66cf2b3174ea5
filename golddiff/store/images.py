"""The training set on disk: built once in one streaming pass, memory-mapped afterwards.

A store is a folder with ``pixels.bin`` (uint8, or float32 for latents and points), ``labels.bin``,
``proxies.bin`` (for screening), ``norms.bin``, ``factor.safetensors`` (mean and covariance), and
a manifest with the format version and a checksum of each file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from golddiff.kernels.stored import Stored
from golddiff.posterior import Posterior
from golddiff.sources.source_options import ValueRange
from golddiff.store.build import LABELS, NORMS, PIXELS, PROXIES, build, check_free
from golddiff.store.manifest import Manifest
from golddiff.store.posteriors import weighed
from golddiff.store.proxy import pooled
from golddiff.store.statistics import Axes, Factor, covariance_factor, factor_rows
from golddiff.store.training_set import Question, TrainingSet
from golddiff.support import Supports, per_query
from golddiff.system.arguments import path_of
from golddiff.system.errors import ArgumentError, StoreError
from golddiff.system.numbers import F32, I64
from golddiff.system.pictures import png
from golddiff.system.residency import DEFAULT_LIMIT, Residency

PREVIEW = 24  # images in a notebook preview


class ImageStore(TrainingSet):
    """A training set on disk, read by row.

    Attributes:
        path: the store's folder.
        n: number of images.
        shape: shape of one image, (C, H, W), or (D,) for points.
        d: number of values of one image.
        labels: (n,) int64 tensor of class indices, or None.
        class_names: a name for each class index, or None.
        class_counts: number of images of each non-empty class, ascending; empty without labels.
        classes: the non-empty classes.
        names: file name of each image in its folder, archive or table; None if it has none.
        is_pixels (bool): whether values are pixels in [-1, 1]: 8-bit images, or floats whose
            ``value_range`` was given. DDIM then clips samples.
        flat: (n, d) uint8 or float32, memory-mapped.
        stored: ``flat`` with its scale and offset to [-1, 1]: value = flat * scale + offset.
        radius: R = max_i ||x_i||, rounded up; the data radius of the paper's Theorem 1.
        residency: tracks and limits the bytes of the store's files that are in memory.
        artifacts: arrays computed from the store and saved in its folder.
        factors: mean and covariance of all images and of each class.
        first_row: row of the first image in the whole training set, if the store is a shard.
    """

    first_row = 0

    def __init__(self, path: Path, manifest: Manifest, memory_limit: float = DEFAULT_LIMIT) -> None:
        """Use :meth:`open` or :meth:`build`."""
        super().__init__(path, manifest)
        self.residency = Residency(memory_limit)
        self.flat = self.residency.map(path / PIXELS, manifest.dtype, (self.n, self.d))
        self.stored = Stored(self.flat, *manifest.scaling)
        self.radius = float(np.fromfile(path / NORMS, np.float32).max())
        labels = np.fromfile(path / LABELS, np.int64) if manifest.labelled else None
        self.labels = None if labels is None else torch.from_numpy(labels)
        classes, counts = np.unique([] if labels is None else labels, return_counts=True)
        self.class_counts = dict(zip(classes.tolist(), counts.tolist(), strict=True))
        width = math.prod(manifest.proxy_shape)
        self._pooled: dict[tuple[int, ...], F32] = {
            manifest.proxy_shape: self.residency.map(path / PROXIES, "float32", (self.n, width))
        }

    @cached_property
    def names(self) -> list[str] | None:
        """See the class."""
        return self.manifest.names(self.path)

    def names_of(self, rows: Sequence[int] | I64) -> list[str] | None:
        """File names of the images at ``rows``; None if the source has no files."""
        return None if self.names is None else [self.names[row] for row in rows]

    @classmethod
    def open(cls, path: str | Path, memory_limit: float = DEFAULT_LIMIT) -> ImageStore:
        """Open the store at ``path`` and check its format, manifest and file sizes.

        Args:
            path: the store's folder.
            memory_limit: bytes of the store's files that may be resident in this process at a
                time; the store may be larger (see the guide to large sets). The working memory of
                methods comes on top; an estimator's own ``memory_limit`` bounds it.

        Raises:
            ArgumentError: ``memory_limit`` is not a number above 0.
            StoreError: the store is missing, incomplete, truncated, altered or of another version.
        """
        folder = path_of("path", path)
        manifest = Manifest.read(folder)
        manifest.check_sizes(folder)
        store = cls(folder.absolute(), manifest, memory_limit)
        # Another process may have built it again while its files were opened one by one.
        return store if Manifest.read(folder) == manifest else cls.open(folder, memory_limit)

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
        value_range: ValueRange = None,
        overwrite: bool = False,
        progress: bool = False,
    ) -> ImageStore:
        """Build a store in one streaming pass and open it.

        An interrupted build leaves no store behind. :func:`golddiff.load` chooses a path itself.

        Args:
            source: a source of :func:`golddiff.sources.open_source`: tensor, array, list, Dataset,
                folder, parquet, zip, npz, npy, pt, idx or CIFAR file, hub name, built-in or store.
            path: folder to create.
            labels: (N,) class indices >= 0 that replace the source's own.
            size: resize the shorter side to this and crop the centre.
            channels: 1 for grey, 3 for colour; None: grey if the first 64 images are grey, else
                colour (arrays keep their channels).
            split: split of a data set.
            column: image column of a table, or image array of a .npz; None detects it by name.
            label_column: label column of a table, or label array of a .npz.
            skip_bad: skip and count unreadable images instead of raising an error.
            limit: use at most this many images.
            seed: seed of the generated sources "moons" and "patches".
            value_range: smallest and largest value of float images, which are then pixels, or
                "any" for other floats.
            overwrite: replace an existing store once the new one is complete.
            progress: show a progress bar.

        Raises:
            ArgumentError: a bad argument; ``path`` exists and may not be replaced.
            SourceError: the source cannot be read.
            StoreError: the disk is full or not writable.
        """
        from golddiff.store.opening import open_source

        folder = path_of("path", path)
        check_free(folder, overwrite)
        opened = open_source(
            source, size=size, channels=channels, split=split, column=column,
            label_column=label_column, skip_bad=skip_bad, limit=limit, seed=seed, labels=labels,
            value_range=value_range,
        )  # fmt: skip
        build(opened, folder, overwrite=overwrite, progress=progress)
        return cls.open(folder)

    def proxies(self, shape: tuple[int, ...]) -> F32:
        """Images average-pooled to ``shape``, (n, d'); computed on first use and cached."""
        if shape not in self._pooled:
            self._pooled[shape] = pooled(self, shape)
        return self._pooled[shape]

    def verify(self) -> None:
        """Recompute every checksum.

        Raises:
            StoreError: a checksum differs; the message names the first such file.
        """
        self.manifest.verify(self.path)

    def values(self, rows: I64, onto: Axes | None = None) -> F32:
        """See :class:`TrainingSet`."""
        if onto is not None:
            return onto.coordinates(self.values, rows)
        return self.stored.values(rows)

    def posterior(self, estimator: Any, x: F32, sigma: float, supports: Supports) -> Posterior:
        """See :class:`TrainingSet` and :func:`weighed`."""
        return weighed(estimator, x, sigma, supports)

    def answer(self, question: Question, x: F32, within: Supports, *more: Any) -> Any:
        """See :class:`TrainingSet`."""
        return question.answer_shard(self, x, per_query(within, len(x)), *more)

    def _make_factor(
        self, label: int | None, images: int | None, seed: int, progress: Callable[[int], None]
    ) -> Factor:
        rows = factor_rows(self.rows_of(label), self.d, images, seed)
        return covariance_factor(self.stored, rows, progress)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path, the memory limit and the checksum of the images.

        Unpickling opens the store at that path; StoreError if it holds other images by then.
        """
        return _reopened, (self.path, self.residency.limit, self.manifest.images_checksum)

    def __fspath__(self) -> str:
        """The folder, so that a store is a source wherever its path is one."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"ImageStore.open({str(self.path)!r})"

    def _repr_png_(self) -> bytes | None:
        """A preview of the first images, for notebooks."""
        return png(self.images(range(min(PREVIEW, self.n)))) if len(self.shape) == 3 else None

    def __str__(self) -> str:
        classes = "no labels" if self.labels is None else f"{len(self.class_counts)} classes"
        return f"{self.path}: {self.n:,} x {self.shape} {self.manifest.dtype}, {classes}"


def _reopened(path: Path, memory_limit: float, checksum: str) -> ImageStore:
    store = ImageStore.open(path, memory_limit)
    if store.manifest.images_checksum != checksum:
        raise StoreError(f"store: {path} holds other images than when it was pickled")
    return store


StoreOrPath = TrainingSet | str | Path


def opened(store: StoreOrPath) -> ImageStore:
    """Open the store if given a path; return a training set unchanged."""
    if isinstance(store, str | Path):
        return ImageStore.open(store)
    if not all(hasattr(store, name) for name in ("shape", "d", "posterior")):
        raise ArgumentError(
            f"store: got {type(store).__name__}, expected an ImageStore or the path of one"
        )
    return cast(ImageStore, store)  # shards have the methods that estimators call
