"""What an experiment runs on: the user's data and oracles, the settings, the stored results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from golddiff.evaluation.references import Oracle
from golddiff.sampling import OnStep
from golddiff.sources.source_options import SourceOptions
from golddiff.store.images import ImageStore
from golddiff.store.opening import is_store
from golddiff.system.errors import ArgumentError
from golddiff.system.units import shape_text
from golddiff_lab.arguments import at_least
from golddiff_lab.cells import Cells
from golddiff_lab.given import given_store
from golddiff_lab.paper.datasets import DATA_SETS
from golddiff_lab.paper.settings import Settings

QUICK_IMAGES = 4
QUICK_STEPS = 3


@contextlib.contextmanager
def unwatched(title: str, total: int) -> Iterator[OnStep]:
    """No progress shown."""
    yield lambda images: None


@dataclass
class Context(Settings):
    """Everything that an experiment asks for.

    Attributes:
        data: path of each data set that is here, by name: a store, or images to index.
        oracles: path of each network, by name.
        say: called with a line of progress.
        watch: opens a progress bar, ``watch(title, total)``, and gives what advances it.
    """

    data: dict[str, str] = field(default_factory=dict)
    oracles: dict[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = lambda line: None
    watch: Callable[[str, int], contextlib.AbstractContextManager[OnStep]] = unwatched

    def __post_init__(self) -> None:
        at_least(self, n=1, batch=1, kamb_images=1, most_steps=1)
        if self.quick:
            self.n = min(self.n, QUICK_IMAGES)
        self.cells = Cells(self.out / "cells")
        self._stores: dict[str, ImageStore] = {}
        self._oracles: dict[str, Oracle] = {}

    def steps(self, steps: int) -> int:
        """The number of steps, fewer in quick mode."""
        return min(steps, QUICK_STEPS + steps // 50) if self.quick else steps

    def store(self, name: str) -> ImageStore | None:
        """The data set of this name, or None where it is not here.

        Raises:
            GoldDiffError: it is here and cannot be read, or holds no images.
        """
        if name not in self.data:
            return None
        if name not in self._stores:
            reading = SourceOptions(size=DATA_SETS[name].side, skip_bad=True)
            store = given_store(self.data[name], reading, self.say)
            if len(store.shape) != 3:
                raise ArgumentError(
                    f"data: {name} holds {shape_text(store.shape)}, expected images"
                )
            self._stores[name] = store
        return self._stores[name]

    def first(self, names: Iterable[str]) -> tuple[str, ImageStore] | None:
        """The first of these data sets that is here, by name; None where none is."""
        found = ((name, self.store(name)) for name in names)
        return next(((name, store) for name, store in found if store is not None), None)

    def oracle(self, name: str) -> Oracle | None:
        """The oracle of this name, or None where it is not here.

        Raises:
            GoldDiffError: nothing at its path, or no network.
        """
        if name not in self.oracles:
            return None
        if name not in self._oracles:
            oracle = Oracle.at(self.oracles[name])
            _ = oracle.call  # loaded now: what is no network is told before any work
            self._oracles[name] = oracle
        return self._oracles[name]

    def part(self, name: str, store: ImageStore, images: int | None) -> ImageStore:
        """A store of ``images`` of the store's, drawn at random; itself where it has no more."""
        if images is None or images >= store.n:
            return store
        path = self.out / "stores" / f"{name}-{images}-{store.manifest.images_checksum[:12]}"
        if not is_store(path):
            drawn = np.random.default_rng(self.seed).permutation(store.n)[:images]
            rows = np.sort(drawn)
            values = torch.from_numpy(np.array(store.flat[rows])).reshape(images, *store.shape)
            labels = None if store.labels is None else store.labels[torch.from_numpy(rows)]
            ImageStore.build(values, path, labels)
        return ImageStore.open(path)
