"""Time and recall of strategies to find the nearest images, side by side."""

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
from rich.table import Table

from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import use_threads
from golddiff.system.units import byte_size
from golddiff_lab.arguments import at_least
from golddiff_lab.peers.faiss_flat import load_faiss
from golddiff_lab.queries import check_source, queries
from golddiff_lab.search.strategies import (
    Coordinates,
    Queries,
    Rows,
    Strategy,
    checked,
    linear,
    named,
    nearest_exactly,
    of_faiss,
    through_index,
)
from golddiff_lab.tables import terminal_table
from golddiff_lab.timing import PAUSE


@dataclass(frozen=True)
class SearchJob:
    """What to race.

    Attributes:
        store: folder of the store.
        k: numbers of images to find.
        levels: noise levels.
        searches: more strategies, as "module:function".
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
            if not values or any(v < 1 for v in values):
                raise ArgumentError(f"{name}: got {values}, expected whole numbers of 1 or more")
        at_least(self, batch=1, repeats=1, lists=1, threads=1)
        if not self.levels or not all(0 < level < math.inf for level in self.levels):
            raise ArgumentError(f"levels: got {self.levels}, expected finite numbers above 0")
        check_source(self.queries_from)
        if self.faiss:
            load_faiss()


@dataclass(frozen=True)
class Found:
    """One strategy at one noise level and k.

    Attributes:
        strategy, sigma, k: which.
        seconds: of one query, the median search over its queries.
        recall: share of the k nearest by the coordinates that were found.
        bytes: that the strategy keeps in memory.
    """

    strategy: str
    sigma: float
    k: int
    seconds: float
    recall: float
    bytes: int | None


def race(job: SearchJob, watch: Callable[[str], None] = lambda what: None) -> list[Found]:
    """Every strategy at every noise level and k, in turns.

    Raises:
        GoldDiffError: bad input; faiss missing; a search that returns no rows.
    """
    job.check()
    if job.threads is not None:
        use_threads(job.threads)
    store = ImageStore.open(job.store)
    if max(job.k) > store.n:
        raise ArgumentError(f"k: got {max(job.k)}, but the store has only {store.n:,} images")
    others = [named(text) for text in job.searches]
    watch("principal coordinates")
    coordinates = Coordinates.of(store)
    own = through_index(store)
    strategies = [linear(coordinates), *others, *([] if own is None else [own])]
    if job.faiss:
        watch("FAISS's indexes")
        lists = min(store.n, job.lists or max(1, round(4 * math.sqrt(store.n))))
        probes = tuple(dict.fromkeys(min(p, lists) for p in job.probes))
        strategies += of_faiss(coordinates, lists, probes, torch.get_num_threads())
    batches = queries(job.queries_from, store, job.levels, job.batch, job.seed)
    found = []
    for sigma, batch in zip(job.levels, batches, strict=True):
        x = np.ascontiguousarray(batch.reshape(len(batch), -1).numpy())
        for k in job.k:
            watch(f"sigma {sigma:.3g}, k {k:,}")
            exact = nearest_exactly(coordinates, x, k)
            found += _level(strategies, store, x, sigma, k, exact, job.repeats)
    return found


def _level(
    strategies: list[Strategy],
    store: ImageStore,
    x: Queries,
    sigma: float,
    k: int,
    exact: Rows,
    repeats: int,
) -> list[Found]:
    recalls = {}
    for strategy in strategies:
        rows = checked(strategy.search(store, x, sigma, k), len(x), k, store.n, strategy.name)
        recalls[strategy.name] = recall(rows, exact)
    times: dict[str, list[float]] = {strategy.name: [] for strategy in strategies}
    for _ in range(repeats):
        for strategy in strategies:
            time.sleep(PAUSE)
            start = time.perf_counter()
            strategy.search(store, x, sigma, k)
            times[strategy.name].append(time.perf_counter() - start)
    return [
        Found(s.name, sigma, k, statistics.median(times[s.name]) / len(x), recalls[s.name], s.bytes)
        for s in strategies
    ]


def recall(rows: Rows, exact: Rows) -> float:
    """The mean share of each query's exact rows (b, k) that are among those found (b, k)."""
    hits = [len(np.intersect1d(a, b)) for a, b in zip(rows, exact, strict=True)]
    return sum(hits) / exact.size


def table(found: list[Found]) -> Table:
    """A row for each noise level, k and strategy; times beside those of the first one."""
    first: dict[tuple[float, int], float] = {}
    rows = []
    for row in found:
        new = (row.sigma, row.k) not in first
        base = first.setdefault((row.sigma, row.k), row.seconds)
        rows.append(
            [
                f"{row.sigma:.3g}" if new else "", f"{row.k:,}" if new else "", row.strategy,
                f"{1e3 * row.seconds:.2f}", f"{base / row.seconds:.2f}", f"{row.recall:.3f}",
                "-" if row.bytes is None else byte_size(row.bytes),
            ]
        )  # fmt: skip
    header = ["sigma", "k", "search", "ms", "ratio", "recall", "memory"]
    return terminal_table(header, rows, left=(2,))


def figures(job: SearchJob, found: list[Found]) -> dict[str, Any]:
    """Everything measured, for --json."""
    return {
        "job": {**vars(job), "store": str(job.store)},
        "threads": torch.get_num_threads(),
        "rows": [vars(row) for row in found],
    }
