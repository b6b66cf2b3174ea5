"""One Ray actor a shard: calls to all of them, answers as they come, and what to do on faults."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from golddiff.cluster.joining import ray_package
from golddiff.cluster.merging import Tree
from golddiff.cluster.worker import DONE, LOST, NEEDS, Worker, pack, unpack
from golddiff.errors import ArgumentError, ClusterError

TRIES = 3  # of one call, each in a process started again
QUESTIONS = 12  # that a shard may ask back during one call
LARGE = 100_000  # bytes, above which Ray keeps arguments in its object store anyway
PULSE = 2.0  # seconds without any answer after which the silent are asked whether they live

log = logging.getLogger("golddiff")

Arguments = Callable[[int], tuple[Any, ...]]


@dataclass(frozen=True)
class Resources:
    """What each shard's process has.

    Attributes:
        num_cpus: cores that Ray reserves for it; None: none, so that shards may be more than
            cores. Reserve some where other work runs or where the cluster grows on demand.
        num_gpus: GPUs, or parts of one, that Ray reserves for it.
        threads: for the kernels; None: ``num_cpus``, else the cluster's cores shared out.
    """

    num_cpus: float | None = None
    num_gpus: float = 0.0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= 0):
                raise ArgumentError(f"{name}: got {value!r}, expected a number of 0 or more")
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
    """

    def __init__(
        self, paths: Sequence[str], resources: Resources, allow_missing: bool, patience: float
    ) -> None:
        self._ray = ray_package()
        self.paths = list(paths)
        self._allow_missing, self._patience = allow_missing, patience
        self.missing: dict[int, str] = {}
        self.traffic = Traffic()
        self.provide: Callable[[int, tuple[Any, ...]], tuple[str, tuple[Any, ...]]] = _nothing
        self.on_answer: Callable[[int], None] = lambda shard: None
        self.pids: dict[int, int] = {}
        threads = resources.threads or _threads(self._ray, resources.num_cpus, len(paths))
        actor = self._ray.remote(concurrency_groups={"pulse": 1})(Worker).options(
            num_cpus=resources.num_cpus or 0,
            num_gpus=resources.num_gpus,
            max_restarts=-1,
            max_task_retries=TRIES,
            scheduling_strategy="SPREAD",
        )
        self._actors = [actor.remote(path, threads) for path in paths]
        self._tree = Tree(self._ray, self._fetched)
        self._big: dict[tuple[Any, ...], Any] = {}
        self._heard: dict[int, float] = {}
        self._pulses: dict[int, Any] = {}

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
        packed = self._answers(method, arguments)
        answers: list[Any] = [None] * len(self.paths)
        for shard, ref in packed.items():
            answers[shard] = self._fetched(ref)
        return answers

    def reduced(self, method: str, arguments: Arguments | tuple[Any, ...]) -> Any:
        """As :meth:`gather`, the answers merged in a tree as they come.

        Raises:
            ClusterError, ArgumentError: as :meth:`gather`.
        """
        for _ in range(TRIES):
            merging = self._tree.over(len(self.paths))
            try:
                self._answers(method, arguments, merging.add)
                return merging.result()
            except (self._ray.exceptions.RayError, ConnectionError) as error:
                # An answer lay on a node that died before it was merged: the step is done again.
                log.warning("merging failed (%s); the step is done again", _line(error))
        raise ClusterError("cluster: merging the shards' answers failed again and again")

    def call(self, shard: int, method: str, *arguments: Any) -> Any:
        """Call a method of one shard's server; None where the shard is given up.

        Raises:
            ClusterError, ArgumentError: as :meth:`gather`.
        """
        found = self._answers(method, lambda _: arguments, only=[shard])
        return self._fetched(found[shard]) if shard in found else None

    def tell(self, method: str, *arguments: Any) -> None:
        """Send something to every shard without waiting; one that loses it asks for it."""
        packed: Any = pack(arguments)
        self.traffic.sent += len(packed) * len(self.present)
        if len(packed) > LARGE:  # each machine fetches it once
            packed = self._ray.put(packed)
        for shard in self.present:
            self._actors[shard].run.options(num_returns=2).remote(method, packed)

    def close(self) -> None:
        """End the shards' processes."""
        if self._ray.is_initialized():
            for actor in self._actors:
                self._ray.kill(actor)
        self._actors = []

    def _fetched(self, ref: Any) -> Any:
        packed = self._ray.get(ref)
        self.traffic.received += len(packed)
        return unpack(packed)

    def _answers(
        self,
        method: str,
        arguments: Arguments | tuple[Any, ...],
        done: Callable[[int, Any], None] = lambda shard, ref: None,
        only: Sequence[int] | None = None,
    ) -> dict[int, Any]:
        """References to the packed answers; ``done`` is told of each as it comes, or None."""
        self.traffic.rounds += 1
        answers: dict[int, Any] = {}
        asked: dict[Any, tuple[int, Any]] = {}
        questions = dict.fromkeys(range(len(self.paths)), 0)
        for shard in self.missing:
            done(shard, None)

        same = None if callable(arguments) else pack(arguments)

        def ask(shard: int) -> None:
            packed = pack(arguments(shard)) if callable(arguments) else same
            assert packed is not None
            status, answer = self._send(shard, method, packed)
            asked[status] = shard, answer
            self._heard[shard] = time.monotonic()

        for shard in self.present if only is None else [s for s in only if s not in self.missing]:
            ask(shard)
        while asked:
            ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=PULSE)
            if not ready:
                for shard in self._silent([shard for shard, _ in asked.values()]):
                    asked = {ref: those for ref, those in asked.items() if those[0] != shard}
                    self._lose(
                        shard,
                        f"no sign of life for {self._patience:g} s (or no node has the resources "
                        "that were asked for)",
                    )
                    done(shard, None)
                continue
            shard, answer = asked.pop(ready[0])
            try:
                state, word, pid = self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                self._lose(shard, f"its process died {TRIES + 1} times ({_line(error)})")
                done(shard, None)
                continue
            self._note(shard, pid)
            if state == DONE:
                answers[shard] = answer
                done(shard, answer)
                if method == "posterior":
                    self.on_answer(shard)
            elif state == NEEDS and questions[shard] < QUESTIONS:
                questions[shard] += 1
                self._give(shard, word)
                ask(shard)
            elif state == LOST:
                self._lose(shard, word)
                done(shard, None)
            else:
                raise ArgumentError(f"shard {self.paths[shard]}: {word}")
        if len(self.missing) == len(self.paths):
            raise ClusterError("cluster: every shard of the store is lost")
        return answers

    def _send(self, shard: int, method: str, packed: bytes) -> tuple[Any, Any]:
        self.traffic.sent += len(packed)
        self.traffic.calls += 1
        status, answer = self._actors[shard].run.options(num_returns=2).remote(method, packed)
        return status, answer

    def _give(self, shard: int, what: tuple[Any, ...]) -> None:
        """Send what a shard asked for; calls of one actor keep their order."""
        method, given = self.provide(shard, what)
        packed: Any = pack(given)
        if what[0] == "queries":
            self.traffic.sent += len(packed)
        else:
            self.traffic.given += len(packed)
        if what[0] == "factor":  # large, and the same for all: each machine fetches it once
            if what not in self._big:
                self._big[what] = self._ray.put(packed)
            packed = self._big[what]
        self._actors[shard].run.options(num_returns=2).remote(method, packed)

    def _note(self, shard: int, pid: int) -> None:
        before = self.pids.get(shard)
        if before is not None and before != pid:
            log.warning("shard %s was started again, and the step done again", self.paths[shard])
        self.pids[shard] = pid

    def _silent(self, shards: Sequence[int]) -> list[int]:
        """Those that have neither answered nor said that they live for too long.

        A slow shard says so from a thread of its own while it works, and is let be.
        """
        for shard in shards:
            if shard not in self._pulses:
                pulse = self._actors[shard].alive.options(concurrency_group="pulse")
                self._pulses[shard] = pulse.remote()
        waiting = {self._pulses[shard]: shard for shard in shards}
        beaten, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        now = time.monotonic()
        for pulse in beaten:
            del self._pulses[waiting[pulse]]
            self._heard[waiting[pulse]] = now
        return [shard for shard in shards if now - self._heard[shard] > self._patience]

    def _lose(self, shard: int, why: str) -> None:
        line = f"shard {self.paths[shard]} is lost: {why}"
        if not self._allow_missing:
            raise ClusterError(f"cluster: {line}")
        self.missing[shard] = why
        log.warning("%s; going on without it", line)


def _threads(ray: Any, num_cpus: float | None, shards: int) -> int:
    share = num_cpus or ray.cluster_resources().get("CPU", 1) / shards
    return max(1, int(share))


def _nothing(shard: int, what: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    raise ClusterError(f"cluster: shard {shard} asks for {what}, which is not there")


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
