"""Helpers of the commands that run on a cluster."""

from __future__ import annotations

from typing import Any, cast

from rich.progress import Progress

import golddiff
from golddiff.cli.terminal import waiting


def join(address: str) -> None:
    """Join the cluster at an address; "local" starts one on this machine's cores."""
    with waiting("joining the cluster"):
        golddiff.cluster.connect(address)


def open_sharded(path: str, address: str, allow_missing: bool) -> golddiff.ImageStore:
    """Join a cluster and open a sharded store on it."""
    join(address)
    with waiting("opening the shards"):
        # A ShardedStore has the methods of an ImageStore that estimators call.
        store = golddiff.cluster.ShardedStore.open(path, allow_missing=allow_missing)
        return cast(golddiff.ImageStore, store)


def answers_per_shard(
    steps: int, sampler: str, n: int, batch_size: int, labels: list[int] | None
) -> int:
    """Number of posteriors each shard computes in a run: one per denoiser call, batch and class."""
    calls = 2 * steps - 1 if sampler == "heun" else steps
    classes = [0] * n if labels is None else labels
    return calls * sum(len(set(classes[i : i + batch_size])) for i in range(0, n, batch_size))


def shard_bar(bar: Progress, store: golddiff.ImageStore, answers: int) -> None:
    """Show a bar of a sharded store's slowest shard."""
    paths = getattr(store, "paths", None)
    if paths is None:
        return
    pool: Any = store.pool  # type: ignore[attr-defined]
    names = [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]
    answered = [0] * len(names)
    task = bar.add_task(f"  all {len(names):,} shards", total=answers)

    def on_answer(shard: int) -> None:
        answered[shard] += 1
        present = [i for i, path in enumerate(paths) if path not in pool.missing]
        slowest = min(present, key=lambda i: answered[i])
        name = f"  slowest of {len(present):,} shards: {names[slowest]}"
        # Near ties are weighed again, which ``answers`` does not count.
        bar.update(task, completed=min(answered[slowest], answers), description=name)

    pool.on_answer = on_answer
