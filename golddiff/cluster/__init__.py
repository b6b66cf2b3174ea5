"""Past one machine: a store in shards on a Ray cluster. Needs the extra ``cluster``.

golddiff.cluster.connect("head:6379")
store = golddiff.cluster.ShardedStore.open("s3://bucket/photos")
golddiff.sample(golddiff.GoldDiff(golddiff.PCA(store)), 16)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from golddiff.system.errors import ClusterError as ClusterError

if TYPE_CHECKING:
    from golddiff.cluster.joining import connect as connect
    from golddiff.cluster.sharding import build_shards as build_shards
    from golddiff.cluster.store import ShardedStore as ShardedStore

_HOMES = {"ShardedStore": "store", "build_shards": "sharding", "connect": "joining"}

__all__ = ["ClusterError", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'golddiff.cluster' has no attribute {name!r}")
    return getattr(importlib.import_module(f"golddiff.cluster.{_HOMES[name]}"), name)
