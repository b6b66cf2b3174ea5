"""The inputs of an experiment: the user's data and oracles, settings, and cached results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from golddiff.evaluation.references import OracleFile
from golddiff.sampling import OnStep
from golddiff.sources.source_options import SourceOptions
from golddiff.store.images import ImageStore
from golddiff.store.opening import is_store
from golddiff.system.errors import ArgumentError
from golddiff.system.units import shape_text
from golddiff_lab.arguments import at_least, given_store
from golddiff_lab.cells import Cells
from golddiff_lab.paper.datasets import DATA_SETS
from golddiff_lab.paper.settings import Settings

QUICK_IMAGES = 4
QUICK_STEPS = 3


@contextlib.contextmanager
def unwatched(title: str, total: int) -> Iterator[OnStep]:
    """A progress bar that shows nothing."""
    yield lambda images: None


@dataclass
class Context(Settings):
    """The inputs of an experiment.

    Attributes:
        data: by name, path of each available data set: a store, or images to index.
        oracles: by name, path of each network.
        say: called with progress messages.
        watch: ``watch(title, total)`` opens a progress bar and yields a function to advance it.
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
        self._oracles: dict[str, OracleFile] = {}

    def steps(self, steps: int) -> int:
        """The number of steps, reduced in quick mode."""
        return min(steps, QUICK_STEPS + steps // 50) if self.quick else steps

    def store(self, name: str) -> ImageStore | None:
        """The store of a data set; None if it is not available."""
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
        """Name and store of the first available data set among ``names``; None if there is none."""
        stores = ((name, self.store(name)) for name in names)
        return next(((name, store) for name, store in stores if store is not None), None)

    def oracle(self, name: str) -> OracleFile | None:
        """The oracle of this name; None if it is not available."""
        if name not in self.oracles:
            return None
        if name not in self._oracles:
            self._oracles[name] = OracleFile(self.oracles[name])
        return self._oracles[name]

    def part(self, name: str, store: ImageStore, images: int | None) -> ImageStore:
        """A store of ``images`` random images of a store; the store itself if it has no more."""
        if images is None or images >= store.n:
            return store
        checksum = store.manifest.images_checksum[:12]
        path = self.out / "stores" / f"{name}-{images}-{self.seed}-{checksum}"
        if not is_store(path):
            drawn = np.random.default_rng(self.seed).permutation(store.n)[:images]
            rows = np.sort(drawn)
            values = torch.from_numpy(np.array(store.flat[rows])).reshape(images, *store.shape)
            labels = None if store.labels is None else store.labels[torch.from_numpy(rows)]
            ImageStore.build(values, path, labels)
        return ImageStore.open(path)
