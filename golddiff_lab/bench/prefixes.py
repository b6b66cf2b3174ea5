"""Stores of several sizes, where each smaller store is a prefix of the largest."""

from __future__ import annotations

from collections.abc import Callable

from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.store.opening import is_store
from golddiff.system.errors import ArgumentError
from golddiff_lab.arguments import given_store
from golddiff_lab.bench.scaling_job import ScalingJob


def stores_for(job: ScalingJob, say: Callable[[str], None]) -> list[ImageStore]:
    """The stores of a job, the smallest first; missing ones are built in the cache folder.

    All use the factor of the largest, and so the same masks; only the number of images differs.
    """
    *fewer, most = job.counts
    largest = given_store(job.data, SourceOptions(limit=most), say)
    say(f"the first {', '.join(f'{n:,}' for n in fewer)} images of {largest.path}, unless kept")
    stores = [first_images(largest, n) for n in job.counts]
    if job.masked:
        say(f"mean and covariance of {largest.path}, unless kept")
        factor = stores[-1].factor()
        for store in stores:
            if not store.factors.is_saved() or store.factor().digest != factor.digest:
                store.factors.put(factor)
    return [ImageStore.open(store.path, job.memory_limit) for store in stores]


def first_images(store: ImageStore, n: int) -> ImageStore:
    """A store of the first n images, kept in the cache; the store itself if n is all of them."""
    if n > store.n:
        raise ArgumentError(f"sizes: got {n:,}, but {store.path} has only {store.n:,} images")
    if n == store.n:
        return store
    digest = store.manifest.files["pixels.bin"].sha256[:16]
    path = cache_folder() / "scaling" / f"first-{n}-of-{digest}"
    if not is_store(path):
        ImageStore.build(store.path, path, limit=n)
    return ImageStore.open(path)
