"""The Ray actors of a store's shards: asking all of them, and what to do where none answers.

Ray starts a process that died again and gives it its call once more. A shard is lost when its files
cannot be opened, when Ray gives its process up, or when it gives no sign of life for as long as the
pool's patience; one that works for long gives them from another thread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from golddiff import __version__
from golddiff.cluster.joining import ray_package
from golddiff.cluster.shard import KEPT, Shard, pack, unpack
from golddiff.system.errors import ArgumentError, ClusterError, GoldDiffError, StoreError

RETRIES = 4  # of one call over which a shard's process died
SILENCE = 2.0  # seconds after which a shard is asked for a sign of life
WAIT = 0.5  # seconds for answers, before signs of life are looked for

log = logging.getLogger("golddiff")


@dataclass
class Traffic:
    """Bytes between the driver and the shards."""

    sent: int = 0  # arguments of the steps' calls
    received: int = 0  # their answers
    calls: int = 0  # how many calls
    rounds: int = 0  # how many times shards were asked at once
    given: int = 0  # bytes that each machine fetches once: estimators with their masks, metrics


class Pool:
    """The actors of a store's shards; arguments as of :meth:`golddiff.cluster.ShardedStore.open`.

    Attributes:
        missing: paths of shards given up, and why.
        traffic: what was sent and received.
        on_answer: called with the shard's number whenever one has weighed its part of a step.
        pids: by path, of each shard's process, once it has answered.
    """

    def __init__(
        self,
        paths: Sequence[str],
        allow_missing: bool,
        patience: float,
        num_cpus: float | None,
        num_gpus: float,
        threads: int | None,
        memory_limit: float,
    ) -> None:
        self.ray, self.paths = ray_package(), list(paths)
        self._allow_missing, self.patience = allow_missing, patience
        self._closed = False
        self.missing: dict[str, str] = {}
        self.traffic = Traffic()
        self.on_answer: Callable[[int], None] = lambda shard: None
        self.pids: dict[str, int] = {}
        self._once: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
        self._heartbeats: dict[int, Any] = {}  # by shard, that were asked for
        self._heard: dict[int, float] = {}  # when each last gave a sign of life, or was asked
        cores = self.ray.cluster_resources().get("CPU", 1) / len(paths)
        threads = threads or max(1, int(num_cpus or cores))
        actor = self.ray.remote(concurrency_groups={"heartbeat": 1})(Shard).options(
            num_cpus=num_cpus or 0,
            num_gpus=num_gpus,
            max_restarts=-1,
            max_task_retries=RETRIES,
            scheduling_strategy="SPREAD",
        )
        self._start: Callable[[int], Any] = lambda shard: actor.remote(
            self.paths[shard], memory_limit, threads, __version__
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
            packed = self.ray.cloudpickle.dumps(make())
            self.traffic.given += len(packed)
            self._once[name] = key, self.ray.put(packed)
        return self._once[name][1]

    def ask(
        self,
        method: str,
        arguments: Callable[[int], tuple[Any, ...]] = lambda shard: (),
        once: Sequence[Any] = (),
        shards: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Call a method of every shard, or of some; all at once.

        Arguments are what each shard is given; before them come those of ``once``. Yields shards
        and their answers in the order of the shards, but for those given up.
        """
        if self._closed:
            raise ClusterError("cluster: the store was closed; open it again")
        asked = [s for s in self.present if shards is None or s in shards]
        calls: dict[Any, int] = {}
        for shard in asked:
            packed = pack(arguments(shard))
            self.traffic.sent += len(packed)
            if shard not in self._actors:
                self._actors[shard] = self._start(shard)
            calls[self._actors[shard].ask.remote(method, packed, list(once))] = shard
            self._heard[shard] = time.monotonic()
        self.traffic.calls += len(calls)
        self.traffic.rounds += 1
        answers: dict[int, bytes | None] = {}  # packed; None of shards given up
        for shard in asked:
            while shard not in answers:
                answers |= self._next_answers(calls, method)
            answer = answers.pop(shard)
            if answer is not None:
                self.traffic.received += len(answer)
                yield shard, unpack(answer)
        if len(self.missing) == len(self.paths):
            raise ClusterError("cluster: every shard of the store is lost")

    def _next_answers(self, calls: dict[Any, int], method: str) -> dict[int, bytes | None]:
        """What has come within half a second, taken out of the calls; None of shards given up."""
        answers: dict[int, bytes | None] = {}
        for call in self.ray.wait(list(calls), timeout=WAIT)[0]:
            shard = calls.pop(call)
            answers[shard] = self._answer(shard, call)
            if answers[shard] is not None and method == "posterior":
                self.on_answer(shard)
        for call, shard in list(calls.items()):
            if self._silence(shard) > self.patience:
                del calls[call]
                self._end(shard)
                self._lose(
                    shard,
                    f"no sign of life for {self.patience:g} s (or no machine has the resources "
                    "that were asked for)",
                )
                answers[shard] = None
        return answers

    def _silence(self, shard: int) -> float:
        """Seconds since a sign of life; one is asked for where there was none for a while."""
        now, beat = time.monotonic(), self._heartbeats.get(shard)
        if beat is None and now - self._heard[shard] > SILENCE:
            # Not asked again of a process that died: the next sign of life is asked for anyway.
            alive = self._actors[shard].alive.options(
                concurrency_group="heartbeat", max_task_retries=0
            )
            self._heartbeats[shard] = alive.remote()
        elif beat is not None and self.ray.wait([beat], timeout=0)[0]:
            del self._heartbeats[shard]
            with contextlib.suppress(self.ray.exceptions.RayError):  # the call fails too
                self.ray.get(beat)
                self._heard[shard] = now
        return now - self._heard[shard]

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
            self._lose(shard, f"its process cannot go on ({_last_line(error)})")
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

    def close(self) -> None:
        """End the shards' processes."""
        self._closed = True
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
