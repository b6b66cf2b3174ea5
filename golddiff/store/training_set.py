"""The interface of a training set, whether its images are in one store or in shards."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.posterior import Posterior
from golddiff.store.artifacts import Artifacts
from golddiff.store.factors import Factors, silent
from golddiff.store.manifest import Manifest
from golddiff.store.nearest import Metric, Nearest
from golddiff.store.statistics import Axes, Factor
from golddiff.support import (
    AnySupport,
    LogWeights,
    Prior,
    RuleSupport,
    Support,
    Supports,
    TiledSupport,
    per_query,
)
from golddiff.system.arguments import as_dense_tensor
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, I64

BLACK_SHARE = 0.25  # photographs have fewer black values, digits and garments more
Indices = int | slice | Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor


class Question(Protocol):
    """A query that each shard answers over its own images, with a rule that merges the answers.

    A question is plain data and is sent to each shard once; the arguments ``more`` go with every
    call. Answers count rows in the whole set: ``first_row`` plus the row within the shard.
    """

    def answer_shard(self, images: Any, x: F32, within: Sequence[AnySupport], *more: Any) -> Any:
        """One shard's answer for queries (b, D); ``within`` holds each query's candidates in it."""

    def merge(self, answers: Sequence[Any], *more: Any) -> Any:
        """Merge the shards' answers, given in row order, into one answer of the same type."""


class TrainingSet(ABC):
    """The base class of :class:`golddiff.ImageStore` and of stores in shards on other machines.

    A training set describes its images (shape, number, classes, statistics), computes posteriors
    (:meth:`posterior`), finds nearest images (:meth:`nearest`) and answers other queries
    (:meth:`answer`). Rows are counted in the whole set.
    """

    labels: torch.Tensor | None
    class_counts: dict[int, int]  # number of images of each non-empty class, ascending by class
    radius: float

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Read the metadata from ``manifest``; artifacts are saved in the folder ``path``."""
        self.path, self.manifest = path, manifest
        self.n, self.shape, self.d = manifest.n, manifest.shape, math.prod(manifest.shape)
        self.class_names, self.is_pixels = manifest.class_names, manifest.is_pixels
        self.artifacts = Artifacts(path, manifest.identity)
        self._factors: dict[int | None, Factor] = {}

    def __len__(self) -> int:
        return self.n

    @property
    def classes(self) -> list[int]:
        """The classes with at least one image, ascending."""
        return list(self.class_counts)

    @property
    def share(self) -> float:
        """Fraction of the images that results are based on; below 1 if a shard is missing."""
        return 1.0

    @property
    def factors(self) -> Factors:
        """Mean and covariance of all images and of each class."""
        return Factors(self)  # not stored: a reference cycle would keep the files mapped

    @abstractmethod
    def posterior(self, estimator: Any, x: F32, sigma: float, supports: Supports) -> Posterior:
        """The posterior of queries (b, D), each over its own support."""

    def nearest(self, x: F32, k: int, metric: Metric, within: Supports) -> list[AnySupport]:
        """The k nearest images of each query (b, D) among its candidates.

        Args:
            x: queries.
            k: number of images for each location of the metric; ties go to the lower row.
            metric: the distance.
            within: the candidates, for all queries or for each query. A support of at most k
                images is returned unchanged.

        Returns:
            A support for each query, rows ascending, with the log weights of ``within``.
        """
        supports = list(per_query(within, len(x)))
        searched = [i for i, support in enumerate(supports) if len(support) > k]
        if searched:
            candidates = [supports[i] for i in searched]
            neighbors = self.answer(Nearest(metric), x[searched], candidates, k)
            for i, nearest in zip(searched, neighbors, strict=True):
                side, tiles = metric.side, nearest.tiles
                supports[i] = tiles[0] if side is None else TiledSupport(side, tiles)
        return supports

    @abstractmethod
    def answer(self, question: Question, x: F32, within: Supports, *more: Any) -> Any:
        """The merged answer of all shards to a :class:`Question` about queries (b, D)."""

    def contributions(
        self, estimator: Any, x: F32, sigma: float, support: AnySupport, top: int,
        pixel: int | None,
    ) -> Iterator[Any]:  # fmt: skip
        """The terms of one query's posterior (D,), in batches of images, for attribution."""
        return estimator.contributions(x, sigma, support, top, pixel)

    @abstractmethod
    def values(self, rows: I64, onto: Axes | None = None) -> F32:
        """Flattened images as float32 in [-1, 1], (k, d); with ``onto``, coordinates (k, r)."""

    def images(self, indices: Indices | None = None) -> torch.Tensor:
        """Images as float32, (k, *shape): in [-1, 1], or the original values of a float store.

        Args:
            indices: rows to read, in the order of the result; None for all.

        Raises:
            ArgumentError: an index outside 0..n-1.
        """
        rows = _checked_rows(indices, self.n)
        return torch.from_numpy(self.values(rows)).reshape(len(rows), *self.shape)

    @cached_property
    def has_black_background(self) -> bool:
        """Whether more than ``BLACK_SHARE`` of the values of a thousand images are black."""
        rows = self._spread(1000)
        return self.is_pixels and float((self.values(rows) == -1).mean()) > BLACK_SHARE

    def _spread(self, count: int) -> I64:
        """At most ``count`` rows, evenly spaced over the images that can be read."""
        return np.unique(np.linspace(0, self.n - 1, count).astype(np.int64))

    def rows_of(self, prior: Prior) -> I64:
        """Ascending rows of the images that a prior allows: a class, or all images for None.

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
        """Number of images that a prior allows; raises the errors of :meth:`rows_of`."""
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

    def everything(self, prior: Prior) -> Support | RuleSupport:
        """All images that a prior allows, with log weights; raises as :meth:`rows_of` does."""
        if isinstance(prior, LogWeights):
            return prior.support
        count, rows_of = self.count_of(prior), self.rows_of
        return RuleSupport(count, lambda part: part.rows_in(rows_of(part.label)), prior)

    def factor(self, label: int | None = None, progress: Callable[[int], None] = silent) -> Factor:
        """Mean and covariance factor of the store, or of one class; computed once and cached.

        It uses all images, or a random 100,000 of them if images have more than 4,096 values.
        ``Factor.images`` is the number used; ``factors.estimate`` takes another number.

        Args:
            label: the class; None for all images.
            progress: called with the number of images processed, while the factor is computed.
        """
        return self.factors.of(label, progress)

    @abstractmethod
    def _make_factor(
        self, label: int | None, images: int | None, seed: int, progress: Callable[[int], None]
    ) -> Factor:
        """Compute the factor of a class from ``images`` of its images; see :class:`Factors`."""


def _checked_rows(indices: Indices | None, n: int) -> I64:
    """Valid int64 rows for ``indices`` into n images; None selects all."""
    if indices is None:
        return np.arange(n)
    if isinstance(indices, slice):
        return np.arange(*indices.indices(n))
    if isinstance(indices, torch.Tensor):  # on any device
        indices = as_dense_tensor("indices", indices, "integers (k,)").numpy()
    try:
        rows = np.atleast_1d(np.asarray(indices))
    except ValueError:  # lists of different lengths
        raise ArgumentError(f"indices: got {indices!r:.99}, expected integers (k,)") from None
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
