"""A training set in shards, spread over the machines of a Ray cluster.

Each shard is an ordinary store in a Ray actor. For the nearest images, a draw or a posterior, the
driver sends every shard its part of the supports at once, and merges the answers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from golddiff.cluster.joining import connect, ray_package
from golddiff.cluster.listing import Listing, ShardInfo, is_local, without_scheme
from golddiff.cluster.pool import Pool
from golddiff.cluster.slices import Borders
from golddiff.kernels.stored import Stored
from golddiff.posterior import Posterior
from golddiff.store.build import PIXELS
from golddiff.store.cache import cache_folder
from golddiff.store.manifest import FileRecord
from golddiff.store.posteriors import for_one_level, with_images
from golddiff.store.statistics import Axes, Factor, Moments
from golddiff.store.training_set import Question, TrainingSet
from golddiff.support import AnySupport, Supports, TiledSupport, per_query
from golddiff.system.arguments import LEAST, check_not_negative, check_number
from golddiff.system.errors import ArgumentError, ClusterError
from golddiff.system.numbers import F32, I64, check_count
from golddiff.system.residency import DEFAULT_LIMIT, Residency
from golddiff.system.units import byte_size

MAX_FETCHED_BYTES = 2e9  # of images fetched for attribution
UNAVAILABLE = ("flat", "proxies", "residency")


class ShardedStore(TrainingSet):
    """A training set in shards, each served by a Ray actor.

    Every denoiser and schedule of golddiff takes it in place of an :class:`golddiff.ImageStore`.
    Rows number the images of all shards, one shard after another. ``images`` and ``values`` fetch
    pixels from the shards; ``flat`` is unavailable. Other attributes are those of an ImageStore.

    Attributes:
        paths: paths of the shards, in order.
        borders: the range of rows of each shard.
        pool: the shards' processes; lists missing shards and counts traffic.
        path: folder for results computed from all shards.
    """

    def __init__(
        self, listing: Listing, pool: Pool, infos: Sequence[ShardInfo | None], identity: str
    ) -> None:
        """Use :meth:`open`."""
        known = [info for info in infos if info is not None]
        first = known[0].manifest
        sizes = [
            record.n if info is None else info.manifest.n
            for info, record in zip(infos, listing.shards, strict=True)
        ]
        manifest = replace(
            first, n=sum(sizes), source=f"{len(sizes)} shards of {first.source}", skipped=0,
            files={PIXELS: FileRecord(sum(info.manifest.bytes for info in known), identity)},
        )  # fmt: skip
        super().__init__(_artifact_folder(listing, identity), manifest)
        self.paths, self.pool = listing.paths, pool
        self.borders = Borders(sizes, [{} if info is None else info.counts for info in infos])
        classes = sorted(set().union(*self.borders.counts))
        self.class_counts = {label: sum(self.borders.class_sizes(label)) for label in classes}
        self.radius = max(info.radius for info in known)

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
        """Open a store in shards; calls ``connect`` first if Ray is not initialized.

        Args:
            path: path of a ``shards.json`` or of its folder (as ``golddiff index --cluster``
                makes), or a list of the shards' paths in the order of their rows. Paths are folders
                or addresses that fsspec reads (s3://, gs://, zip://...::...); a shard's path must
                be valid on any machine that may run its actor.
            memory_limit: bytes of a shard's files that may be resident in its process at a time,
                as in :meth:`golddiff.ImageStore.open`.
            allow_missing: continue without a shard that is lost; ``share`` and every
                :class:`golddiff.sampling.Samples` then give the share of images that was used.
            patience: seconds without a heartbeat after which a shard is lost.
            num_cpus: cores that Ray reserves for each shard; default none.
            num_gpus: GPUs that Ray reserves for each shard.
            threads: threads of each shard; default ``num_cpus``, else an equal share of the
                cluster's cores.

        Raises:
            ArgumentError: no shard is given, or one twice; a resource or limit is invalid.
            StoreError: the list is damaged, or the shards do not form one store.
            ClusterError: no cluster is reachable; a shard cannot be opened or has another version.
        """
        patience = check_number("patience", patience, "seconds above 0", LEAST, math.inf)
        check_not_negative("num_cpus", num_cpus or 0)
        check_not_negative("num_gpus", num_gpus)
        if threads is not None:
            check_count("threads", threads)
        Residency(memory_limit)  # validates the limit
        listing = Listing.of(path)
        if not ray_package().is_initialized():
            connect()
        pool = Pool(
            listing.paths, allow_missing, patience, num_cpus, num_gpus, threads, memory_limit
        )
        try:
            answers = dict(pool.ask("info"))
            infos = [answers.get(shard) for shard in range(len(listing.paths))]
            identity = listing.checked_identity(infos)
            pool.identities = {i: info.manifest.identity for i, info in answers.items()}
        except BaseException:
            pool.close()
            raise
        return cls(listing, pool, infos, identity)

    def close(self) -> None:
        """End the shards' processes; the store cannot be used afterwards."""
        self.pool.close()

    def __enter__(self) -> ShardedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self) -> None:
        """Recompute every checksum, in all shards in parallel.

        Raises:
            ClusterError: the files of a shard changed; names the first such shard.
        """
        list(self.pool.ask("verify"))

    def posterior(self, estimator: Any, x: F32, sigma: float, supports: Supports) -> Posterior:
        """The posterior of queries (b, D), each over its support in all shards.

        Raises:
            ArgumentError: a shard's memory limit is too small.
            ClusterError: a shard is lost, or no shard with images of the supports is left.
        """
        parts = self.borders.parts(per_query(supports, len(x)))
        reference = self.pool.once((estimator, sigma), lambda: for_one_level(estimator, sigma))
        total: Posterior | None = None
        for _, (queries, part) in self.pool.ask(
            "posterior", lambda shard: (x, sigma, parts[shard]), [reference]
        ):
            if part is not None:
                locations, width = part.log_max.shape[1], part.weighted.shape[1]
                total = total or Posterior.empty(len(x), locations, width)
                total.add_to(queries, part)
        tiled = any(isinstance(s, TiledSupport) for s in per_query(supports, len(x)))
        if total is None or not (tiled or (total.total > 0).all()):
            raise ClusterError("cluster: no image to be weighed is left in the shards")
        return total

    def answer(self, question: Question, x: F32, within: Supports, *more: Any) -> Any:
        """See :class:`TrainingSet`; each shard answers over its own part of the supports."""
        parts, first_rows = self.borders.parts(per_query(within, len(x))), self.borders.first_rows
        reference = self.pool.once(question, lambda: question)
        answers = self.pool.ask(
            "answer", lambda shard: (x, parts[shard], first_rows[shard], *more), [reference]
        )
        return question.merge([answer for _, answer in answers], *more)

    def contributions(
        self, estimator: Any, x: F32, sigma: float, support: AnySupport, top: int,
        pixel: int | None,
    ) -> Iterator[Any]:  # fmt: skip
        """The terms of one query's posterior (D,), computed locally on fetched images.

        Raises:
            ArgumentError: the images exceed ``MAX_FETCHED_BYTES``.
        """
        rows = np.sort(support.rows)
        size = 4 * self.d * len(rows)
        if size > MAX_FETCHED_BYTES:
            raise ArgumentError(
                f"denoiser: attribution would fetch {len(rows):,} images ({byte_size(size)}), "
                f"expected at most {byte_size(int(MAX_FETCHED_BYTES))}; use a golden subset"
            )
        stored = _FetchedRows(self.values(rows), rows=rows)
        images = SimpleNamespace(shape=self.shape, d=self.d, stored=stored, values=stored.values)
        fetched = with_images(estimator, images)
        yield from fetched.contributions(x, sigma, support, top, pixel)

    def values(self, rows: I64, onto: Axes | None = None) -> F32:
        """See :class:`TrainingSet`; with ``onto``, shards send coordinates instead of pixels.

        Raises:
            ClusterError: a shard that holds some of the rows is missing.
        """
        width = self.d if onto is None else onto.columns.shape[1]
        out = np.empty((len(rows), width), np.float32)
        for positions, values in self._from_owners("values", rows, onto):
            out[positions] = values
        return out

    def _spread(self, count: int) -> I64:
        present = self.pool.present
        sizes, starts = (
            np.array(a)[present] for a in (self.borders.sizes, self.borders.first_rows)
        )
        ends = np.cumsum(sizes)
        places = np.unique(np.linspace(0, ends[-1] - 1, count).astype(np.int64))
        owner = np.searchsorted(ends, places, side="right")
        return places - (ends - sizes - starts)[owner]

    def names_of(self, rows: Sequence[int] | I64) -> list[str] | None:
        """File names of images, fetched; None if any image has none."""
        names = np.empty(len(rows), object)
        for positions, files in self._from_owners("names_of", np.asarray(rows)):
            names[positions] = files  # None if the shard has no file names
        return None if None in names else names.tolist()

    def _from_owners(self, method: str, rows: I64, *more: Any) -> Iterator[tuple[I64, Any]]:
        """Ask each shard that holds some of the rows; yields (indices into ``rows``, answer)."""
        starts = np.array(self.borders.first_rows)
        owner = np.searchsorted(starts, rows, side="right") - 1
        owned = {int(shard): np.flatnonzero(owner == shard) for shard in np.unique(owner)}
        answers = self.pool.ask(
            method, lambda shard: (rows[owned[shard]] - starts[shard], *more), shards=list(owned)
        )
        for shard, answer in answers:
            yield owned.pop(shard), answer
        for shard in owned:
            raise ClusterError(f"cluster: shard {self.paths[shard]} is missing")

    def _make_factor(
        self, label: int | None, images: int | None, seed: int, progress: Callable[[int], None]
    ) -> Factor:
        """See :class:`TrainingSet`; each shard sends its sums once, 8 D^2 bytes."""
        parts = self.borders.cut(self.everything(label))
        answers = self.pool.ask("moments", lambda shard: (parts[shard], images, seed))
        sums: Moments = reduce(Moments.merge, (part for _, part in answers))
        progress(sums.n)
        return sums.factor(*self.manifest.scaling)

    @property
    def share(self) -> float:
        """Share of the images that results are computed from: 1 unless a shard is missing."""
        return sum(self.borders.sizes[shard] for shard in self.pool.present) / self.n

    @cached_property
    def labels(self) -> torch.Tensor | None:  # type: ignore[override]
        """(n,) classes, fetched once (8 bytes each); -1 in missing shards; None if unlabelled."""
        if not self.manifest.labelled:
            return None
        known = dict(self.pool.ask("labels"))
        sizes = enumerate(self.borders.sizes)
        parts = [known.get(shard, np.full(n, -1, np.int64)) for shard, n in sizes]
        return torch.from_numpy(np.concatenate(parts))

    def __getattr__(self, name: str) -> Any:
        if name in UNAVAILABLE:
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


def _artifact_folder(listing: Listing, identity: str) -> Path:
    """The list's own folder if local, else a cache folder named by the shards' checksum."""
    if listing.home is not None and is_local(listing.home):
        return Path(without_scheme(listing.home))
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    path = cache_folder() / f"cluster-{name}"
    path.mkdir(parents=True, exist_ok=True)
    return path


@dataclass(frozen=True)
class _FetchedRows(Stored):
    """Values of some images, fetched from their shards and found by their rows in the whole set."""

    rows: I64 = field(kw_only=True)  # (k,) ascending

    @contextmanager
    def resident(self, rows: I64) -> Iterator[tuple[Stored, I64]]:
        """See the base class."""
        yield self, np.searchsorted(self.rows, rows)
