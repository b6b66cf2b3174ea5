"""A training set: what denoisers, schedules and attribution may ask, wherever its images are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Drawing, Metric
from golddiff.store.statistics import Factor
from golddiff.support import AnySupport, DescribedSupport, Prior, Support
from golddiff.system.errors import ArgumentError


class TrainingSet(Protocol):
    """An :class:`golddiff.ImageStore` on this disk, or shards of one on other machines.

    It has shape and number of its images, their classes and statistics, and answers three
    questions: :meth:`posterior`, :meth:`nearest` and :meth:`draw`. Rows are those of the whole set.
    See :class:`golddiff.ImageStore` for what each member is.
    """

    n: int
    shape: tuple[int, ...]
    d: int
    class_names: list[str] | None
    classes: list[int]  # that have images, ascending

    @property
    def share(self) -> float:
        """Of the images that results see; below 1 where some cannot be reached."""
        ...

    @property
    def labels(self) -> torch.Tensor | None:
        """(n,) class indices."""
        ...

    @property
    def is_pixels(self) -> bool:
        """Whether the values are known to lie in [-1, 1]."""
        ...

    def images(self, indices: Any = None) -> torch.Tensor:
        """Images (k, *shape) float32 in [-1, 1]."""
        ...

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The same flattened, (k, d)."""
        ...

    def count_of(self, prior: Prior) -> int:
        """How many images a prior lets in; ArgumentError where a class has none."""
        ...

    def rows_of(self, prior: Prior) -> NDArray[np.int64]:
        """Their rows, ascending: 8 bytes an image."""
        ...

    def everything(self, prior: Prior) -> Support | DescribedSupport:
        """The support of all of them, with their log weights; nobody lists those of a class."""
        ...

    def factor(
        self, label: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> Factor:
        """Mean and covariance."""
        ...

    def posterior(
        self,
        estimator: Any,
        x: NDArray[np.float32],
        sigma: float,
        supports: AnySupport | Sequence[AnySupport],
    ) -> Posterior:
        """Weigh these images for these queries."""
        ...

    def nearest(
        self,
        x: NDArray[np.float32],
        k: int,
        metric: Metric,
        within: AnySupport | Sequence[AnySupport],
    ) -> list[AnySupport]:
        """The k nearest images of those that a query may have."""
        ...

    def draw(
        self,
        x: NDArray[np.float32],
        drawing: Drawing,
        within: AnySupport | Sequence[AnySupport],
    ) -> list[AnySupport]:
        """Images drawn at random by weight."""
        ...

    def summary(
        self,
        x: NDArray[np.float32],
        drawing: Drawing,
        within: AnySupport | Sequence[AnySupport],
    ) -> Any:
        """What a draw by weight has to know of all images, before any is drawn."""
        ...

    def contributions(
        self, estimator: Any, x: NDArray[np.float32], sigma: float, support: AnySupport, top: int,
        pixel: int | None,
    ) -> Iterator[Any]:  # fmt: skip
        """The terms of one query's posterior, for attribution."""
        ...


def opened(store: ImageStore | str | Path) -> ImageStore:
    """A training set as it is, or the store in a folder.

    Raises:
        ArgumentError: names what came.
        StoreError: the folder holds no sound store.
    """
    if isinstance(store, str | Path):
        return ImageStore.open(store)
    if not all(hasattr(store, name) for name in ("shape", "d", "posterior")):
        raise ArgumentError(
            f"store: got {type(store).__name__}, expected an ImageStore or the path of one"
        )
    return store
