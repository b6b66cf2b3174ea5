"""One Ray actor a shard: what they are given, what travels, and who is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from golddiff import __version__
from golddiff.cluster.joining import ray_package
from golddiff.cluster.merging import Tree
from golddiff.cluster.rounds import Arguments, Done, Round, last_line
from golddiff.cluster.worker import Worker, pack, unpack
from golddiff.errors import ArgumentError, ClusterError
from golddiff.store.residency import DEFAULT_LIMIT, Residency

LARGE = 100_000  # bytes, above which Ray keeps arguments in its object store anyway
MERGED_AGAIN = 3

log = logging.getLogger("golddiff")


@dataclass(frozen=True)
class Resources:
    """What each shard's process has.

    Attributes:
        num_cpus: cores that Ray reserves for it; None: none, so that shards may be more than
            cores. Reserve some where other work runs or where the cluster grows on demand.
        num_gpus: GPUs, or parts of one, that Ray reserves for it.
        threads: for the kernels; None: ``num_cpus``, else the cluster's cores shared out.
        memory_limit: bytes of its shard's files that may be resident at a time.
    """

    num_cpus: float | None = None
    num_gpus: float = 0.0
    threads: int | None = None
    memory_limit: float = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= 0):
                raise ArgumentError(f"{name}: got {value!r}, expected a number of 0 or more")
        Residency(self.memory_limit)  # raises where that is no limit
        if self.threads is not None and not (isinstance(self.threads, int) and self.threads >= 1):
            raise ArgumentError(f"threads: got {self.threads!r}, expected an integer of 1 or more")


@dataclass
class Traffic:
    """Bytes between the driver and the shards since the last :meth:`Pool.start_counting`.

    Attributes:
        sent: arguments of the steps' calls.
        received: their answers that came to the driver.
        calls: how many calls.
        rounds: how many times all shards were asked at once.
        histograms: how many counts of ``BINS`` numbers (:mod:`golddiff.cluster.search`) came back.
        given: bytes of what is told once: places and factors.
    """

    sent: int = 0
    received: int = 0
    calls: int = 0
    rounds: int = 0
    histograms: int = 0
    given: int = 0


class Pool:
    """The actors of a store's shards.

    Args:
        paths: of the shards.
        resources: of each process.
        allow_missing: go on without a shard that cannot come back, instead of stopping.
        patience: seconds that a shard may take to come back or to show a sign of life.

    Attributes:
        missing: shards given up, and why.
        traffic: what was sent and received.
        provide: gives what a shard asks for: the method that takes it and its arguments.
        on_answer: called with the shard's number whenever one has weighed its part of a step.
        pids: of each shard's process, once it has answered.
        patience, memory_limit: as given.
    """

    def __init__(
        self, paths: Sequence[str], resources: Resources, allow_missing: bool, patience: float
    ) -> None:
        self.ray = ray_package()
        self.paths = list(paths)
        self._allow_missing, self.patience = allow_missing, patience
        self.memory_limit = resources.memory_limit
        self.missing: dict[int, str] = {}
        self.traffic = Traffic()
        self.provide: Callable[[int, tuple[Any, ...]], tuple[str, tuple[Any, ...]]] = _nothing
        self.on_answer: Callable[[int], None] = lambda shard: None
        self.pids: dict[int, int] = {}
        threads = resources.threads or _threads(self.ray, resources.num_cpus, len(paths))
        # The driver asks again itself: Ray's own retries are used up before it notices that a
        # node is gone.
        actor = self.ray.remote(concurrency_groups={"pulse": 1})(Worker).options(
            num_cpus=resources.num_cpus or 0,
            num_gpus=resources.num_gpus,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        self._actors = [
            actor.remote(path, threads, resources.memory_limit, __version__) for path in paths
        ]
        self._tree = Tree(self.ray, self._fetched)
        self._large: dict[tuple[Any, ...], Any] = {}

    @property
    def present(self) -> list[int]:
        """The shards that are not given up."""
        return [shard for shard in range(len(self.paths)) if shard not in self.missing]

    @property
    def size(self) -> int:
        """How many shards there are, missing ones too."""
        return len(self.paths)

    def start_counting(self) -> None:
        """Set the traffic to zero."""
        self.traffic = Traffic()

    def gather(self, method: str, arguments: Arguments | tuple[Any, ...]) -> list[Any]:
        """Call a method of every shard's server.

        Args:
            method: of :class:`golddiff.cluster.server.ShardServer`.
            arguments: the same for all, or what a shard is given.

        Returns:
            An answer a shard; None for shards that are given up.

        Raises:
            ClusterError: a shard is lost, and none may be missing.
            ArgumentError: a shard refuses the call.
        """
        answers: list[Any] = [None] * len(self.paths)
        for shard, ref in self._round(method, arguments, self.present).items():
            answers[shard] = self._fetched(ref)
        return answers

    def reduced(self, method: str, arguments: Arguments | tuple[Any, ...]) -> Any:
        """As :meth:`gather`, the answers merged in a tree as they come.

        Raises:
            ClusterError, ArgumentError: as :meth:`gather`.
        """
        for _ in range(MERGED_AGAIN):
            merging = self._tree.over(len(self.paths))
            try:
                for shard in self.missing:
                    merging.add(shard, None)
                self._round(method, arguments, self.present, merging.add)
                return merging.result()
            except self.ray.exceptions.RayError as error:
                # An answer lay on a node that died before it was merged: the step is done again.
                log.warning("merging failed (%s); the step is done again", last_line(error))
        raise ClusterError("cluster: merging the shards' answers failed again and again")

    def call(self, shard: int, method: str, *arguments: Any) -> Any:
        """Call a method of one shard's server; None where the shard is given up.

        Raises:
            ClusterError, ArgumentError: as :meth:`gather`.
        """
        if shard in self.missing:
            return None
        found = self._round(method, arguments, [shard])
        return self._fetched(found[shard]) if shard in found else None

    def _round(
        self,
        method: str,
        arguments: Arguments | tuple[Any, ...],
        shards: Sequence[int],
        done: Done = lambda shard, ref: None,
    ) -> dict[int, Any]:
        self.traffic.rounds += 1
        answers = Round(self, method, arguments, done).over(shards)
        if len(self.missing) == len(self.paths):
            raise ClusterError("cluster: every shard of the store is lost")
        return answers

    def tell(self, method: str, *arguments: Any) -> None:
        """Send something to every shard without waiting; one that loses it asks for it."""
        packed: Any = pack(arguments)
        self.traffic.sent += len(packed) * len(self.present)
        if len(packed) > LARGE:  # each machine fetches it once
            packed = self.ray.put(packed)
        for shard in self.present:
            self.send(shard, method, packed)

    def send(self, shard: int, method: str, packed: Any) -> tuple[Any, Any]:
        """One call: references to how it went, and to the packed answer."""
        status, answer = self._actors[shard].run.options(num_returns=2).remote(method, packed)
        return status, answer

    def pulse(self, shard: int) -> Any:
        """A reference to the shard's process id, which it says even while it works."""
        return self._actors[shard].alive.options(concurrency_group="pulse").remote()

    def give(self, shard: int, what: tuple[Any, ...]) -> None:
        """Send what a shard asked for; calls of one actor keep their order."""
        method, given = self.provide(shard, what)
        packed: Any = pack(given)
        if what[0] == "queries":
            self.traffic.sent += len(packed)
        else:
            self.traffic.given += len(packed)
        if what[0] == "factor":  # large, and the same for all: each machine fetches it once
            if what not in self._large:
                self._large[what] = self.ray.put(packed)
            packed = self._large[what]
        self.send(shard, method, packed)

    def note(self, shard: int, pid: int) -> None:
        """A shard answers from a process."""
        before = self.pids.get(shard)
        if before is not None and before != pid:
            log.warning("shard %s was started again, and the step done again", self.paths[shard])
        self.pids[shard] = pid

    def lose(self, shard: int, why: str) -> None:
        """Give a shard up.

        Raises:
            ClusterError: none may be missing.
        """
        line = f"shard {self.paths[shard]} is lost: {why}"
        if not self._allow_missing:
            raise ClusterError(f"cluster: {line}")
        self.missing[shard] = why
        log.warning("%s; going on without it", line)

    def forget(self, kind: str) -> None:
        """Let go what shards were given of a kind; who asks again is given it anew."""
        self._large = {what: ref for what, ref in self._large.items() if what[0] != kind}

    def close(self) -> None:
        """End the shards' processes."""
        if self.ray.is_initialized():
            for actor in self._actors:
                self.ray.kill(actor)
        self._actors = []

    def _fetched(self, ref: Any) -> Any:
        packed = self.ray.get(ref)
        self.traffic.received += len(packed)
        return unpack(packed)


def _threads(ray: Any, num_cpus: float | None, shards: int) -> int:
    share = num_cpus or ray.cluster_resources().get("CPU", 1) / shards
    return max(1, int(share))


def _nothing(shard: int, what: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    raise ClusterError(f"cluster: shard {shard} asks for {what}, which is not there")
