"""The constants that the plan in docs/cluster.md rests on, measured here.

    python benchmarks/cluster.py STORE

Times of kernels are CPU seconds of one thread (other work on the machine hardly changes them);
those of calls are medians. STORE is read, and copied into one shard for the comparison with and
without Ray.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import golddiff
from golddiff.cluster import ShardedStore, connect
from golddiff.kernels.rows import squared_distances
from golddiff.noise import ddim_sigmas
from golddiff.store.images import ImageStore
from golddiff.store.proxy import pool, quarter_shape
from golddiff.store.statistics import moments
from golddiff.support import Support


def cpu_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The least CPU time of some repeats, after one that compiles."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def kernels(store: ImageStore) -> dict[str, float]:
    """CPU seconds of one thread for each image and query."""
    rows = store.rows_of(None)[:10_000]
    x = store.values(rows[:1]) + np.float32(1.0)
    shape = quarter_shape(store.shape)
    proxies, query = store.proxies(shape), pool(x.reshape(1, *store.shape), shape)
    pca = golddiff.PCA(store)
    pca.tree(1.0)
    per = {
        "proxy distance": lambda: squared_distances(proxies, rows, query, 1.0, 0.0),
        "distance of all values": lambda: squared_distances(
            store.flat, rows, x, store.scale, store.offset
        ),
        "Optimal": lambda: golddiff.Optimal(store).posterior(x, 1.0, Support(rows)),
        "PCA at sigma 1": lambda: pca.posterior(x, 1.0, Support(rows)),
        "moments": lambda: moments(store.flat, rows),
    }
    return {name: cpu_seconds(work) / len(rows) for name, work in per.items()}


def overhead(store: ImageStore, one: ShardedStore, steps: int = 10, runs: int = 15) -> list[float]:
    """Median milliseconds a step of Optimal: without Ray, with one local shard, and the gap."""
    sigmas = ddim_sigmas(steps)
    x = store.images([0])
    made = [golddiff.Optimal(store), golddiff.Optimal(one)]
    times: list[list[float]] = [[], []]
    for run in range(runs + 1):
        for denoiser, found in zip(made, times, strict=True):
            for sigma in sigmas:
                start = time.perf_counter()
                denoiser(x, sigma)
                if run:
                    found.append(time.perf_counter() - start)
    gaps = [b - a for a, b in zip(*times, strict=True)]
    return [1e3 * statistics.median(values) for values in (*times, gaps)]


def bytes_a_step(store: ShardedStore) -> dict[str, dict[str, float]]:
    """What one query of ten steps moves, by method."""
    methods = {
        "Optimal": golddiff.Optimal(store),
        "PCA": golddiff.PCA(store),
        "GoldDiff(PCA), text": golddiff.GoldDiff(golddiff.PCA(store)),
    }
    moved = {}
    for name, denoiser in methods.items():
        golddiff.sample(denoiser, 1, 10)
        store.pool.start_counting()
        golddiff.sample(denoiser, 1, 10)
        traffic = store.pool.traffic
        moved[name] = {
            "bytes": (traffic.sent + traffic.received) / 10,
            "calls": traffic.calls / 10,
        }
    return moved


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--limit", type=int, default=10_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    store = ImageStore.open(asked.store)
    figures: dict[str, object] = {"store": str(store.manifest.source), "shape": store.shape}
    figures["cpu microseconds an image"] = {k: 1e6 * v for k, v in kernels(store).items()}
    connect(num_cpus=1)
    with tempfile.TemporaryDirectory() as folder:
        digits = ImageStore.build("digits", Path(folder) / "digits")
        part = np.array(store.flat[: asked.limit]).reshape(-1, *store.shape)
        ImageStore.build(part, Path(folder) / "part")
        start = time.perf_counter()
        with ShardedStore.open([digits.path], threads=1) as one:
            figures["seconds to start a shard"] = time.perf_counter() - start
            figures["ms a step of Optimal on digits: no Ray, one shard, gap"] = overhead(
                digits, one
            )
        with ShardedStore.open([Path(folder) / "part"], threads=1) as one:
            figures[f"one shard of {asked.limit:,} images, a query and step"] = bytes_a_step(one)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
