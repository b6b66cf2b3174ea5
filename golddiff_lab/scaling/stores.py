"""Stores of several sizes, the smaller ones the first images of the largest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from golddiff.sources.source import Source
from golddiff.sources.source_options import SourceOptions
from golddiff.store.build import PIXELS, build
from golddiff.store.cache import cache_folder, cached_store
from golddiff.store.images import ImageStore
from golddiff.store.opening import is_store, open_store
from golddiff.system.errors import ArgumentError, StoreError
from golddiff_lab.scaling.enlarged import EnlargedSource
from golddiff_lab.scaling.job import ENLARGED, ScalingJob

Say = Callable[[str], None]


def stores_for(job: ScalingJob, say: Say = lambda line: None) -> list[ImageStore]:
    """The stores of a job, the smallest first.

    Of one source: a store of the largest size (the source itself, where it is one of that size or
    more, else built in the cache folder), and stores of its first images, in the cache folder too.
    All have the factor, and so the masks, of the largest: only the number of images differs.

    Raises:
        ArgumentError: fewer images than asked for; several stores of different shapes or the same
            size.
        GoldDiffError: as building a store.
    """
    if len(job.data) > 1:
        return _given(job)
    largest = _largest(job, max(job.sizes), say)
    return [
        largest if n == largest.n else prefix(largest, n, job.memory_limit, say)
        for n in sorted(job.sizes)
    ]


def _given(job: ScalingJob) -> list[ImageStore]:
    stores = [ImageStore.open(path, job.memory_limit) for path in job.data]
    stores.sort(key=lambda store: store.n)
    if len({store.shape for store in stores}) > 1 or len({s.n for s in stores}) < len(stores):
        raise ArgumentError(
            f"data: got stores of {', '.join(f'{s.n:,} x {s.shape}' for s in stores)}, expected "
            "one shape and different sizes"
        )
    return stores


def _largest(job: ScalingJob, n: int, say: Say) -> ImageStore:
    name = job.data[0].removeprefix(ENLARGED)
    path = Path(name).expanduser()
    if is_store(path):
        store = ImageStore.open(path, job.memory_limit)
    else:
        limit = None if name != job.data[0] else n
        path = cached_store(name, SourceOptions(limit=limit), say=say).path
        store = ImageStore.open(path, job.memory_limit)
    if name != job.data[0] and store.n < n:
        return enlarged(store, n, job.memory_limit, say)
    return store if store.n == n else prefix(store, n, job.memory_limit, say)


def enlarged(store: ImageStore, n: int, memory_limit: float, say: Say) -> ImageStore:
    """The images and changed copies of them, n in all, in the cache folder; seed 0."""
    originals = open_store(store.path, SourceOptions())
    source = EnlargedSource(originals, n, seed=0)
    return _kept(f"enlarged-{n}-of-{_digest(store)}", source, memory_limit, say)


def prefix(store: ImageStore, n: int, memory_limit: float, say: Say) -> ImageStore:
    """The first n images as a store of its own in the cache folder; made where it is not there.

    Raises:
        ArgumentError: the store has fewer.
    """
    if n > store.n:
        raise ArgumentError(f"sizes: got {n:,}, but {store.path} has only {store.n:,} images")
    about = f"first {n:,} of {store.manifest.source}"
    source = open_store(store.path, SourceOptions(limit=n), about)
    return _kept(f"first-{n}-of-{_digest(store)}", source, memory_limit, say)


def _digest(store: ImageStore) -> str:
    return store.manifest.files[PIXELS].sha256[:16]


def _kept(name: str, source: Source, memory_limit: float, say: Say) -> ImageStore:
    path = cache_folder() / "scaling" / name
    try:
        return ImageStore.open(path, memory_limit)
    except StoreError:
        say(f"building a store of {source.info.description} in {path}")
    build(source, path, overwrite=(path / "manifest.json").is_file(), progress=False)
    return ImageStore.open(path, memory_limit)


def share_factor(stores: list[ImageStore], job: ScalingJob) -> list[ImageStore]:
    """The stores, those that were made here with the factor of the largest; opened anew."""
    if len(job.data) > 1:
        return stores
    largest = stores[-1]
    for store in stores[:-1]:
        if store.path.parent == cache_folder() / "scaling" and not _same(store, largest):
            store.factors.put(largest.factor())
    return [ImageStore.open(store.path, job.memory_limit) for store in stores]


def same_factor(stores: list[ImageStore]) -> bool:
    """Whether all stores have one factor."""
    return all(_same(store, stores[-1]) for store in stores)


def _same(one: ImageStore, other: ImageStore) -> bool:
    return one.factor().digest == other.factor().digest
