"""A store in shards: the training set of as many machines as it takes.

A training set answers questions, and so do its parts: which images are nearest, which are drawn,
and what do these weigh. The driver asks all shards at once, each with its part of the
supports, and merges what they say; a shard is an ordinary store in a Ray actor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golddiff.cluster.joining import connect, ray_package
from golddiff.cluster.listing import About, Listing, is_local, without_scheme
from golddiff.cluster.pool import Pool
from golddiff.cluster.slices import Borders
from golddiff.kernels.stored import Stored
from golddiff.posterior import Posterior
from golddiff.store.build import PIXELS
from golddiff.store.cache import cache_folder
from golddiff.store.manifest import FileRecord
from golddiff.store.posteriors import at_level, over
from golddiff.store.statistics import Axes, Factor, Moments
from golddiff.store.training_set import Question, Supports, TrainingSet
from golddiff.support import AnySupport, Support, TiledSupport, one_each
from golddiff.system.arguments import as_number, check_not_negative
from golddiff.system.errors import ArgumentError, ClusterError
from golddiff.system.numbers import F32, I64, check_count
from golddiff.system.residency import DEFAULT_LIMIT, Residency
from golddiff.system.units import byte_size

MOST_BYTES = 2e9  # of images that are brought here for attribution
ELSEWHERE = ("flat", "norms", "proxies", "residency")


class ShardedStore(TrainingSet):
    """A training set whose images lie in shards, each kept by a Ray actor.

    It takes an :class:`golddiff.ImageStore`'s place in every denoiser and schedule of golddiff; the
    rows are those of the shards one after another. What asks for the pixels themselves
    (``images``, ``values``) fetches them; ``flat`` is not there.

    Attributes:
        paths: of the shards, in order.
        borders: where they lie in the store.
        pool: their processes: which are missing, what has travelled.
        n, shape, d, class_names, class_counts, classes, is_pixels, radius, labels, manifest,
            artifacts, factors: as of an ImageStore.
        path: the folder of what is computed from all shards.
    """

    def __init__(
        self, listing: Listing, pool: Pool, abouts: Sequence[About | None], identity: str
    ) -> None:
        """Use :meth:`open`."""
        there = [about for about in abouts if about is not None]
        first = there[0].manifest
        sizes = [
            record.n if about is None else about.manifest.n
            for about, record in zip(abouts, listing.shards, strict=True)
        ]
        manifest = replace(
            first, n=sum(sizes), source=f"{len(sizes)} shards of {first.source}", skipped=0,
            files={PIXELS: FileRecord(sum(about.manifest.bytes for about in there), identity)},
        )  # fmt: skip
        super().__init__(_home(listing, identity), manifest)
        self.paths, self.pool = listing.paths, pool
        self.borders = Borders(sizes, [{} if about is None else about.counts for about in abouts])
        self.class_counts = self.borders.class_counts()
        self.radius = max(about.radius for about in there)

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
        if not as_number(patience) > 0:
            raise ArgumentError(f"patience: got {patience!r}, expected seconds above 0")
        check_not_negative("num_cpus", num_cpus or 0)
        check_not_negative("num_gpus", num_gpus)
        if threads is not None:
            check_count("threads", threads)
        Residency(memory_limit)  # raises where that is no limit
        listing = Listing.of(path)
        if not ray_package().is_initialized():
            connect()
        pool = Pool(
            listing.paths, allow_missing, patience, num_cpus, num_gpus, threads, memory_limit
        )
        try:
            answers = dict(pool.ask("about"))
            abouts = [answers.get(shard) for shard in range(len(listing.paths))]
            identity = listing.agreed(abouts)
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

    def verify(self) -> None:
        """Recompute every checksum, in all shards at once.

        Raises:
            ClusterError: names the first shard whose files changed.
        """
        list(self.pool.ask("verify"))

    # Questions.

    def posterior(self, estimator: Any, x: F32, sigma: float, supports: Supports) -> Posterior:
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

    def answer(self, question: Question, x: F32, within: Supports, *more: Any) -> Any:
        """See :class:`TrainingSet`; each shard answers for its own part of the supports."""
        parts, firsts = self.borders.parts(one_each(within, len(x))), self.borders.firsts
        once = self.pool.once(question, lambda: question)
        answers = self.pool.ask(
            "answer", lambda shard: (x, parts[shard], firsts[shard], *more), [once]
        )
        return question.merged([answer for _, answer in answers], *more)

    def contributions(
        self, estimator: Any, x: F32, sigma: float, support: AnySupport, top: int,
        pixel: int | None,
    ) -> Iterator[Any]:  # fmt: skip
        """The terms of one query's posterior (D,); the images are fetched.

        Raises:
            ArgumentError: more images than should travel.
        """
        rows = support.rows
        size = 4 * self.d * len(rows)
        if size > MOST_BYTES:
            raise ArgumentError(
                f"denoiser: its sources are {len(rows):,} images, {byte_size(size)} that would "
                f"travel; expected at most {byte_size(int(MOST_BYTES))}, say by a golden subset"
            )
        estimator.ready(sigma)
        here = over(estimator, _Gathered(self.shape, self.values(rows)))
        for part in here.contributions(x, sigma, _moved(support, rows), top, pixel):
            best = part.best
            if best is not None:
                best = replace(best, rows=rows[best.rows])
            yield replace(part, rows=rows[part.rows], best=best)

    # Images and what is made of all of them.

    def values(self, rows: I64, onto: Axes | None = None) -> F32:
        """See :class:`TrainingSet`; fetched, and of coordinates no pixel travels.

        Raises:
            ClusterError: a shard that has some of them is missing.
        """
        width = self.d if onto is None else onto.columns.shape[1]
        out = np.empty((len(rows), width), np.float32)
        for places, found in self._of_owners("values", rows, onto):
            out[places] = found
        return out

    def names_of(self, rows: Sequence[int] | I64) -> list[str] | None:
        """The files of some images, fetched; None where one of them was none."""
        names = np.empty(len(rows), object)
        for places, found in self._of_owners("names_of", np.asarray(rows)):
            names[places] = found  # None for all of a shard that has none
        return None if None in names else names.tolist()

    def _of_owners(self, method: str, rows: I64, *more: Any) -> Iterator[tuple[I64, Any]]:
        """What the shards that have some images say of them, and which of ``rows`` these are."""
        firsts = np.array(self.borders.firsts)
        owner = np.searchsorted(firsts, rows, side="right") - 1
        mine = {int(shard): np.flatnonzero(owner == shard) for shard in np.unique(owner)}
        answers = self.pool.ask(
            method, lambda shard: (rows[mine[shard]] - firsts[shard], *more), shards=list(mine)
        )
        for shard, found in answers:
            yield mine.pop(shard), found
        for shard in mine:
            raise ClusterError(f"cluster: shard {self.paths[shard]} is missing")

    def _make_factor(
        self, label: int | None, images: int | None, seed: int, progress: Callable[[int], None]
    ) -> Factor:
        """From the sums that the shards send, 8 D^2 bytes each, once."""
        parts = self.borders.cut(self.everything(label))
        answers = self.pool.ask("moments", lambda shard: (parts[shard], images, seed))
        sums: Moments = reduce(Moments.merge, (part for _, part in answers))
        progress(sums.n)
        return sums.factor(*self.manifest.scaling)

    @property
    def share(self) -> float:
        """Of the images that results see: 1 unless a shard is missing."""
        there = sum(self.borders.sizes[shard] for shard in self.pool.present)
        return there / self.n if self.n else 0.0

    @cached_property
    def labels(self) -> torch.Tensor | None:  # type: ignore[override]
        """(n,) classes, fetched once, 8 bytes an image; -1 where a shard is missing; or None."""
        if not self.manifest.labelled:
            return None
        there = dict(self.pool.ask("labels"))
        sizes = enumerate(self.borders.sizes)
        parts = [there.get(shard, np.full(n, -1, np.int64)) for shard, n in sizes]
        return torch.from_numpy(np.concatenate(parts))

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


class _Gathered:
    """Some images (k, D) of a training set, brought here."""

    def __init__(self, shape: tuple[int, ...], values: F32) -> None:
        self.shape, self.flat, self.stored = shape, values, Stored(values)
        self.n, self.d = values.shape

    def values(self, rows: I64) -> F32:
        """Flattened images (k, d)."""
        return self.stored.values(rows)


def _moved(support: AnySupport, rows: I64) -> Support | TiledSupport:
    """The support in rows of the images that were brought, ``rows`` of the store."""
    if isinstance(support, TiledSupport):
        return TiledSupport(support.side, [_moved(tile, rows) for tile in support.tiles])  # type: ignore[misc]
    return Support(np.searchsorted(rows, support.rows), support.log_weights)
