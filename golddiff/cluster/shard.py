"""One shard's process: an ordinary store of its images, and what is asked of it from elsewhere.

It keeps nothing that a question does not bring along, but for what makes it quick: a process that
was started again answers as the one before.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff import __version__
from golddiff.cluster.agreement import About
from golddiff.cluster.copies import local_folder
from golddiff.cluster.joining import ray_package
from golddiff.cluster.slices import Part, Parts, listed_here, of_part
from golddiff.cluster.wire import pack, unpack
from golddiff.posterior import Posterior
from golddiff.store.device import device_store
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Drawing, Found, Metric, nearest_with_distances
from golddiff.store.posteriors import whole
from golddiff.store.statistics import Axes, Moments, factor_places, moments
from golddiff.support import Support, TiledSupport
from golddiff.system.errors import ClusterError
from golddiff.system.residency import DEFAULT_LIMIT

KEPT = 64  # of what travels once: estimators at a noise level, metrics


class ShardServer:
    """Answers for the images of one shard. There is no Ray in here.

    Its path is a folder, or an address that fsspec reads, which is copied to the cache first.
    """

    def __init__(self, path: str, memory_limit: float = DEFAULT_LIMIT) -> None:
        self.store = ImageStore.open(local_folder(path), memory_limit)
        self._there: Any = self.store
        if torch.cuda.is_available():
            self._there = device_store(self.store, torch.device("cuda"))

    def about(self) -> About:
        """What the shard holds."""
        return About(self.store.manifest, self.store.class_counts, self.store.radius)

    def posterior(
        self, estimator: Any, x: NDArray[np.float32], sigma: float, supports: Parts
    ) -> tuple[list[int], Posterior | None]:
        """The partial posterior of those queries (b, D) that have images here, and which."""
        each = listed_here(self.store, supports)
        some = [i for i, support in enumerate(each) if len(support.rows)]
        if not some:
            return [], None
        estimator.images = self.store
        return some, self._there.posterior(estimator, x[some], sigma, [each[i] for i in some])

    def nearest(
        self, metric: Metric, x: NDArray[np.float32], k: int, within: Parts
    ) -> list[Found | None]:
        """Of each query the nearest images here, at most k, with their distances."""
        among = listed_here(self.store, within)
        return nearest_with_distances(self.store, x, k, metric, among, always=True)

    def summary(self, drawing: Drawing, x: NDArray[np.float32], within: Parts, first: int) -> Any:
        """What a draw by weight has to know of the images here."""
        self.store.first_row = first
        return drawing.summary(self.store, x, self._among(within))

    def chosen(
        self, drawing: Drawing, x: NDArray[np.float32], within: Parts, total: Any, first: int
    ) -> Sequence[Support | TiledSupport]:
        """The images here that are drawn for each query."""
        self.store.first_row = first
        return drawing.chosen(self.store, x, self._among(within), total)

    def _among(self, within: Parts) -> list[Support]:
        return list(map(whole, listed_here(self.store, within)))

    def moments(self, all_: Part, images: int | None, seed: int) -> Moments:
        """Sums that mean and covariance are made of, of the images of a class (or all) here.

        ``images`` of all shards' are drawn, as by :func:`golddiff.store.statistics.factor_rows`.
        """
        rows = of_part(self.store, all_).rows
        drawn = factor_places(all_.support.images, self.store.d, images, seed)
        if drawn is not None:
            mine = slice(*np.searchsorted(drawn, [all_.place, all_.place + len(rows)]))
            rows = rows[drawn[mine] - all_.place]
        return moments(self.store.flat, rows)

    def values(self, rows: NDArray[np.int64], onto: Axes | None) -> NDArray[np.float32]:
        """Images (k, D) by row, or their coordinates along some axes."""
        return self.store.values(rows, onto)

    def labels(self) -> NDArray[np.int64]:
        """The class of each image."""
        assert self.store.labels is not None
        return self.store.labels.numpy()

    def verify(self) -> None:
        """Recompute the shard's checksums."""
        self.store.verify()


class Worker:
    """The Ray actor around a :class:`ShardServer`; it opens the shard at its first question.

    ``version`` is the driver's: what travels means the same in that one alone.
    """

    def __init__(self, path: str, threads: int, memory_limit: float, version: str) -> None:
        self._path, self._threads, self._memory_limit = path, threads, memory_limit
        self._driver = version
        self._server: ShardServer | None = None
        self._once: OrderedDict[str, Any] = OrderedDict()

    def ask(self, method: str, packed: bytes, once: Sequence[Any]) -> tuple[int, bytes]:
        """Call a method of the server: this process's id, and what came out, packed.

        The first arguments are references (``once``), fetched once and kept; the others are packed.
        """
        if self._driver != __version__:
            raise ClusterError(
                f"runs golddiff {__version__} on {socket.gethostname()}, here is {self._driver}; "
                "install one version everywhere"
            )
        from golddiff.system.parallel import use_threads

        # The number of threads belongs to the thread that sets it.
        if torch.get_num_threads() != self._threads:
            use_threads(self._threads)
        if self._server is None:
            self._server = ShardServer(self._path, self._memory_limit)
        first = [self._kept(reference) for reference in once]
        return os.getpid(), pack(getattr(self._server, method)(*first, *unpack(packed)))

    def alive(self) -> int:
        """Answers at once, also while ``ask`` works."""
        return os.getpid()

    def _kept(self, reference: Any) -> Any:
        name = reference.hex()
        if name not in self._once:
            while len(self._once) >= KEPT:
                self._once.popitem(last=False)
            self._once[name] = pickle.loads(ray_package().get(reference))
        return self._once[name]
