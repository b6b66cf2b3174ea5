"""A store in shards on a Ray cluster of several machines. Needs the extra ``cluster``.

golddiff.cluster.connect("head:6379")
store = golddiff.cluster.ShardedStore.open("s3://bucket/photos")
golddiff.sample(golddiff.GoldDiff(golddiff.PCA(store)), 16)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

from golddiff.system.errors import ClusterError as ClusterError

if TYPE_CHECKING:
    from golddiff.cluster.joining import connect as connect
    from golddiff.cluster.sharding import build_shards as build_shards
    from golddiff.cluster.store import ShardedStore as ShardedStore

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={"store": ["ShardedStore"], "sharding": ["build_shards"], "joining": ["connect"]},
)
__all__ += ["ClusterError"]
