"""A store in shards: the training set of as many machines as it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.cluster.agreement import agreed
from golddiff.cluster.beside import belongs, home, recall, remember
from golddiff.cluster.classes import Classes
from golddiff.cluster.factors import Factors
from golddiff.cluster.fetching import fetched, fetched_labels
from golddiff.cluster.joining import connect, ray_package
from golddiff.cluster.listing import Listing
from golddiff.cluster.over_shards import OverShards
from golddiff.cluster.pool import Pool, Resources, Traffic
from golddiff.cluster.recipes import About, Candidates
from golddiff.errors import ArgumentError, ClusterError
from golddiff.store.build import FACTOR, PIXELS
from golddiff.store.images import ImageStore, Indices, check_factor_images
from golddiff.store.manifest import FileRecord, Manifest
from golddiff.store.residency import DEFAULT_LIMIT, Residency
from golddiff.store.statistics import Factor
from golddiff.support import Support

ELSEWHERE = ("flat", "norms", "proxies")


class ShardedStore(ImageStore):
    """A training set whose images lie in shards, each kept by a Ray actor.

    It takes an :class:`golddiff.ImageStore`'s place in every denoiser and schedule of golddiff; the
    rows are those of the shards one after another. What asks for the pixels themselves
    (``images``, ``values``) fetches them; ``flat`` is not there.

    Attributes:
        paths: of the shards, in order.
        firsts: (S,) row of each shard's first image.
    """

    def __init__(
        self, listing: Listing, pool: Pool, abouts: Sequence[About | None], identity: str
    ) -> None:
        """Use :meth:`open`."""
        there = [about for about in abouts if about is not None]
        first = there[0]
        known = [s if not isinstance(s, str) else None for s in listing.shards]
        sizes = [
            about.n if about is not None else record.n if record is not None else 0
            for about, record in zip(abouts, known, strict=True)
        ]
        self._residency = Residency(pool.memory_limit)  # the shards', no file is mapped here
        self.paths = listing.paths
        self.n, self.shape, self.d = sum(sizes), first.shape, int(np.prod(first.shape))
        self.class_names = first.class_names
        self.scale, self.offset = (1 / 127.5, -1.0) if first.dtype == "uint8" else (1.0, 0.0)
        self.firsts: NDArray[np.int64] = np.cumsum([0, *sizes[:-1]])
        self.manifest = Manifest(
            self.n, first.shape, first.dtype, first.labelled, first.class_names,
            first.proxy_shape, f"{len(sizes)} shards of {first.source}",
            files={PIXELS: FileRecord(sum(about.bytes for about in there), identity)},
        )  # fmt: skip
        self.path = home(listing, identity)
        counts = [{} if about is None else about.counts for about in abouts]
        self._classes = Classes(sizes, counts, first.labelled)
        self._pool = pool
        self._shared = Factors(self, pool)
        self._factors = self._shared.made
        self._fetched_labels: torch.Tensor | None = None
        pool.provide = self._provide
        self.shards = OverShards(self, pool)

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
            abouts: list[About | None] = pool.gather("about", ())
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
    def share(self) -> float:  # type: ignore[override]
        """What share of the images results see: 1 unless a shard is missing."""
        there = sum(self._classes.sizes[shard] for shard in self._pool.present)
        return there / self.n if self.n else 0.0

    # Rows and classes.

    @property
    def labels(self) -> torch.Tensor | None:  # type: ignore[override]
        """(n,) class indices, fetched at the first question (8 bytes an image); or None."""
        if not self._classes.labelled:
            return None
        if self._fetched_labels is None:
            self._fetched_labels = fetched_labels(self._pool, self._classes.sizes)
        return self._fetched_labels

    def class_counts(self) -> dict[int, int]:
        """Images of each class that has any, ascending; empty without labels."""
        return {label: self.count_of(label) for label in self.classes}

    @property
    def classes(self) -> list[int]:
        """The class indices that have images, ascending; empty without labels."""
        return self._classes.present

    def count_of(self, label: int | None) -> int:
        """How many images a class has in all shards, or the whole store for None.

        Raises:
            ArgumentError: the store has no labels, or no image of that class.
        """
        return sum(self._classes.of(label))

    def largest_part(self, label: int | None) -> int:
        """How many images of a class, or of all, the shard with most of them has."""
        return max(1, *self._classes.of(label))

    def rows_of(self, label: int | None) -> NDArray[np.int64]:
        """Ascending rows of a class, or of the whole store for None: 8 bytes an image here.

        Raises:
            ArgumentError: as :meth:`count_of`.
        """
        self.count_of(label)
        return self.everything(label).rows

    def everything(self, label: int | None, without: int | None = None) -> Support:
        """The support of all images of a class, or of the whole store for None, but for one row.

        Raises:
            ArgumentError: as :meth:`count_of`.
        """
        assert self.shards is not None
        left_out = () if without is None else (without,)
        return self.shards.everything(Candidates(label, None, left_out))

    def sampled_rows(self, most: int) -> NDArray[np.int64]:
        """All rows, or ``most`` of them, ascending, drawn once and for all."""
        if self.n <= most:
            return np.arange(self.n)
        rows = np.random.default_rng(0).choice(self.n, most, replace=False, shuffle=False)
        drawn: NDArray[np.int64] = np.sort(rows)
        return drawn

    def row_at(self, label: int | None, place: int) -> int:
        """The row of the ``place``-th image of a class, or of all."""
        if label is None:
            return place
        shard, here = self._classes.shard_of(label, place)
        rows, _ = self._pool.call(shard, "rows", Candidates(label), 0)
        return int(rows[here])

    # Images and what is made of all of them.

    def images(self, indices: Indices | None = None) -> torch.Tensor:
        """Images as float32 in [-1, 1], (k, *shape), fetched from their shards.

        Args:
            indices: rows to read, in the order wanted; None for all.

        Raises:
            ArgumentError: an index outside 0..n-1.
        """
        return super().images(indices)

    @property
    def _all_rows(self) -> NDArray[np.int64]:  # type: ignore[override]
        """8 bytes an image, made where all are asked for alone."""
        return np.arange(self.n)

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Flattened images as float32 in [-1, 1], (k, d), fetched from their shards."""
        return fetched(self._pool, self.firsts, rows, self.d, "values")

    def projected(
        self, rows: NDArray[np.int64], mean: NDArray[np.float32], axes: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Coordinates (k, r) of images less a mean (D,), along columns (D, r); no pixel travels."""
        return fetched(self._pool, self.firsts, rows, axes.shape[1], "projected", mean, axes)

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
        return self._shared.of(label, progress)

    def estimate_factor(
        self,
        images: int | None,
        seed: int = 0,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Factor:
        """As :meth:`golddiff.ImageStore.estimate_factor`, over all shards.

        Denoisers that were made before take it too, where the shards weigh images for them.

        Args:
            images: how many, drawn at random without replacement; None for the default of
                :meth:`factor`; as many as there are, or more, for all.
            seed: of the draw.
            progress: called with the number of images, once they are summed.

        Raises:
            ArgumentError: ``images`` is no integer of 2 or more.
        """
        check_factor_images(images)
        return self._shared.estimate(images, seed, progress)

    def factor_mark(self) -> str | None:
        """A checksum of the factor of all images, which kept masks name."""
        return self._shared.mark()

    def has_factor(self) -> bool:
        """Whether the factor of all images is kept."""
        return None in self._factors or belongs(self.path / FACTOR, self._identity)

    @property
    def factor_images(self) -> int | None:
        """Of how many images :meth:`factor` is; made for this only where shards are missing."""
        return self.factor().images if self.missing else super().factor_images

    @property
    def radius(self) -> float:
        """R = max_i ||x_i||, the data radius of the paper's Theorem 1."""
        return float(max(r for r in self._pool.gather("largest_norm", ()) if r is not None))

    def kept(self, name: str) -> dict[str, NDArray[Any]] | None:
        """What was computed from the store before and kept under a name, or None."""
        return recall(self.path / name, self._identity)

    def keep(self, name: str, tensors: dict[str, NDArray[Any]]) -> None:
        """Keep what was computed from the store, where its folder may be written to."""
        remember(self.path / name, self._identity, tensors)

    @property
    def _identity(self) -> str:
        return self.manifest.files[PIXELS].sha256

    def verify(self) -> None:
        """Recompute every checksum, in all shards at once.

        Raises:
            ClusterError: names the first shard whose files changed.
        """
        self._pool.gather("verify", ())

    def _provide(self, shard: int, what: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        kind = what[0]
        assert self.shards is not None
        if kind == "queries":
            return "hold", (what[1], self.shards.held(what[1]))
        if kind == "factor":
            return "give_factor", (what[1], self.factor(what[1]))
        return "settle", (self._classes.place_of(shard),)

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
