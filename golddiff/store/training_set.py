"""A training set: what denoisers, schedules and attribution may ask, wherever its images are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.posterior import Posterior
from golddiff.store.artifacts import Artifacts
from golddiff.store.factors import Factors, silent
from golddiff.store.manifest import Manifest, identity_of
from golddiff.store.nearest import Metric, Nearest
from golddiff.store.statistics import Axes, Factor
from golddiff.support import (
    AnySupport,
    DescribedSupport,
    LogWeights,
    Prior,
    Support,
    TiledSupport,
    one_each,
)
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, I64

Indices = int | slice | Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor
Supports = AnySupport | Sequence[AnySupport]  # one for all queries, or one each


class Question(Protocol):
    """What every part of a training set says of its own images, and all of them together.

    Plain data, but for ``more``, which it is asked with: it goes to wherever the images are, once.
    Rows in answers are those of the whole set: a part's ``first_row`` and the row in it.
    """

    def of_part(self, images: Any, x: F32, within: Sequence[AnySupport], *more: Any) -> Any:
        """A part's answer for queries (b, D); ``within`` are its rows that each may have."""
        ...

    def merged(self, answers: Sequence[Any], *more: Any) -> Any:
        """The parts' answers, in the order of their rows, as one of the same kind."""
        ...


class TrainingSet(ABC):
    """An :class:`golddiff.ImageStore` on this disk, or shards of one on other machines.

    It has shape and number of its images, their classes and statistics. It weighs images
    (:meth:`posterior`), finds the nearest (:meth:`nearest`), and answers other questions about them
    (:meth:`answer`). Rows are those of the whole set.
    """

    labels: torch.Tensor | None
    class_counts: dict[int, int]  # of those that have images, ascending
    radius: float

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """What a manifest says, and what is kept in a folder."""
        self.path, self.manifest = path, manifest
        self.n, self.shape, self.d = manifest.n, manifest.shape, math.prod(manifest.shape)
        self.class_names, self.is_pixels = manifest.class_names, manifest.dtype == "uint8"
        self.artifacts = Artifacts(path, identity_of(manifest))
        self._factors: dict[int | None, Factor] = {}

    def __len__(self) -> int:
        return self.n

    @property
    def classes(self) -> list[int]:
        """The classes that have images, ascending."""
        return list(self.class_counts)

    @property
    def share(self) -> float:
        """Of the images that results see; below 1 where some cannot be reached."""
        return 1.0

    @property
    def factors(self) -> Factors:
        """Mean and covariance of all images and of classes."""
        return Factors(self)  # for whoever asks: in a circle, files would stay mapped

    @abstractmethod
    def posterior(self, estimator: Any, x: F32, sigma: float, supports: Supports) -> Posterior:
        """The posterior of queries (b, D), each over its support."""

    def nearest(self, x: F32, k: int, metric: Metric, within: Supports) -> list[AnySupport]:
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
        answers = list(one_each(within, len(x)))
        some = [i for i, support in enumerate(answers) if len(support) > k]
        if some:
            found = self.answer(Nearest(metric), x[some], [answers[i] for i in some], k)
            for i, one in zip(some, found, strict=True):
                side, tiles = metric.side, one.tiles
                answers[i] = tiles[0] if side is None else TiledSupport(side, tiles)
        return answers

    @abstractmethod
    def answer(self, question: Question, x: F32, within: Supports, *more: Any) -> Any:
        """What all images say to a question about queries (b, D); see :class:`Question`."""

    @abstractmethod
    def contributions(
        self, estimator: Any, x: F32, sigma: float, support: AnySupport, top: int,
        pixel: int | None,
    ) -> Iterator[Any]:  # fmt: skip
        """The terms of one query's posterior (D,), some images at a time, for attribution."""

    @abstractmethod
    def values(self, rows: I64, onto: Axes | None = None) -> F32:
        """Flattened images as float32 in [-1, 1], (k, d); or coordinates along axes, (k, r)."""

    def images(self, indices: Indices | None = None) -> torch.Tensor:
        """Images as float32 in [-1, 1] (float stores: as they were given), (k, *shape).

        Args:
            indices: rows to read, in the order wanted; None for all.

        Raises:
            ArgumentError: an index outside 0..n-1.
        """
        rows = _checked_rows(indices, self.n)
        return torch.from_numpy(self.values(rows)).reshape(len(rows), *self.shape)

    def rows_of(self, prior: Prior) -> I64:
        """Ascending rows of the images that a prior lets in: a class, all for None.

        Raises:
            ArgumentError: the store has no labels, or no image of that class.
        """
        if isinstance(prior, LogWeights):
            return prior.support.rows
        self.count_of(prior)
        if prior is None or self.labels is None:
            return np.arange(self.n)
        return np.flatnonzero(self.labels.numpy() == prior)

    def count_of(self, prior: Prior) -> int:
        """How many they are; raises as :meth:`rows_of`."""
        if prior is None or isinstance(prior, LogWeights):
            return self.n if prior is None else len(prior.support)
        if not self.manifest.labelled:
            raise ArgumentError(f"labels: got {prior}, but the store has no labels")
        if prior not in self.class_counts:
            shown = ", ".join(map(str, self.classes[:12]))
            shown += ", ..." if len(self.classes) > 12 else ""
            raise ArgumentError(
                f"labels: got {prior}, a class with no images; the store has classes {shown}"
            )
        return self.class_counts[prior]

    def everything(self, prior: Prior) -> Support | DescribedSupport:
        """The support of all of them, with their log weights; raises as :meth:`rows_of`."""
        if isinstance(prior, LogWeights):
            return prior.support
        count, rows = self.count_of(prior), self.rows_of
        return DescribedSupport(count, lambda one: one.rows_in(rows(one.label)), prior)

    def factor(self, label: int | None = None, progress: Callable[[int], None] = silent) -> Factor:
        """Mean and covariance factor of the store, or of one class (computed once, kept).

        Of all its images; of 100,000 drawn at random where there are more, of more than 4,096
        values each (``Factor.images`` says). ``factors.estimate`` takes another number.

        Args:
            label: the class; None for all images.
            progress: called with the number of images done, where it is computed.
        """
        return self.factors.of(label, progress)

    @abstractmethod
    def _make_factor(
        self, label: int | None, images: int | None, seed: int, progress: Callable[[int], None]
    ) -> Factor:
        """The factor of a class, of some of its images drawn by a seed; see :class:`Factors`."""


def _checked_rows(indices: Indices | None, n: int) -> I64:
    """The rows that indices stand for, of n; None: all."""
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
