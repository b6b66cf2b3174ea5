"""What the commands share that work on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.progress import Progress

if TYPE_CHECKING:
    from golddiff.sampling import Samples
    from golddiff.store import ImageStore

BARS = 24  # shards that have one each; of more only the whole is shown


def join(address: str) -> None:
    """Join the cluster that an option names; "local" starts one of this machine's cores.

    Raises:
        GoldDiffError: an address that is none, or nobody answers there.
    """
    from golddiff.cluster import connect

    connect(None if address == "local" else address)


def open_sharded(path: str, address: str, allow_missing: bool) -> ImageStore:
    """Join a cluster and open a store in shards there.

    Raises:
        GoldDiffError: see :func:`join` and :meth:`golddiff.cluster.ShardedStore.open`.
    """
    join(address)

    from golddiff.cluster import ShardedStore

    return ShardedStore.open(path, allow_missing=allow_missing)


def shard_bars(bar: Progress, store: ImageStore, steps: int) -> None:
    """A bar for each shard, if the store has some: how many steps it has weighed its part of."""
    paths = getattr(store, "paths", None)
    if paths is None or len(paths) > BARS:
        return
    tasks = [
        bar.add_task(f"  {path.rstrip('/').rsplit('/', 1)[-1]}", total=steps) for path in paths
    ]
    store.watch(lambda shard: bar.advance(tasks[shard]))  # type: ignore[attr-defined]


def cluster_figures(
    store: ImageStore, samples: Samples, address: str | None
) -> dict[str, Any] | None:
    """What of a run only a cluster has; None without one."""
    if address is None:
        return None
    from golddiff.cluster import ShardedStore

    assert isinstance(store, ShardedStore)
    traffic = store.traffic
    return {
        "address": address,
        "shards": store.paths,
        "share": samples.share,
        "missing": store.missing,
        "bytes": {"sent": traffic.sent, "received": traffic.received, "once": traffic.given},
        "rounds": traffic.rounds,
    }
