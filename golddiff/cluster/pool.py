"""The Ray actors of a store's shards: asking all of them, and what to do where none answers.

Ray starts a process that died again and gives it its call once more. A shard is lost when its files
cannot be opened, when its process dies again and again over one call, or when it gives no sign of
life for as long as the pool's patience; one that works for long gives them from another thread.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from golddiff import __version__
from golddiff.cluster.joining import ray_package
from golddiff.cluster.shard import KEPT, Worker
from golddiff.cluster.wire import pack, unpack
from golddiff.system.arguments import check_count
from golddiff.system.errors import ArgumentError, ClusterError, GoldDiffError, StoreError
from golddiff.system.residency import DEFAULT_LIMIT, Residency

DEATHS = 4  # of a shard's process over one call
SILENCE = 2.0  # seconds after which a shard is asked for a sign of life
WAIT = 0.5  # seconds for answers, before signs of life are looked for

Arguments = Callable[[int], tuple[Any, ...]] | tuple[Any, ...]

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
        if self.threads is not None:
            check_count("threads", self.threads)


@dataclass
class Traffic:
    """Bytes between the driver and the shards since the last :meth:`Pool.start_counting`."""

    sent: int = 0  # arguments of the steps' calls
    received: int = 0  # their answers
    calls: int = 0  # how many calls
    rounds: int = 0  # how many times shards were asked at once
    given: int = 0  # bytes that each machine fetches once: estimators with their masks, metrics


@dataclass
class _Waiting:
    """A shard that has not answered yet."""

    shard: int  # its number
    heard: float  # when it last gave a sign of life, or was asked
    pids: set[int] = field(default_factory=set)  # of the processes that gave one


class Pool:
    """The actors of a store's shards.

    Args:
        paths: of the shards.
        resources: of each process.
        allow_missing: go on without a shard that cannot come back, instead of stopping.
        patience: seconds that a shard may take to come back or to give a sign of life.

    Attributes:
        missing: paths of shards given up, and why.
        traffic: what was sent and received.
        on_answer: called with the shard's number whenever one has weighed its part of a step.
        pids: by path, of each shard's process, once it has answered.
        paths, patience: as given.
    """

    def __init__(
        self, paths: Sequence[str], resources: Resources, allow_missing: bool, patience: float
    ) -> None:
        self.ray = ray_package()
        self.paths = list(paths)
        self._allow_missing, self.patience = allow_missing, patience
        self.missing: dict[str, str] = {}
        self.traffic = Traffic()
        self.on_answer: Callable[[int], None] = lambda shard: None
        self.pids: dict[str, int] = {}
        self._once: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
        self._heartbeats: dict[int, Any] = {}  # by shard, that were asked for
        cores = self.ray.cluster_resources().get("CPU", 1) / len(paths)
        threads = resources.threads or max(1, int(resources.num_cpus or cores))
        actor = self.ray.remote(concurrency_groups={"heartbeat": 1})(Worker).options(
            num_cpus=resources.num_cpus or 0,
            num_gpus=resources.num_gpus,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
        )
        limit = resources.memory_limit
        self._start: Callable[[int], Any] = lambda shard: actor.remote(
            self.paths[shard], threads, limit, __version__
        )
        self._actors = {shard: self._start(shard) for shard in range(len(paths))}

    @property
    def present(self) -> list[int]:
        """The shards that are not given up."""
        return [i for i, path in enumerate(self.paths) if path not in self.missing]

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """A reference to what ``make`` makes, for many questions; fetched once a machine."""
        name: Any = key
        try:
            hash(key)
        except TypeError:
            name = id(key)
        if name not in self._once:
            while len(self._once) >= KEPT:
                self._once.popitem(last=False)
            # Ray's own pickle knows classes of the user's script too.
            packed = importlib.import_module("ray.cloudpickle").dumps(make())
            self.traffic.given += len(packed)
            self._once[name] = key, self.ray.put(packed)
        return self._once[name][1]

    def ask(
        self,
        method: str,
        arguments: Arguments,
        once: Sequence[Any] = (),
        shards: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Call a method of every shard's server, or of some; all at once.

        Arguments are the same for all or what a shard is given; before them come those of ``once``.
        Yields shards and their answers in the order of the shards, but for those given up.
        """
        left = [s for s in self.present if shards is None or s in shards]
        self.traffic.rounds += 1
        answers: dict[int, bytes | None] = {}
        for shard, answer in self._answers(method, arguments, list(once), list(left)):
            answers[shard] = answer
            while left and left[0] in answers:
                first = left.pop(0)
                packed = answers.pop(first)
                if packed is not None:
                    self.traffic.received += len(packed)
                    yield first, unpack(packed)
        if len(self.missing) == len(self.paths):
            raise ClusterError("cluster: every shard of the store is lost")

    def _answers(
        self, method: str, arguments: Arguments, once: list[Any], shards: Sequence[int]
    ) -> Iterator[tuple[int, bytes | None]]:
        """Each shard with its packed answer as they come; None where it is given up."""
        same = None if callable(arguments) else pack(arguments)
        asked: dict[Any, _Waiting] = {}
        for shard in shards:
            packed = pack(arguments(shard)) if callable(arguments) else same
            assert packed is not None
            self.traffic.sent += len(packed)
            self.traffic.calls += 1
            if shard not in self._actors:
                self._actors[shard] = self._start(shard)
            call = self._actors[shard].ask.remote(method, packed, once)
            asked[call] = _Waiting(shard, time.monotonic())
        while asked:
            ready, _ = self.ray.wait(list(asked), timeout=WAIT)
            for call in ready:
                shard = asked.pop(call).shard
                answer = self._answer(shard, call)
                if answer is not None and method == "posterior":
                    self.on_answer(shard)
                yield shard, answer
            for call, waiting in list(asked.items()):
                self._take_heartbeat(waiting)
                why = self._given_up(waiting)
                if why is not None:
                    del asked[call]
                    self._end(waiting.shard)
                    self._lose(waiting.shard, why)
                    yield waiting.shard, None

    def _take_heartbeat(self, waiting: _Waiting) -> None:
        """Note a sign of life, or ask for one where there was none for a while."""
        shard, now = waiting.shard, time.monotonic()
        beat = self._heartbeats.get(shard)
        if beat is None and now - waiting.heard > SILENCE:
            alive = self._actors[shard].alive.options(concurrency_group="heartbeat")
            self._heartbeats[shard] = alive.remote()
        elif beat is not None and self.ray.wait([beat], timeout=0)[0]:
            del self._heartbeats[shard]
            with contextlib.suppress(self.ray.exceptions.RayError):  # the call fails too
                waiting.pids.add(self.ray.get(beat))
                waiting.heard = now

    def _given_up(self, waiting: _Waiting) -> str | None:
        """Why a shard is not waited for any more; None: it is."""
        if len(waiting.pids) > DEATHS:
            return f"its process died {DEATHS} times over one call"
        if time.monotonic() - waiting.heard > self.patience:
            return (
                f"no sign of life for {self.patience:g} s (or no machine has the resources that "
                "were asked for)"
            )
        return None

    def _answer(self, shard: int, call: Any) -> bytes | None:
        """The packed answer to a call that is over; None where the shard is given up."""
        path = self.paths[shard]
        try:
            pid, packed = self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, StoreError | OSError):
                self._lose(shard, str(cause))
                return None
            if isinstance(cause, ClusterError):
                raise ClusterError(f"cluster: shard {path} {cause}") from None
            if isinstance(cause, GoldDiffError):
                raise ArgumentError(f"shard {path}: {cause}") from None
            raise ClusterError(f"cluster: shard {path} failed: {_last_line(error)}") from error
        except self.ray.exceptions.RayError as error:
            self._lose(shard, f"its process cannot start ({_last_line(error)})")
            return None
        if self.pids.setdefault(path, pid) != pid:
            log.warning("shard %s was started again, and the step done again", path)
        self.pids[path] = pid
        made: bytes = packed
        return made

    def _lose(self, shard: int, why: str) -> None:
        """Give a shard up."""
        line = f"shard {self.paths[shard]} is lost: {why}"
        if not self._allow_missing:
            raise ClusterError(f"cluster: {line}")
        self.missing[self.paths[shard]] = why
        log.warning("%s; going on without it", line)

    def start_counting(self) -> None:
        """Set the traffic to zero."""
        self.traffic = Traffic()

    def close(self) -> None:
        """End the shards' processes."""
        for shard in list(self._actors):
            self._end(shard)

    def _end(self, shard: int) -> None:
        """End a shard's process, and with it the call that Ray would give it again."""
        actor, _ = self._actors.pop(shard), self._heartbeats.pop(shard, None)
        if self.ray.is_initialized():
            self.ray.kill(actor)


def _last_line(error: Exception) -> str:
    """What an error of Ray's says in the end, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
