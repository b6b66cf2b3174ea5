"""A store in shards: the training set of as many machines as it takes.

A training set answers three questions, and so do its parts: which images are nearest, which are
drawn, and what do these weigh. The driver asks all shards at once, each with its part of the
supports, and merges what they say; a shard is an ordinary store in a Ray actor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.cluster.agreement import About, agreed
from golddiff.cluster.gathered import gathered_contributions
from golddiff.cluster.joining import connect, ray_package
from golddiff.cluster.kept import belongs, home, recall, remember
from golddiff.cluster.listing import Listing
from golddiff.cluster.pool import Pool, Resources, Traffic
from golddiff.cluster.shard import Part, Supports, narrow
from golddiff.errors import ArgumentError, ClusterError
from golddiff.kernels.lowest import lowest
from golddiff.posterior import Posterior
from golddiff.store.build import FACTOR, PIXELS
from golddiff.store.images import Indices, check_factor_images, checked_rows
from golddiff.store.manifest import FileRecord, Manifest
from golddiff.store.nearest import Drawing, Found, Metric, supported
from golddiff.store.residency import DEFAULT_LIMIT
from golddiff.store.statistics import Factor, Moments, default_images, images_in
from golddiff.support import (
    AnySupport,
    DescribedSupport,
    Support,
    TiledSupport,
    grouped,
    one_each,
)

ELSEWHERE = ("flat", "norms", "proxies")


class ShardedStore:
    """A training set whose images lie in shards, each kept by a Ray actor.

    It takes an :class:`golddiff.ImageStore`'s place in every denoiser and schedule of golddiff; the
    rows are those of the shards one after another. What asks for the pixels themselves
    (``images``, ``values``) fetches them; ``flat`` is not there.

    Attributes:
        paths: of the shards, in order.
        firsts: (S,) row of each shard's first image.
        n, shape, d, class_names, is_pixels, manifest, path: as of an ImageStore; ``path`` is the
            folder of what is computed from all shards.
        memory_limit: of each shard's process.
    """

    def __init__(
        self, listing: Listing, pool: Pool, abouts: Sequence[About | None], identity: str
    ) -> None:
        """Use :meth:`open`."""
        there = [about for about in abouts if about is not None]
        first = there[0]
        records = [None if isinstance(shard, str) else shard for shard in listing.shards]
        self._sizes = [
            about.n if about is not None else record.n if record is not None else 0
            for about, record in zip(abouts, records, strict=True)
        ]
        self._counts = [{} if about is None else about.counts for about in abouts]
        self.paths = listing.paths
        self.n, self.shape, self.d = sum(self._sizes), first.shape, math.prod(first.shape)
        self.class_names, self.is_pixels = first.class_names, first.dtype == "uint8"
        self.firsts: NDArray[np.int64] = np.cumsum([0, *self._sizes[:-1]])
        self.manifest = Manifest(
            self.n, first.shape, first.dtype, first.labelled, first.class_names,
            first.proxy_shape, f"{len(self.paths)} shards of {first.source}",
            files={PIXELS: FileRecord(sum(about.bytes for about in there), identity)},
        )  # fmt: skip
        self.path = home(listing, identity)
        self._identity = identity
        self._pool = pool
        self._factors: dict[int | None, Factor] = {}
        self._labels: torch.Tensor | None = None

    @classmethod
    def open(
        cls,
        path: str | Path | Sequence[str | Path],
        memory_limit: float = DEFAULT_LIMIT,
        *,
        allow_missing: bool = False,
        patience: float = 120.0,
        num_cpus: float | None = None,
        num_gpus: float = 0.0,
        threads: int | None = None,
    ) -> ShardedStore:
        """Open a store in shards; connects to Ray first where that was not done (``connect``).

        Args:
            path: of a ``shards.json`` or of its folder (what ``golddiff index --cluster`` makes),
                or the shards' own paths in the order of their rows. Folders, or addresses that
                fsspec reads (s3://, gs://, zip://...::...); a shard's path has to lead to it on
                whatever machine its actor runs.
            memory_limit: bytes of a shard's files that may be resident in its process at a time,
                as of :meth:`golddiff.ImageStore.open`.
            allow_missing: go on without a shard that cannot come back; ``share`` and every
                :class:`golddiff.sampling.Samples` then say what share of the images was seen.
            patience: seconds without a sign of life after which a shard is lost.
            num_cpus: cores that Ray reserves for each shard; default none.
            num_gpus: GPUs that Ray reserves for each shard.
            threads: of each shard; default ``num_cpus``, else the cluster's cores shared out.

        Raises:
            ArgumentError: no shard, or one listed twice; a resource or limit that is none.
            StoreError: the list is damaged; shards that do not fit together.
            ClusterError: no cluster; a shard that cannot be opened; another version of golddiff
                where a shard runs.
        """
        if not (isinstance(patience, int | float) and patience > 0):
            raise ArgumentError(f"patience: got {patience!r}, expected seconds above 0")
        resources = Resources(num_cpus, num_gpus, threads, memory_limit)
        listing = Listing.of(path)
        if not ray_package().is_initialized():
            connect()
        pool = Pool(listing.paths, resources, allow_missing, patience)
        try:
            told = dict(pool.ask("about", ()))
            abouts = [told.get(shard) for shard in range(len(listing.paths))]
            identity = agreed(listing, abouts)
        except BaseException:
            pool.close()
            raise
        return cls(listing, pool, abouts, identity)

    def close(self) -> None:
        """End the shards' processes; the store cannot be used afterwards."""
        self._pool.close()

    def __enter__(self) -> ShardedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.n

    @property
    def missing(self) -> dict[str, str]:
        """The shards that were given up, and why."""
        return {self.paths[shard]: why for shard, why in self._pool.missing.items()}

    @property
    def traffic(self) -> Traffic:
        """Bytes to and from the shards since :meth:`start_counting`."""
        return self._pool.traffic

    def start_counting(self) -> None:
        """Set ``traffic`` to zero."""
        self._pool.start_counting()

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each shard's actor, on its machine."""
        return {self.paths[shard]: pid for shard, pid in self._pool.pids.items()}

    def watch(self, on_answer: Callable[[int], None]) -> None:
        """Call a function with a shard's number whenever it has weighed its part of a step."""
        self._pool.on_answer = on_answer

    @property
    def share(self) -> float:
        """What share of the images results see: 1 unless a shard is missing."""
        there = sum(self._sizes[shard] for shard in self._pool.present)
        return there / self.n if self.n else 0.0

    # Rows and classes.

    @property
    def labels(self) -> torch.Tensor | None:
        """(n,) class indices, fetched at the first question (8 bytes an image); or None.

        -1 where a shard is missing.
        """
        if self.manifest.labelled and self._labels is None:
            there = dict(self._pool.ask("labels", ()))
            parts = [there.get(s, np.full(n, -1, np.int64)) for s, n in enumerate(self._sizes)]
            self._labels = torch.from_numpy(np.concatenate(parts))
        return self._labels

    def class_counts(self) -> dict[int, int]:
        """Images of each class that has any, ascending; empty without labels."""
        return {label: self.count_of(label) for label in self.classes}

    @property
    def classes(self) -> list[int]:
        """The class indices that have images, ascending; empty without labels."""
        return sorted(set().union(*self._counts))

    def count_of(self, label: int | None) -> int:
        """How many images a class has in all shards, or the whole store for None.

        Raises:
            ArgumentError: the store has no labels, or no image of that class.
        """
        if label is not None and not self.manifest.labelled:
            raise ArgumentError(f"labels: got {label}, but the store has no labels")
        images = sum(self._count(shard, label) for shard in range(len(self.paths)))
        if label is not None and images == 0:
            shown = ", ".join(map(str, self.classes[:12])) + ", ..." * (len(self.classes) > 12)
            raise ArgumentError(
                f"labels: got {label}, a class with no images; the store has classes {shown}"
            )
        return images

    def _count(self, shard: int, label: int | None) -> int:
        return self._sizes[shard] if label is None else self._counts[shard].get(label, 0)

    def rows_of(self, label: int | None) -> NDArray[np.int64]:
        """Ascending rows of a class, or of the whole store for None: 8 bytes an image here.

        Raises:
            ArgumentError: as :meth:`count_of`.
        """
        self.count_of(label)
        if label is None:
            return np.arange(self.n)
        assert self.labels is not None
        return np.flatnonzero(self.labels.numpy() == label)

    def everything(self, label: int | None, without: Sequence[int] = ()) -> DescribedSupport:
        """The support of all images of a class, or of the whole store for None, but for some rows.

        Raises:
            ArgumentError: as :meth:`count_of`.
        """
        return DescribedSupport(self.count_of(label), self._listed, label, without=tuple(without))

    def _listed(self, support: DescribedSupport) -> NDArray[np.int64]:
        return support.rows_in(self.rows_of(support.label))

    def sampled_rows(self, most: int) -> NDArray[np.int64]:
        """All rows, or ``most`` of them, ascending, drawn once and for all."""
        if self.n <= most:
            return np.arange(self.n)
        rows = np.random.default_rng(0).choice(self.n, most, replace=False, shuffle=False)
        drawn: NDArray[np.int64] = np.sort(rows)
        return drawn

    # The three questions.

    def posterior(
        self,
        estimator: Any,
        x: NDArray[np.float32],
        sigma: float,
        supports: AnySupport | Sequence[AnySupport],
    ) -> Posterior:
        """The posterior of queries (b, D), each over its support in all shards.

        Raises:
            ArgumentError: a shard's memory limit.
            ClusterError: a shard is lost; no image of the supports is left.
        """
        parts = self._parts(one_each(supports, len(x)))
        once = self._pool.once((estimator, sigma), lambda: estimator.at_level(sigma))
        total: Posterior | None = None
        for _, (queries, part) in self._pool.ask(
            "posterior", lambda shard: (x, sigma, parts[shard]), [once]
        ):
            if part is not None:
                total = total or Posterior.empty(len(x), part.log_max.shape[1], self.d)
                total.add_to(queries, part)
        if total is None or not (total.total > 0).all():
            raise ClusterError("cluster: no image to be weighed is left in the shards")
        return total

    def nearest(
        self,
        x: NDArray[np.float32],
        k: int,
        metric: Metric,
        within: AnySupport | Sequence[AnySupport],
    ) -> list[AnySupport]:
        """Of each query (b, D) the k nearest images; see :meth:`golddiff.ImageStore.nearest`.

        Each shard gives its k nearest with their distances, 12 bytes an image and location.
        """
        answers = list(one_each(within, len(x)))
        open_ = [i for i, support in enumerate(answers) if len(support) > k]
        if not open_:
            return answers
        parts = self._parts([answers[i] for i in open_])
        once = self._pool.once(metric, lambda: metric)
        found = list(self._pool.ask("nearest", lambda shard: (x[open_], k, parts[shard]), [once]))
        for place, i in enumerate(open_):
            of_query = [(self.firsts[shard], answer[place]) for shard, answer in found]
            answers[i] = supported(metric.side, _nearest_of(of_query, k))
        return answers

    def draw(
        self,
        x: NDArray[np.float32],
        drawing: Drawing,
        within: AnySupport | Sequence[AnySupport],
    ) -> list[AnySupport]:
        """Images drawn by weight for each query; see :meth:`golddiff.ImageStore.draw`."""
        parts = self._parts(one_each(within, len(x)))
        once = [self._pool.once(drawing, lambda: drawing)]
        told = self._pool.ask("summary", lambda shard: (x, parts[shard]), once)
        total = reduce(lambda a, b: a.merge(b), (summary for _, summary in told))
        found = list(
            self._pool.ask(
                "chosen", lambda shard: (x, parts[shard], total, int(self.firsts[shard])), once
            )
        )
        return [
            _joined([(self.firsts[shard], supports[i]) for shard, supports in found])
            for i in range(len(x))
        ]

    def contributions(
        self, estimator: Any, x: NDArray[np.float32], sigma: float, support: AnySupport, top: int,
        pixel: int | None,
    ) -> Iterator[Any]:  # fmt: skip
        """The terms of one query's posterior (D,); the images are fetched.

        Raises:
            ArgumentError: more images than should travel.
        """
        yield from gathered_contributions(self, estimator, x, sigma, support, top, pixel)

    def _parts(self, supports: Sequence[AnySupport]) -> list[Supports]:
        """Each shard's part of the supports of some queries."""
        groups = grouped(supports)
        which = [0] * len(supports)
        for place, (_, queries) in enumerate(groups):
            for query in queries:
                which[query] = place
        cut = [self._cut(support) for support, _ in groups]
        return [
            Supports([parts[shard] for parts in cut], which) for shard in range(len(self.paths))
        ]

    def _cut(self, support: AnySupport) -> Sequence[Support | TiledSupport | Part]:
        if isinstance(support, DescribedSupport):
            told = replace(support, listing=_elsewhere)
            counts = [self._count(shard, support.label) for shard in range(len(self.paths))]
            places = [0, *accumulate(counts)]
            return [
                Part(told, place, int(f)) for place, f in zip(places, self.firsts, strict=False)
            ]
        if isinstance(support, TiledSupport):
            tiles = [self._cut_rows(tile) for tile in support.tiles]
            return [TiledSupport(support.side, of_shard) for of_shard in zip(*tiles, strict=True)]
        return self._cut_rows(support)

    def _cut_rows(self, support: Support) -> list[Support]:
        borders = [*np.searchsorted(support.rows, self.firsts), len(support.rows)]
        weights = support.log_weights
        return [
            Support(narrow(support.rows[a:b] - first), None if weights is None else weights[a:b])
            for a, b, first in zip(borders, borders[1:], self.firsts, strict=False)
        ]

    # Images and what is made of all of them.

    def images(self, indices: Indices | None = None) -> torch.Tensor:
        """Images as float32 in [-1, 1], (k, *shape), fetched from their shards.

        Args:
            indices: rows to read, in the order wanted; None for all.

        Raises:
            ArgumentError: an index outside 0..n-1.
        """
        rows = checked_rows(indices, self.n)
        return torch.from_numpy(self.values(rows)).reshape(len(rows), *self.shape)

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Flattened images as float32 in [-1, 1], (k, d), fetched from their shards."""
        return self._fetched("values", rows, self.d)

    def projected(
        self, rows: NDArray[np.int64], mean: NDArray[np.float32], axes: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Coordinates (k, r) of images less a mean (D,), along columns (D, r); no pixel travels."""
        return self._fetched("projected", rows, axes.shape[1], mean, axes)

    def _fetched(
        self, method: str, rows: NDArray[np.int64], width: int, *arguments: Any
    ) -> NDArray[np.float32]:
        """Numbers (k, width) of some images, in the order asked for."""
        owner = np.searchsorted(self.firsts, rows, side="right") - 1
        mine = {int(shard): np.flatnonzero(owner == shard) for shard in np.unique(owner)}
        out = np.empty((len(rows), width), np.float32)
        answers = self._pool.ask(
            method,
            lambda shard: (narrow(rows[mine[shard]] - self.firsts[shard]), *arguments),
            shards=list(mine),
        )
        for shard, found in answers:
            out[mine.pop(shard)] = found
        for shard in mine:
            raise ClusterError(f"cluster: shard {self.paths[shard]} is missing")
        return out

    def factor(
        self, label: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> Factor:
        """Mean and covariance factor of all shards, or of one class; made once and kept.

        Of the images that a single store's are of. The shards send the sums that it is made of
        (8 D^2 bytes each, once).

        Args:
            label: the class; None for all images.
            progress: called with the number of images, once they are summed.
        """
        if label not in self._factors:
            n, kept = self.count_of(label), self.kept(_factor_file(label))
            if kept is None:
                return self._make_factor(label, None, 0, progress)
            self._factors[label] = Factor.of_tensors(kept, n)
        return self._factors[label]

    def estimate_factor(
        self,
        images: int | None,
        seed: int = 0,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Factor:
        """As :meth:`golddiff.ImageStore.estimate_factor`, over all shards.

        Args:
            images: how many, drawn at random without replacement; None for the default of
                :meth:`factor`; as many as there are, or more, for all.
            seed: of the draw.
            progress: called with the number of images, once they are summed.

        Raises:
            ArgumentError: ``images`` is no integer of 2 or more.
        """
        check_factor_images(images)
        return self._make_factor(None, images, seed, progress)

    def _make_factor(
        self, label: int | None, images: int | None, seed: int, progress: Callable[[int], None]
    ) -> Factor:
        parts = self._cut(self.everything(label))
        told = self._pool.ask("moments", lambda shard: (parts[shard], images, seed))
        sums: Moments = reduce(Moments.merge, (part for _, part in told))
        progress(sums.n)
        scale, offset = (1 / 127.5, -1.0) if self.is_pixels else (1.0, 0.0)
        factor = self._factors[label] = sums.factor(scale, offset)
        if not self.missing:
            self.keep(_factor_file(label), factor.tensors())
        return factor

    def factor_mark(self) -> str | None:
        """A checksum of the factor of all images, which kept masks name."""
        return self.factor().digest()

    def has_factor(self) -> bool:
        """Whether the factor of all images is kept."""
        return None in self._factors or belongs(self.path / FACTOR, self._identity)

    @property
    def factor_images(self) -> int | None:
        """Of how many images :meth:`factor` is; made for this only where shards are missing."""
        if None in self._factors or self.missing:
            return self.factor().images
        if self.has_factor():
            return images_in(self.path / FACTOR, self.n)
        return default_images(self.n, self.d)

    @property
    def mean(self) -> torch.Tensor:
        """The mean image, float32, (*shape)."""
        return torch.from_numpy(self.factor().mean.astype(np.float32)).reshape(self.shape)

    @property
    def radius(self) -> float:
        """R = max_i ||x_i||, the data radius of the paper's Theorem 1."""
        return max(float(radius) for _, radius in self._pool.ask("radius", ()))

    def kept(self, name: str) -> dict[str, NDArray[Any]] | None:
        """What was computed from the store before and kept under a name, or None."""
        return recall(self.path / name, self._identity)

    def keep(self, name: str, tensors: dict[str, NDArray[Any]]) -> None:
        """Keep what was computed from the store, where its folder may be written to."""
        remember(self.path / name, self._identity, tensors)

    def verify(self) -> None:
        """Recompute every checksum, in all shards at once.

        Raises:
            ClusterError: names the first shard whose files changed.
        """
        list(self._pool.ask("verify", ()))

    def __getattr__(self, name: str) -> Any:
        if name in ELSEWHERE:
            raise ClusterError(
                f"store: {name} is not here, the images lie in {len(self.paths)} shards; this "
                "works on a single store (golddiff.ImageStore)"
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __repr__(self) -> str:
        return (
            f"ShardedStore({len(self.paths)} shards: {self.n:,} x {self.shape} "
            f"{self.manifest.dtype})"
        )


def _factor_file(label: int | None) -> str:
    return FACTOR if label is None else f"factor-{label}.safetensors"


def _elsewhere(support: DescribedSupport) -> NDArray[np.int64]:
    """Stands for the driver's own way of listing rows, which does not travel."""
    raise ClusterError("cluster: a shard lists its own part of a support alone")


def _nearest_of(found: Sequence[tuple[int, Found | None]], k: int) -> list[Support]:
    """Of each location the k nearest of all shards; shards come in the order of their rows."""
    there = [(first, part) for first, part in found if part is not None]
    supports = []
    for tile in range(len(there[0][1].tiles)):
        all_ = _all_rows([(first, part.tiles[tile]) for first, part in there])
        distances = np.concatenate([part.distances[tile] for _, part in there])
        supports.append(all_.at(lowest(distances, k)))
    return supports


def _joined(parts: Sequence[tuple[int, Support | TiledSupport]]) -> Support | TiledSupport:
    """The parts of one query's support, each of a shard, as rows of the store."""
    tiled = [(first, part) for first, part in parts if isinstance(part, TiledSupport)]
    if not tiled:
        return _all_rows([(first, p) for first, p in parts if isinstance(p, Support)])
    count = len(tiled[0][1].tiles)
    tiles = [_all_rows([(first, part.tiles[t]) for first, part in tiled]) for t in range(count)]
    return TiledSupport(tiled[0][1].side, tiles)


def _all_rows(parts: Sequence[tuple[int, Support]]) -> Support:
    rows = np.concatenate([part.rows.astype(np.int64) + first for first, part in parts])
    if all(part.log_weights is None for _, part in parts):
        return Support(rows)
    return Support(rows, np.concatenate([part.log_importance() for _, part in parts]))
