"""The process of one shard: an ordinary store of its images, and the calls it answers.

Each call carries its whole input, so a restarted process, without caches, gives the same answers:
it refuses files other than those that were opened.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from golddiff.cluster.joining import check_version, ray_package
from golddiff.cluster.listing import ShardInfo, local_folder
from golddiff.cluster.slices import expand, expand_all
from golddiff.posterior import Posterior
from golddiff.store.device import device_store
from golddiff.store.images import ImageStore
from golddiff.store.statistics import Moments, factor_rows, moments
from golddiff.store.training_set import Question
from golddiff.support import AnySupport, RuleSupport
from golddiff.system.errors import ClusterError, StoreError
from golddiff.system.numbers import F32, I64
from golddiff.system.parallel import use_threads

CACHE_SIZE = 64  # objects fetched once and kept: estimators at a noise level, metrics


class Shard:
    """A Ray actor that answers over the images of one shard; opens its store at the first call.

    It must run the driver's ``version`` of golddiff, because messages are pickled objects.
    """

    def __init__(self, path: str, memory_limit: float, threads: int, version: str) -> None:
        self._path, self._memory_limit = path, memory_limit
        self._threads, self._driver = threads, version
        self._fetch = lru_cache(CACHE_SIZE)(lambda ref: pickle.loads(ray_package().get(ref)))

    @cached_property
    def store(self) -> ImageStore:
        """The shard's images."""
        return ImageStore.open(local_folder(self._path), self._memory_limit)

    @cached_property
    def _on_device(self) -> Any:
        """The store that computes posteriors: on this machine's GPU if it has one."""
        return device_store(self.store, "cuda" if torch.cuda.is_available() else "cpu")

    def ask(
        self, method: str, packed: bytes, once: Sequence[Any], identity: str | None
    ) -> tuple[int, bytes]:
        """Call a method and return this process's id and the packed result.

        The references ``once`` are fetched once and cached; they precede the packed arguments. The
        store must have the ``identity``, which is None before it is known.
        """
        check_version(self._driver)
        if identity not in (None, self.store.manifest.identity):
            raise ClusterError("its files are not those that were opened")
        # The number of threads is a setting of the calling thread.
        if self._threads != torch.get_num_threads():
            use_threads(self._threads)
        arguments = *map(self._fetch, once), *pickle.loads(packed)
        return os.getpid(), pack(getattr(self, method)(*arguments))

    def alive(self) -> None:
        """Heartbeat: returns immediately, also while ``ask`` runs in another thread."""

    def info(self) -> ShardInfo:
        """Manifest and statistics of the shard."""
        return ShardInfo(self.store.manifest, self.store.class_counts, self.store.radius)

    def posterior(
        self, estimator: Any, x: F32, sigma: float, supports: Sequence[AnySupport]
    ) -> tuple[list[int], Posterior | None]:
        """Indices and partial posterior of the queries (b, D) with images in this shard."""
        parts = expand_all(self.store, supports)
        used = [i for i, support in enumerate(parts) if len(support.rows)]
        if not used:
            return [], None
        estimator.images = self.store
        return used, self._on_device.posterior(estimator, x[used], sigma, [parts[i] for i in used])

    def answer(
        self, question: Question, x: F32, within: Sequence[AnySupport], first: int, *more: Any
    ) -> Any:
        """This shard's answer; its images start at row ``first`` of the whole store."""
        self.store.first_row = first
        return question.answer_shard(self.store, x, expand_all(self.store, within), *more)

    def moments(self, support: RuleSupport, images: int | None, seed: int) -> Moments:
        """Sums for the mean and covariance over this shard's images of a class, or all.

        :func:`golddiff.store.statistics.factor_rows` draws ``images`` rows of all shards together.
        """
        rows = expand(self.store, support).rows
        drawn = factor_rows(np.arange(support.class_size), self.store.d, images, seed)
        own = slice(*np.searchsorted(drawn, [support.offset, support.offset + len(rows)]))
        return moments(self.store.flat, rows[drawn[own] - support.offset])

    def labels(self) -> I64:
        """The class of each image."""
        assert self.store.labels is not None
        return self.store.labels.numpy()

    def verify(self) -> None:
        """Recompute every checksum; changed files raise ClusterError, which loses no shard."""
        try:
            self.store.verify()
        except StoreError as error:
            raise ClusterError(f"its files have changed: {error}") from error

    def __getattr__(self, name: str) -> Any:
        """Forward other calls to the store: ``values``, ``names_of``."""
        if name.startswith("_"):  # also of a copy without attributes, which has no store
            raise AttributeError(name)
        return getattr(self.store, name)


class _Packer(pickle.Pickler):
    """Pickles int64 arrays, such as rows, as int32 where they fit, to halve the traffic."""

    def reducer_override(self, value: Any) -> Any:
        """Narrow int64 arrays whose values fit in int32."""
        if isinstance(value, np.ndarray) and value.dtype == np.int64:
            narrow = value.astype(np.int32)
            if np.array_equal(narrow, value):
                return np.ndarray.astype, (narrow, np.int64)
        return NotImplemented


def pack(value: Any) -> bytes:
    """Pickle plain data; an object that occurs twice is still one object when loaded."""
    out = io.BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()
