"""One shard's process: an ordinary store of its images, and what is asked of it and travels.

It keeps nothing that a question does not bring along, but for what makes it quick: a process that
was started again answers as the one before.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from golddiff import __version__
from golddiff.cluster.joining import ray_package
from golddiff.cluster.listing import About, local_folder
from golddiff.cluster.slices import listed_here, of_part
from golddiff.posterior import Posterior
from golddiff.store.device import device_store
from golddiff.store.images import ImageStore
from golddiff.store.statistics import Moments, factor_rows, moments
from golddiff.store.training_set import Question
from golddiff.support import AnySupport, DescribedSupport
from golddiff.system.errors import ClusterError, StoreError
from golddiff.system.numbers import F32, I64
from golddiff.system.parallel import use_threads
from golddiff.system.residency import DEFAULT_LIMIT

KEPT = 64  # of what travels once: estimators at a noise level, metrics


class Shard:
    """Answers for the images of one shard, in a Ray actor; opened at the first question.

    What travels means the same in one ``version`` of golddiff alone, the driver's.
    """

    def __init__(
        self,
        path: str,
        memory_limit: float = DEFAULT_LIMIT,
        threads: int | None = None,
        version: str = __version__,
    ) -> None:
        self._path, self._memory_limit = path, memory_limit
        self._threads, self._driver = threads, version
        self._kept = lru_cache(KEPT)(lambda given: pickle.loads(ray_package().get(given)))

    @cached_property
    def store(self) -> ImageStore:
        """The shard's images."""
        return ImageStore.open(local_folder(self._path), self._memory_limit)

    @cached_property
    def _there(self) -> Any:
        """Where they are weighed: on this machine's GPU if it has one."""
        has_gpu = torch.cuda.is_available()
        return device_store(self.store, torch.device("cuda")) if has_gpu else self.store

    def ask(self, method: str, packed: bytes, once: Sequence[Any]) -> tuple[int, bytes]:
        """Call a method: this process's id, and what came out, packed.

        The first arguments are references (``once``), fetched once and kept; the others are packed.
        """
        if self._driver != __version__:
            raise ClusterError(
                f"runs golddiff {__version__} on {socket.gethostname()}, here is {self._driver}; "
                "install one version everywhere"
            )
        # The number of threads belongs to the thread that sets it.
        if self._threads not in (None, torch.get_num_threads()):
            use_threads(self._threads)
        return os.getpid(), pack(getattr(self, method)(*map(self._kept, once), *unpack(packed)))

    def alive(self) -> None:
        """Answers at once, also while ``ask`` works."""

    def about(self) -> About:
        """What the shard holds."""
        return About(self.store.manifest, self.store.class_counts, self.store.radius)

    def posterior(
        self, estimator: Any, x: F32, sigma: float, supports: Sequence[AnySupport]
    ) -> tuple[list[int], Posterior | None]:
        """The partial posterior of those queries (b, D) that have images here, and which."""
        each = listed_here(self.store, supports)
        some = [i for i, support in enumerate(each) if len(support.rows)]
        if not some:
            return [], None
        estimator.images = self.store
        return some, self._there.posterior(estimator, x[some], sigma, [each[i] for i in some])

    def answer(
        self, question: Question, x: F32, within: Sequence[AnySupport], first: int, *more: Any
    ) -> Any:
        """Of the images here, which begin at row ``first`` of the whole store."""
        self.store.first_row = first
        return question.of_part(self.store, x, listed_here(self.store, within), *more)

    def moments(self, all_: DescribedSupport, images: int | None, seed: int) -> Moments:
        """Sums that mean and covariance are made of, of the images of a class (or all) here.

        ``images`` of all shards' are drawn, as by :func:`golddiff.store.statistics.factor_rows`.
        """
        rows = of_part(self.store, all_).rows
        drawn = factor_rows(np.arange(all_.images), self.store.d, images, seed)
        mine = slice(*np.searchsorted(drawn, [all_.place, all_.place + len(rows)]))
        return moments(self.store.flat, rows[drawn[mine] - all_.place])

    def labels(self) -> I64:
        """The class of each image."""
        assert self.store.labels is not None
        return self.store.labels.numpy()

    def verify(self) -> None:
        """Recompute every checksum; files that changed are an error, not a missing shard."""
        try:
            self.store.verify()
        except StoreError as error:
            raise ClusterError(f"has changed: {error}") from error

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of its store: ``values``, ``names_of``."""
        return getattr(self.store, name)


class _Packer(pickle.Pickler):
    """Rows of a training set are int64 wherever they are used, and int32 on the way."""

    def reducer_override(self, value: Any) -> Any:
        """Arrays of int64 that fit into int32 go as those."""
        if isinstance(value, np.ndarray) and value.dtype == np.int64:
            narrow = value.astype(np.int32)
            if np.array_equal(narrow, value):
                return np.ndarray.astype, (narrow, np.int64)
        return NotImplemented


def pack(value: Any) -> bytes:
    """Plain data as bytes; what it holds twice, the same object, is the same one afterwards."""
    out = io.BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def unpack(packed: bytes) -> Any:
    """What :func:`pack` packed, from a process of one's own cluster."""
    return pickle.loads(packed)
