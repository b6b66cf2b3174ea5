"""The stores of a studio and their denoisers, shared by everyone who uses it, read only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.network_like import NetworkLike
from golddiff.estimators.registry import MethodSettings, create, over
from golddiff.store.images import ImageStore
from golddiff.store.manifest import Manifest
from golddiff.system.errors import ArgumentError, GoldDiffError, StoreError

Opener = Callable[[], ImageStore]

# Full scans of more values than this take over a second an image and step on two cores.
QUICK_VALUES = 20_000_000
# One of each kind, so that each has room.
AT_FIRST = ("recommended", "network-like", "wiener", "optimal", "golddiff-pca", "kamb")
_GOLDEN = "golddiff-"
MOST_KEPT = 16  # estimators of a store: each novelty has its own


class OpenStore:
    """An open store with its estimators, whose masks and sums are made once for all runs."""

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        # Held by whoever computes: the kernels use every core, and caches are filled on first use.
        # Runs take it a step at a time, so they alternate.
        self.lock = threading.Lock()
        self._making = threading.Lock()
        self._kept = lru_cache(MOST_KEPT)(partial(create, store=store))

    def denoiser(self, method: str, variant: str, novelty: float, seed: int) -> Denoiser:
        """A denoiser by its method's name.

        ``variant`` is of the golden subsets' schedule, ``novelty`` of ``recommended``, ``seed`` of
        the images that a golden subset draws at random.
        """
        given = {"novelty": novelty} if method == "recommended" else {}
        with self._making:
            kept = self._kept(name=method.removeprefix(_GOLDEN), **given)
        if method.startswith(_GOLDEN):
            assert isinstance(kept, Estimator)
            return over("golden", kept, MethodSettings(variant=variant), seed)
        if isinstance(kept, NetworkLike):
            return kept.with_seed(seed)
        return GoldDiff(kept.base, kept.schedule, seed) if isinstance(kept, GoldDiff) else kept

    @property
    def quick(self) -> bool:
        """Whether every method is."""
        return self.store.n * self.store.d <= QUICK_VALUES

    def default_methods(self) -> list[str]:
        """Those that the page begins with: Kamb takes long on a large store."""
        return [name for name in AT_FIRST if self.quick or name != "kamb"]


class Library:
    """Stores by name, opened (or built) when first chosen, and checked again before every use."""

    def __init__(self, openers: Mapping[str, Opener]) -> None:
        if not openers:
            raise ArgumentError("stores: got none, expected at least one")
        self._openers = dict(openers)
        self._open: dict[str, OpenStore] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """In the order given."""
        return list(self._openers)

    def get(self, name: str) -> OpenStore:
        """The store of that name, if it is still whole on disk; opened again if it was rebuilt."""
        if name not in self._openers:
            raise ArgumentError(f"store: got {name!r}, expected one of {', '.join(self.names)}")
        with self._lock:
            found = self._open.get(name)
            if found is not None and _unchanged(found.store):
                return found
            try:
                store = self._openers[name]()
            except StoreError as error:
                if found is None:
                    raise
                raise StoreError(
                    f"store: {name} was deleted or damaged while the studio runs; choose another "
                    f"store, or build it again and go on ({error})"
                ) from error
            if len(store.shape) != 3:
                raise ArgumentError(
                    f"store: {name} holds points of {store.d} values; the studio shows images "
                    "(C, H, W)"
                )
            self._open[name] = OpenStore(store)
            return self._open[name]


def _unchanged(store: ImageStore) -> bool:
    """Whether the files that are mapped are still those of the folder.

    A mapped file that was deleted can still be read; one that was cut short ends the process.
    """
    try:
        manifest = Manifest.read(store.path)
        manifest.check_sizes(store.path)
    except (GoldDiffError, OSError):
        return False
    return manifest == store.manifest
