"""The Ray actor around a shard's server, and the Ray task that merges some shards' answers."""

from __future__ import annotations

import os
import pickle
import socket
from functools import reduce
from typing import Any

from golddiff import __version__
from golddiff.errors import GoldDiffError, StoreError

# How an answer begins: done; something is needed first; the shard's files fail; the call is bad;
# this is another version of the package.
DONE, NEEDS, LOST, REFUSED, OTHER = "done", "needs", "lost", "refused", "other"


def pack(thing: Any) -> bytes:
    """What travels, as bytes that are counted. Both ends are one program, as with all of Ray."""
    return pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(packed: bytes) -> Any:
    """The thing again."""
    return pickle.loads(packed)


class Worker:
    """One shard's process. It opens the shard at its first call, and again when started again.

    Args:
        path: of the shard.
        threads: for the kernels.
        memory_limit: bytes of the shard's files that may be resident at a time.
        version: of the driver's golddiff; what travels means the same in that one alone.
    """

    def __init__(self, path: str, threads: int, memory_limit: float, version: str) -> None:
        self._path, self._threads, self._memory_limit = path, threads, memory_limit
        self._driver = version
        self._server: Any = None

    def run(self, method: str, packed: bytes) -> tuple[tuple[str, Any, int], bytes]:
        """Call a method of :class:`golddiff.cluster.server.ShardServer`.

        Returns:
            How it went, a word about it and this process's id; and what came out, packed.
        """
        pid = os.getpid()
        if self._driver != __version__:
            return (OTHER, f"{__version__} on {socket.gethostname()}", pid), b""

        import torch

        from golddiff.cluster.recipes import Needs
        from golddiff.system.parallel import use_threads

        # The number of threads belongs to the thread that sets it.
        if torch.get_num_threads() != self._threads:
            use_threads(self._threads)
        if self._server is None:
            from golddiff.cluster.server import ShardServer

            try:
                self._server = ShardServer(self._path, self._memory_limit)
            except (GoldDiffError, OSError) as error:
                return (LOST, str(error), pid), b""
        try:
            made = getattr(self._server, method)(*unpack(packed))
        except Needs as needs:
            return (NEEDS, needs.what, pid), b""
        except StoreError as error:
            return (LOST, str(error), pid), b""
        except GoldDiffError as error:
            return (REFUSED, str(error), pid), b""
        return (DONE, None, pid), pack(made)

    def alive(self) -> int:
        """Answers at once, also while ``run`` works."""
        return os.getpid()


def merged(*packed: bytes) -> bytes:
    """Partial posteriors, or pieces of averages, of some shards as one."""
    return pack(reduce(merge, map(unpack, packed)))


def merge(a: Any, b: Any) -> Any:
    """Two shards' partial posteriors, or their lists of pieces, as one."""
    if isinstance(a, list):
        return [mine.merge(theirs) for mine, theirs in zip(a, b, strict=True)]
    return a.merge(b)
