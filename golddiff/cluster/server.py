"""What runs beside a shard: it opens the shard's store and answers for its images.

There is no Ray in here, and no state that cannot be found again: what a shard lacks, after it was
started again, it asks for (:class:`golddiff.cluster.recipes.Needs`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff import describe
from golddiff.cluster.choices import Choices
from golddiff.cluster.copies import local_folder
from golddiff.cluster.on_gpu import on_gpu
from golddiff.cluster.pieces import Pieces, batches_of, joined
from golddiff.cluster.recipes import (
    About,
    Candidates,
    Chosen,
    Drawn,
    Needs,
    Place,
    Stage,
)
from golddiff.denoiser import Estimator
from golddiff.errors import ArgumentError
from golddiff.estimators.pca import PCA
from golddiff.kernels.mask_tiles import Side
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.store.manifest import identity_of
from golddiff.store.residency import DEFAULT_LIMIT
from golddiff.store.statistics import Factor, Moments, factor_places, moments
from golddiff.support import AnySupport, Support, TiledSupport

QUERIES_KEPT = 64


class ShardImages(ImageStore):
    """A shard's own images, with the mean and covariance of the images of all shards."""

    _given: dict[int | None, Factor]
    _mark: tuple[Factor, str] | None = None

    def factor(
        self, label: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> Factor:
        """That of all shards, which the driver gives.

        Raises:
            Needs: it was not given yet.
        """
        if label not in self.given:
            raise Needs("factor", label)
        return self.given[label]

    @property
    def factor_images(self) -> int | None:
        """Of how many images of all shards the one that was given is."""
        return self.factor().images

    def factor_mark(self) -> str | None:
        """A checksum of what was given; the shard's files know nothing of it."""
        factor = self.factor()
        if self._mark is None or self._mark[0] is not factor:
            self._mark = factor, factor.digest()
        return self._mark[1]

    @property
    def given(self) -> dict[int | None, Factor]:
        """The factors that were given."""
        return self.__dict__.setdefault("_given", {})  # type: ignore[no-any-return]


class ShardServer:
    """Answers for one shard.

    Args:
        path: of the shard's store: a folder, or an address that fsspec reads, which is then
            copied to this machine's cache first.
        memory_limit: bytes of its files that may be resident at a time.

    Raises:
        StoreError: it cannot be opened.
    """

    def __init__(self, path: str, memory_limit: float = DEFAULT_LIMIT) -> None:
        self.store = cast(ShardImages, ShardImages.open(local_folder(path), memory_limit))
        self._queries: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._estimators: dict[str, Estimator] = {}
        self._place: Place | None = None
        self.choices = Choices(self)
        self.device = torch.device("cuda") if torch.cuda.is_available() else None

    def about(self) -> About:
        """What the shard holds."""
        manifest = self.store.manifest
        labels = np.empty(0, np.int64) if self.store.labels is None else self.store.labels.numpy()
        classes, counts = np.unique(labels, return_counts=True)
        return About(
            self.store.n, self.store.shape, manifest.dtype, manifest.class_names,
            manifest.proxy_shape, manifest.source,
            dict(zip(classes.tolist(), counts.tolist(), strict=True)), manifest.labelled,
            identity_of(manifest), sum(file.bytes for file in manifest.files.values()),
        )  # fmt: skip

    # What the driver gives, when it is asked for.

    def settle(self, place: Place) -> None:
        """Where the shard's rows lie in the store."""
        self._place = place

    def hold(self, token: str, x: NDArray[np.float32]) -> None:
        """Keep queries (b, D) under a name; the oldest give way."""
        self._queries[token] = x
        while len(self._queries) > QUERIES_KEPT:
            self.choices.forget(self._queries.popitem(last=False)[0])

    def give_factor(self, label: int | None, factor: Factor) -> None:
        """Mean and covariance factor of all shards, or of one class in all of them."""
        self.store.given[label] = factor

    def forget_factors(self) -> None:
        """Let go mean and covariance, and what was made of them: there are others now."""
        self.store.given.clear()
        self._estimators.clear()
        self.choices.renew()

    def forget(self, description: dict[str, Any], sigma: float, side: Side | None) -> None:
        """Let go of what measuring supports made, but for the tiles of one side."""
        self.choices.measured(description, sigma, side)

    @property
    def place(self) -> Place:
        """Where the shard's rows lie.

        Raises:
            Needs: it was not told yet.
        """
        if self._place is None:
            raise Needs("place")
        return self._place

    def queries(self, token: str) -> NDArray[np.float32]:
        """The queries kept under a name.

        Raises:
            Needs: there are none.
        """
        if token not in self._queries:
            raise Needs("queries", token)
        return self._queries[token]

    def estimator(self, description: dict[str, Any]) -> Estimator:
        """The estimator over this shard's images; made once."""
        key = repr(description)
        if key not in self._estimators:
            made = describe.build(description, self.store)
            assert isinstance(made, Estimator)
            self._estimators[key] = made
        return self._estimators[key]

    # What the driver asks.

    def moments(self, label: int | None, images: int | None, seed: int) -> Moments:
        """Sums that mean and covariance are made of; of a class that is not here, of no images.

        Args:
            label: the class; None for all.
            images: of all shards, drawn as a single store draws them
                (:func:`golddiff.store.statistics.factor_rows`).
            seed: of the draw.
        """
        rows = self.choices.rows(Candidates(label))
        drawn = factor_places(self.place.images_of[label], self.store.d, images, seed)
        if drawn is not None:
            first = self.place.first_of[label]
            rows = rows[drawn[(drawn >= first) & (drawn < first + len(rows))] - first]
        return moments(self.store.flat, rows)

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Images (k, D) by local row."""
        return self.store.values(rows)

    def projected(
        self, rows: NDArray[np.int64], mean: NDArray[np.float32], axes: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Coordinates (k, r) of images by local row, along orthonormal columns (D, r)."""
        return self.store.projected(rows, mean, axes)

    def verify(self) -> None:
        """Recompute the shard's checksums.

        Raises:
            StoreError: names the first file whose contents changed.
        """
        self.store.verify()

    def labels(self) -> NDArray[np.int64]:
        """The class of each image."""
        assert self.store.labels is not None
        return self.store.labels.numpy()

    def largest_norm(self) -> float:
        """The largest Euclidean norm of an image."""
        return self.store.radius

    def counts_between(
        self,
        stage: Stage,
        problems: NDArray[np.int64],
        low: NDArray[np.uint64],
        width: NDArray[np.uint64],
        bins: int,
    ) -> NDArray[np.uint32]:
        """How many distances of each problem lie in each of so many bins from a key on."""
        return self.choices.kept(stage).histogram(problems, low, width, bins)

    def extent(self, stage: Stage) -> tuple[NDArray[np.uint64], NDArray[np.uint64], list[int]]:
        """Least and largest key of each problem, and how many images compete."""
        return self.choices.kept(stage).extent()

    def masses(
        self, stage: Stage, best: NDArray[np.float32], sigma: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of each problem the sums of the images' weights, exact and tempered."""
        return self.choices.masses(stage, best, sigma)

    def sure(
        self, chosen: Drawn, problems: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Of some problems how many images are in for sure at their c, and the others' weights."""
        return self.choices.sure(chosen, problems)

    def sizes(self, chosen: Chosen, queries: list[int]) -> NDArray[np.int64]:
        """How many images each query (or tile of it, tile by tile) weighs here."""
        supports = self.choices.supports(chosen, queries)
        tiles = [s.tiles if isinstance(s, TiledSupport) else [s] for s in supports]
        return np.array([len(tile) for of_query in tiles for tile in of_query], np.int64)

    def rows(
        self, chosen: Chosen, query: int, tile: int | None = None
    ) -> tuple[NDArray[np.int64], Any]:
        """Store rows and log weights that a query, or a tile of it, weighs here."""
        (support,) = self.choices.supports(chosen, [query])
        if isinstance(support, TiledSupport) and tile is not None:
            support = support.tiles[tile]
        if isinstance(support, TiledSupport):
            raise ArgumentError("support: got one for each tile, expected one for the whole image")
        return support.rows + self.place.first, support.log_weights

    def posterior(
        self,
        description: dict[str, Any],
        token: str,
        sigma: float,
        chosen: Chosen,
        queries: list[int],
        starts: list[int] | None,
    ) -> Posterior | list[Pieces]:
        """The partial posterior of some of the queries over what of their supports lies here.

        Args:
            description: of the estimator.
            token: of the queries.
            sigma: noise level.
            chosen: the supports.
            queries: which queries.
            starts: for the average of batches ("wss"): how many images of each query's support
                lie in the shards before; then the answer is a piece a query.
        """
        estimator = self.estimator(description)
        x = self.queries(token)[queries]
        supports = self.choices.supports(chosen, queries)
        if starts is not None:
            assert isinstance(estimator, PCA)
            return self._pieces(estimator, x, sigma, supports, starts)
        if all(support is supports[0] for support in supports):
            return self._posterior(estimator, x, sigma, supports[0])
        return joined(
            [
                self._posterior(estimator, x[i : i + 1], sigma, support)
                for i, support in enumerate(supports)
            ]
        )

    def _pieces(
        self,
        estimator: PCA,
        x: NDArray[np.float32],
        sigma: float,
        supports: list[AnySupport],
        starts: list[int],
    ) -> list[Pieces]:
        made = []
        for i, (support, start) in enumerate(zip(supports, starts, strict=True)):
            assert isinstance(support, Support)
            pieces = Pieces.empty(1, self.store.d)
            for number, part, full in batches_of(support, start, estimator.batch_size):
                pieces.add(number, estimator.posterior(x[i : i + 1], sigma, part), full)
            made.append(pieces)
        return made

    def _posterior(
        self, estimator: Estimator, x: NDArray[np.float32], sigma: float, support: AnySupport
    ) -> Posterior:
        if isinstance(support, TiledSupport):
            return estimator.tiled_posterior(x, sigma, support)
        if len(support) == 0:
            return Posterior.empty(len(x), estimator.locations(), self.store.d)
        if self.device is not None:
            there = on_gpu(estimator, self.device)
            if there is not None:
                return there.posterior(x, sigma, support)
        step = estimator.queries_at_once(len(support))
        return joined(
            [estimator.posterior(x[i : i + step], sigma, support) for i in range(0, len(x), step)]
        )
