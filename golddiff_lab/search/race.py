"""Time and recall of ways to find the nearest images, side by side."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from golddiff.store.images import ImageStore
from golddiff.supports.index import Index
from golddiff.supports.index.indexing import FOLDER
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import use_threads
from golddiff.system.units import byte_size
from golddiff_lab.race.job import QUERIES_FROM
from golddiff_lab.race.queries import queries
from golddiff_lab.search.coordinates import principal
from golddiff_lab.search.ways import (
    Way,
    by_blocks,
    checked,
    faiss_ways,
    linear,
    named,
    nearest_exactly,
)

PAUSE = 0.02  # threads of the last search still wait actively for more


@dataclass(frozen=True)
class SearchJob:
    """What to race.

    Attributes:
        store: folder of the store.
        k: numbers of images to find.
        levels: noise levels.
        searches: more ways, as "module:function".
        faiss: whether FAISS takes part.
        probes: numbers of lists that FAISS's inverted file looks through.
        lists: that it has; None for 4 sqrt(n).
        batch: queries of a search.
        repeats: timed searches, after one to warm up.
        queries_from: "trajectory" or "noised".
        seed, threads: of noise; to use.
    """

    store: Path
    k: tuple[int, ...] = (100, 1000, 5000)
    levels: tuple[float, ...] = (6.0, 1.0, 0.1)
    searches: tuple[str, ...] = ()
    faiss: bool = True
    probes: tuple[int, ...] = (1, 8, 64)
    lists: int | None = None
    batch: int = 16
    repeats: int = 3
    queries_from: str = "noised"
    seed: int = 0
    threads: int | None = None

    def check(self) -> None:
        """Everything that can be told without opening the store.

        Raises:
            ArgumentError: names the argument.
        """
        for name in ("k", "probes"):
            values = getattr(self, name)
            if not values or any(v < 1 or v != int(v) for v in values):
                raise ArgumentError(f"{name}: got {values}, expected whole numbers of 1 or more")
        for name in ("batch", "repeats", "lists", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{name}: got {value}, expected 1 or more")
        if not self.levels or not all(0 < level < math.inf for level in self.levels):
            raise ArgumentError(f"levels: got {self.levels}, expected finite numbers above 0")
        if self.queries_from not in QUERIES_FROM:
            raise ArgumentError(
                f"queries_from: got {self.queries_from!r}, expected {' or '.join(QUERIES_FROM)}"
            )


@dataclass(frozen=True)
class Found:
    """One way at one noise level and k.

    Attributes:
        way, sigma, k: which.
        seconds: of one query, the median search over its queries.
        recall: share of the k nearest by the coordinates that were found.
        bytes: that the way keeps in memory.
    """

    way: str
    sigma: float
    k: int
    seconds: float
    recall: float
    bytes: int | None


def race(job: SearchJob, watch: Callable[[str], None] = lambda what: None) -> list[Found]:
    """Every way at every noise level and k; ways take turns.

    Raises:
        GoldDiffError: bad input; faiss missing; a search that returns no rows.
    """
    job.check()
    if job.threads is not None:
        use_threads(job.threads)
    store = ImageStore.open(job.store)
    if max(job.k) > store.n:
        raise ArgumentError(f"k: got {max(job.k)}, but the store has only {store.n:,} images")
    watch("principal coordinates")
    coordinates = principal(store)
    ways = [linear(store, coordinates), *map(named, job.searches)]
    if (store.path / FOLDER).exists():
        ways.append(by_blocks(Index.open(store)))
    if job.faiss:
        watch("FAISS's indexes")
        lists = min(store.n, job.lists or max(1, round(4 * math.sqrt(store.n))))
        probes = tuple(dict.fromkeys(min(p, lists) for p in job.probes))
        ways += faiss_ways(store, coordinates, lists, probes, torch.get_num_threads())
    batches = queries(job.queries_from, store, job.levels, job.batch, job.seed)
    found = []
    for sigma, batch in zip(job.levels, batches, strict=True):
        x = np.ascontiguousarray(batch.reshape(len(batch), -1).numpy())
        for k in job.k:
            watch(f"sigma {sigma:.3g}, k {k:,}")
            exact = nearest_exactly(store, coordinates, x, k)
            found += _level(ways, store, x, sigma, k, exact, job.repeats)
    return found


def _level(
    ways: list[Way],
    store: ImageStore,
    x: NDArray[np.float32],
    sigma: float,
    k: int,
    exact: NDArray[np.int64],
    repeats: int,
) -> list[Found]:
    recalls = {}
    for way in ways:
        rows = checked(way.search(store, x, sigma, k), len(x), k, store.n, way.name)
        recalls[way.name] = recall(rows, exact)
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            time.sleep(PAUSE)
            start = time.perf_counter()
            way.search(store, x, sigma, k)
            times[way.name].append(time.perf_counter() - start)
    return [
        Found(
            way.name, sigma, k, statistics.median(times[way.name]) / len(x), recalls[way.name],
            way.bytes,
        )
        for way in ways
    ]  # fmt: skip


def recall(rows: NDArray[np.int64], exact: NDArray[np.int64]) -> float:
    """The mean share of each query's exact rows (b, k) that are among those found (b, k)."""
    hits = [len(np.intersect1d(a, b)) for a, b in zip(rows, exact, strict=True)]
    return sum(hits) / exact.size


def table(found: list[Found]) -> Table:
    """A row for each noise level, k and way; times beside those of the first way."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("sigma", justify="right", no_wrap=True)
    made.add_column("k", justify="right", no_wrap=True)
    made.add_column("way", no_wrap=True)
    for head in ("ms", "ratio", "recall", "memory"):
        made.add_column(head, justify="right", no_wrap=True)
    first: dict[tuple[float, int], float] = {}
    for row in found:
        key = (row.sigma, row.k)
        new = key not in first
        base = first.setdefault(key, row.seconds)
        made.add_row(
            f"{row.sigma:.3g}" if new else "", f"{row.k:,}" if new else "", row.way,
            f"{1e3 * row.seconds:.2f}", f"{base / row.seconds:.2f}", f"{row.recall:.3f}",
            "-" if row.bytes is None else byte_size(row.bytes),
        )  # fmt: skip
    return made


def figures(job: SearchJob, found: list[Found]) -> dict[str, Any]:
    """Everything measured, for --json."""
    return {
        "job": {**vars(job), "store": str(job.store)},
        "threads": torch.get_num_threads(),
        "rows": [vars(row) for row in found],
    }
