"""The stores of a studio and their denoisers, shared read-only by all sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.network_like import NetworkLike
from golddiff.estimators.registry import MethodSettings, create, memory_needed, over
from golddiff.store.images import ImageStore
from golddiff.store.manifest import Manifest
from golddiff.system.errors import ArgumentError, GoldDiffError, StoreError
from golddiff.system.memory import free_memory

Opener = Callable[[], ImageStore]

# Full scans over more values than this take over a second per image and step on two cores.
QUICK_VALUES = 20_000_000
# Methods selected when the page opens: one of each kind, few enough to fit side by side
AT_FIRST = ("recommended", "network-like", "wiener", "optimal", "golddiff-pca", "kamb")
_GOLDEN = "golddiff-"
MAX_CACHED = 16  # estimators cached per store; each novelty value needs its own


class OpenStore:
    """An open store with its cached estimators, which compute masks and sums once for all runs."""

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        self.quick = store.n * store.d <= QUICK_VALUES  # every method is fast
        # Only one run computes at a time: kernels use every core, and first use fills caches.
        # A run holds the lock for one step, so runs alternate.
        self.lock = threading.Lock()
        self._create_lock = threading.Lock()
        self._create = lru_cache(MAX_CACHED)(partial(create, store=store))

    def denoiser(self, method: str, variant: str, novelty: float, seed: int) -> Denoiser:
        """Create the denoiser of a method.

        ``variant`` applies to the schedule of golden subsets, ``novelty`` to ``recommended``, and
        ``seed`` to golden subsets that are drawn at random.
        """
        options = {"novelty": novelty} if method == "recommended" else {}
        with self._create_lock:
            cached = self._create(name=method.removeprefix(_GOLDEN), **options)
        if method.startswith(_GOLDEN):
            assert isinstance(cached, Estimator)
            return over("golden", cached, MethodSettings(variant=variant), seed)
        return cached.with_seed(seed) if isinstance(cached, NetworkLike) else cached

    def default_methods(self) -> list[str]:
        """Methods selected when the page opens; without those too slow or too large for memory."""
        n, d, free = self.store.n, self.store.d, free_memory()
        fitting = [m for m in AT_FIRST if memory_needed(m, MethodSettings())(n, d) <= free]
        return [method for method in fitting if self.quick or method != "kamb"]


class Library:
    """Stores by name, opened (or built) on first use and checked before every use."""

    def __init__(self, openers: Mapping[str, Opener]) -> None:
        if not openers:
            raise ArgumentError("stores: got none, expected at least one")
        self.names = list(openers)  # in the given order
        self._openers = dict(openers)
        self._open: dict[str, OpenStore] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> OpenStore:
        """The store of that name, reopened if it was rebuilt; an error if it was damaged."""
        if name not in self._openers:
            raise ArgumentError(f"store: got {name!r}, expected one of {', '.join(self.names)}")
        with self._lock:
            opened = self._open.get(name)
            if opened is not None and _unchanged(opened.store):
                return opened
            try:
                store = self._openers[name]()
            except StoreError as error:
                if opened is None:
                    raise
                raise StoreError(
                    f"store: {name} was deleted or damaged while the studio runs; choose another "
                    f"store, or rebuild it and continue ({error})"
                ) from error
            if len(store.shape) != 3:
                raise ArgumentError(
                    f"{name}: holds points of {store.d} values; the studio shows images (C, H, W)"
                )
            self._open[name] = OpenStore(store)
            return self._open[name]


def _unchanged(store: ImageStore) -> bool:
    """Whether the store's folder still holds the files that are mapped.

    A deleted file can still be read through its mapping; a truncated one kills the process.
    """
    try:
        manifest = Manifest.read(store.path)
        manifest.check_sizes(store.path)
    except (GoldDiffError, OSError):
        return False
    return manifest == store.manifest
