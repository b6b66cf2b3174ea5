"""A store in shards: the training set of as many machines as it takes.

A training set answers three questions, and so do its parts: which images are nearest, which are
drawn, and what do these weigh. The driver asks all shards at once, each with its part of the
supports, and merges what they say; a shard is an ordinary store in a Ray actor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.cluster.agreement import About, agreed
from golddiff.cluster.copies import is_local, without_scheme
from golddiff.cluster.gathered import gathered_contributions
from golddiff.cluster.joining import connect, ray_package
from golddiff.cluster.listing import Listing
from golddiff.cluster.pool import Pool, Resources
from golddiff.cluster.slices import Borders, joined, nearest_of
from golddiff.posterior import Posterior
from golddiff.store.artifacts import Artifacts
from golddiff.store.build import PIXELS
from golddiff.store.cache import cache_folder
from golddiff.store.factors import Factors, silent
from golddiff.store.manifest import FileRecord
from golddiff.store.nearest import Drawing, Metric, supported
from golddiff.store.posteriors import at_level
from golddiff.store.selection import Indices, Part, check_class, checked_rows
from golddiff.store.statistics import Axes, Factor, Moments
from golddiff.support import (
    AnySupport,
    DescribedSupport,
    LogWeights,
    Prior,
    Support,
    TiledSupport,
    one_each,
)
from golddiff.system.errors import ArgumentError, ClusterError
from golddiff.system.residency import DEFAULT_LIMIT

ELSEWHERE = ("flat", "norms", "proxies", "residency")


class ShardedStore:
    """A training set whose images lie in shards, each kept by a Ray actor.

    It takes an :class:`golddiff.ImageStore`'s place in every denoiser and schedule of golddiff; the
    rows are those of the shards one after another. What asks for the pixels themselves
    (``images``, ``values``) fetches them; ``flat`` is not there.

    Attributes:
        paths: of the shards, in order.
        borders: where they lie in the store.
        pool: their processes: which are missing, what has travelled.
        n, shape, d, class_names, class_counts, classes, is_pixels, radius: as of an ImageStore.
        manifest, artifacts, factors: the same.
        path: the folder of what is computed from all shards.
        labels: (n,) class indices, fetched at the first question (8 bytes an image), -1 where a
            shard is missing; or None.
        share: of the images that results see: 1 unless a shard is missing.
    """

    labels = Part(lambda store: store._labels())
    share = Part(lambda store: store._share())

    def __init__(
        self, listing: Listing, pool: Pool, abouts: Sequence[About | None], identity: str
    ) -> None:
        """Use :meth:`open`."""
        there = [about for about in abouts if about is not None]
        first = there[0].manifest
        records = [None if isinstance(shard, str) else shard for shard in listing.shards]
        sizes = [
            about.manifest.n if about is not None else record.n if record is not None else 0
            for about, record in zip(abouts, records, strict=True)
        ]
        self.paths, self.pool = listing.paths, pool
        self.borders = Borders(sizes, [{} if about is None else about.counts for about in abouts])
        self.n, self.shape, self.d = sum(sizes), first.shape, math.prod(first.shape)
        self.class_names, self.is_pixels = first.class_names, first.dtype == "uint8"
        self.class_counts = self.borders.class_counts()
        self.classes = list(self.class_counts)
        self.radius = max(about.radius for about in there)
        files = [file for about in there for file in about.manifest.files.values()]
        self.manifest = replace(
            first, n=self.n, source=f"{len(self.paths)} shards of {first.source}", skipped=0,
            files={PIXELS: FileRecord(sum(file.bytes for file in files), identity)},
        )  # fmt: skip
        self.path = _home(listing, identity)
        self.artifacts = Artifacts(self.path, identity)
        self.factors = Factors(self, ShardedStore._make_factor, {}, lambda: not pool.missing)

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
            answers = dict(pool.ask("about", ()))
            abouts = [answers.get(shard) for shard in range(len(listing.paths))]
            identity = agreed(listing, abouts)
        except BaseException:
            pool.close()
            raise
        return cls(listing, pool, abouts, identity)

    def close(self) -> None:
        """End the shards' processes; the store cannot be used afterwards."""
        self.pool.close()

    def __enter__(self) -> ShardedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.n

    def verify(self) -> None:
        """Recompute every checksum, in all shards at once.

        Raises:
            ClusterError: names the first shard whose files changed.
        """
        list(self.pool.ask("verify", ()))

    # Rows and classes.

    def count_of(self, prior: Prior) -> int:
        """How many images a prior lets in, in all shards: of a class, all for None.

        Raises:
            ArgumentError: the store has no labels, or no image of that class.
        """
        if prior is None or isinstance(prior, LogWeights):
            return len(prior.support) if prior is not None else self.n
        check_class(prior, self.manifest.labelled, self.class_counts)
        return self.class_counts[prior]

    def rows_of(self, prior: Prior) -> NDArray[np.int64]:
        """Their rows, ascending: 8 bytes an image here; raises as :meth:`count_of`."""
        if isinstance(prior, LogWeights):
            return prior.support.rows
        self.count_of(prior)
        if prior is None:
            return np.arange(self.n)
        assert self.labels is not None
        return np.flatnonzero(self.labels.numpy() == prior)

    def everything(self, prior: Prior) -> Support | DescribedSupport:
        """All images that a prior lets in, with their log weights; raises as :meth:`count_of`."""
        if isinstance(prior, LogWeights):
            return prior.support
        count, rows = self.count_of(prior), self.rows_of
        return DescribedSupport(count, lambda one: one.rows_in(rows(one.label)), prior)

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
        parts = self.borders.parts(one_each(supports, len(x)))
        once = self.pool.once((estimator, sigma), lambda: at_level(estimator, sigma))
        total: Posterior | None = None
        for _, (queries, part) in self.pool.ask(
            "posterior", lambda shard: (x, sigma, parts[shard]), [once]
        ):
            if part is not None:
                locations, width = part.log_max.shape[1], part.weighted.shape[1]
                total = total or Posterior.empty(len(x), locations, width)
                total.add_to(queries, part)
        tiled = any(isinstance(s, TiledSupport) for s in one_each(supports, len(x)))
        if total is None or not (tiled or (total.total > 0).all()):
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
        parts = self.borders.parts([answers[i] for i in open_])
        once = self.pool.once(metric, lambda: metric)
        found = list(self.pool.ask("nearest", lambda shard: (x[open_], k, parts[shard]), [once]))
        for place, i in enumerate(open_):
            of_query = [(self.borders.firsts[shard], answer[place]) for shard, answer in found]
            answers[i] = supported(metric.side, nearest_of(of_query, k))
        return answers

    def draw(
        self,
        x: NDArray[np.float32],
        drawing: Drawing,
        within: AnySupport | Sequence[AnySupport],
    ) -> list[AnySupport]:
        """Images drawn by weight for each query; see :meth:`golddiff.ImageStore.draw`."""
        parts = self.borders.parts(one_each(within, len(x)))
        once = [self.pool.once(drawing, lambda: drawing)]
        total = self.summary(x, drawing, within)
        found = list(
            self.pool.ask(
                "chosen", lambda shard: (x, parts[shard], total, self.borders.firsts[shard]), once
            )
        )
        return [
            joined([(self.borders.firsts[shard], supports[i]) for shard, supports in found])
            for i in range(len(x))
        ]

    def summary(
        self,
        x: NDArray[np.float32],
        drawing: Drawing,
        within: AnySupport | Sequence[AnySupport],
    ) -> Any:
        """What a draw by weight has to know of all shards' images, before any is drawn."""
        parts = self.borders.parts(one_each(within, len(x)))
        once = [self.pool.once(drawing, lambda: drawing)]
        firsts = self.borders.firsts
        answers = self.pool.ask("summary", lambda shard: (x, parts[shard], firsts[shard]), once)
        return reduce(lambda a, b: a.merge(b), (summary for _, summary in answers))

    def contributions(
        self, estimator: Any, x: NDArray[np.float32], sigma: float, support: AnySupport, top: int,
        pixel: int | None,
    ) -> Iterator[Any]:  # fmt: skip
        """The terms of one query's posterior (D,); the images are fetched.

        Raises:
            ArgumentError: more images than should travel.
        """
        yield from gathered_contributions(self, estimator, x, sigma, support, top, pixel)

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

    def values(self, rows: NDArray[np.int64], onto: Axes | None = None) -> NDArray[np.float32]:
        """Flattened images as float32 in [-1, 1], (k, d), fetched; or their coordinates, (k, r).

        Args:
            rows: which, in the order asked for.
            onto: the axes that coordinates are along; then no pixel travels.

        Raises:
            ClusterError: a shard that has some of them is missing.
        """
        firsts = np.array(self.borders.firsts)
        owner = np.searchsorted(firsts, rows, side="right") - 1
        mine = {int(shard): np.flatnonzero(owner == shard) for shard in np.unique(owner)}
        width = self.d if onto is None else onto.columns.shape[1]
        out = np.empty((len(rows), width), np.float32)
        answers = self.pool.ask(
            "values", lambda shard: (rows[mine[shard]] - firsts[shard], onto),
            shards=list(mine),
        )  # fmt: skip
        for shard, found in answers:
            out[mine.pop(shard)] = found
        for shard in mine:
            raise ClusterError(f"cluster: shard {self.paths[shard]} is missing")
        return out

    def factor(self, label: int | None = None, progress: Callable[[int], None] = silent) -> Factor:
        """Mean and covariance factor of all shards, or of one class; that of all is kept.

        Of the images that a single store's are of. The shards send the sums that it is made of
        (8 D^2 bytes each, once).

        Args:
            label: the class; None for all images.
            progress: called with the number of images, once they are summed.
        """
        return self.factors.of(label, progress)

    def _make_factor(
        self, label: int | None, images: int | None, seed: int, progress: Callable[[int], None]
    ) -> Factor:
        parts = self.borders.cut(self.everything(label))
        answers = self.pool.ask("moments", lambda shard: (parts[shard], images, seed))
        sums: Moments = reduce(Moments.merge, (part for _, part in answers))
        progress(sums.n)
        return sums.factor(*self.manifest.scaling)

    def _share(self) -> float:
        there = sum(self.borders.sizes[shard] for shard in self.pool.present)
        return there / self.n if self.n else 0.0

    def _labels(self) -> torch.Tensor | None:
        found = None
        if self.manifest.labelled:
            there = dict(self.pool.ask("labels", ()))
            sizes = enumerate(self.borders.sizes)
            parts = [there.get(shard, np.full(n, -1, np.int64)) for shard, n in sizes]
            found = torch.from_numpy(np.concatenate(parts))
        vars(self)["labels"] = found  # from now on
        return found

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


def _home(listing: Listing, identity: str) -> Path:
    """The list's own folder, else one in the cache that the shards' checksum names."""
    if listing.home is not None and is_local(listing.home):
        return Path(without_scheme(listing.home))
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    path = cache_folder() / f"cluster-{name}"
    path.mkdir(parents=True, exist_ok=True)
    return path
