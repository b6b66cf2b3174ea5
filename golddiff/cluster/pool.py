"""The Ray actors of a store's shards: parallel calls to all of them, and their failures.

Ray restarts a process that died and repeats its call. A shard is lost when its files cannot be
opened, when Ray stops restarting its process, or when it sends no heartbeat for ``patience``
seconds. A second thread of the actor sends heartbeats during long calls.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from golddiff import __version__
from golddiff.cluster.joining import ray_package
from golddiff.cluster.shard import CACHE_SIZE, Shard, pack
from golddiff.system.errors import ArgumentError, ClusterError, GoldDiffError, StoreError
from golddiff.system.parallel import keep_newest

RETRIES = 4  # retries of one call whose process died
SILENCE = 2.0  # seconds without an answer before a heartbeat is requested
WAIT = 0.5  # seconds to wait for answers between checks of heartbeats

log = logging.getLogger("golddiff")


@dataclass
class Traffic:
    """Counters of the traffic between the driver and the shards."""

    sent: int = 0  # bytes of arguments
    received: int = 0  # bytes of answers
    calls: int = 0  # number of calls
    rounds: int = 0  # number of rounds of parallel calls
    sent_once: int = 0  # bytes that each machine fetches once: estimators with their masks, metrics


class Pool:
    """The actors of a store's shards; arguments as in :meth:`golddiff.cluster.ShardedStore.open`.

    Attributes:
        missing: path of each lost shard, with the reason.
        traffic: counters of bytes and calls.
        identities: checksums by shard, which a restarted process must find again.
        on_answer: called with the shard's number at each answer to a ``posterior`` call.
        pids: process id by path, for shards that have answered.
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
        self.identities: dict[int, str] = {}
        self._references: dict[Any, Any] = {}
        self._heartbeats: dict[int, Any] = {}  # pending heartbeat call of each shard
        self._last_seen: dict[int, float] = {}  # time of each shard's last call or heartbeat
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
        """Numbers of the shards that are not lost."""
        return [i for i, path in enumerate(self.paths) if path not in self.missing]

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """A reference to ``make()``, cached by key; each machine fetches the object once."""
        reference = self._references.get(key)
        if reference is None:
            # cloudpickle also serialises classes of the user's script.
            packed = self.ray.cloudpickle.dumps(make())
            self.traffic.sent_once += len(packed)
            reference = self._references[key] = self.ray.put(packed)
            keep_newest(self._references, CACHE_SIZE)
        return reference

    def ask(
        self,
        method: str,
        arguments: Callable[[int], tuple[Any, ...]] = lambda shard: (),
        once: Sequence[Any] = (),
        shards: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Call a method of every shard, or of the given ones, in parallel.

        The references ``once`` precede each shard's own arguments. Yields each shard's number and
        answer in order, without those that are lost.
        """
        if self._closed:
            raise ClusterError("cluster: the store was closed; open it again")
        called = [s for s in self.present if shards is None or s in shards]
        calls: dict[Any, int] = {}
        for shard in called:
            packed = pack(arguments(shard))
            self.traffic.sent += len(packed)
            if shard not in self._actors:
                self._actors[shard] = self._start(shard)
            identity = self.identities.get(shard)
            calls[self._actors[shard].ask.remote(method, packed, list(once), identity)] = shard
            self._last_seen[shard] = time.monotonic()
        self.traffic.calls += len(calls)
        self.traffic.rounds += 1
        answers: dict[int, bytes | None] = {}  # packed; None for lost shards
        for shard in called:
            while shard not in answers:
                answers |= self._collect_answers(calls, method)
            answer = answers.pop(shard)
            if answer is not None:
                self.traffic.received += len(answer)
                yield shard, pickle.loads(answer)
        if len(self.missing) == len(self.paths):
            raise ClusterError("cluster: every shard of the store is lost")

    def _collect_answers(self, calls: dict[Any, int], method: str) -> dict[int, bytes | None]:
        """Remove and return the calls answered within ``WAIT`` seconds; None for lost shards."""
        answers: dict[int, bytes | None] = {}
        for call in self.ray.wait(list(calls), timeout=WAIT)[0]:
            shard = calls.pop(call)
            answers[shard] = self._answer(shard, call)
            if answers[shard] is not None and method == "posterior":
                self.on_answer(shard)
        for call, shard in list(calls.items()):
            if self._seconds_silent(shard) > self.patience:
                del calls[call]
                self._end(shard)
                self._lose(
                    shard,
                    f"no sign of life for {self.patience:g} s (or no machine has the resources "
                    "that were asked for)",
                )
                answers[shard] = None
        return answers

    def _seconds_silent(self, shard: int) -> float:
        """Seconds since the last heartbeat; requests one after ``SILENCE`` seconds."""
        now, beat = time.monotonic(), self._heartbeats.get(shard)
        if beat is None and now - self._last_seen[shard] > SILENCE:
            # No retries after a process died: a new heartbeat is requested anyway.
            alive = self._actors[shard].alive.options(
                concurrency_group="heartbeat", max_task_retries=0
            )
            self._heartbeats[shard] = alive.remote()
        elif beat is not None and self.ray.wait([beat], timeout=0)[0]:
            del self._heartbeats[shard]
            with contextlib.suppress(self.ray.exceptions.RayError):  # the call fails too
                self.ray.get(beat)
                self._last_seen[shard] = now
        return now - self._last_seen[shard]

    def _answer(self, shard: int, call: Any) -> bytes | None:
        """The packed answer of a finished call; None if the shard is lost."""
        path = self.paths[shard]
        try:
            pid, packed = self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, StoreError | OSError):
                self._lose(shard, str(cause))
                return None
            if isinstance(cause, ClusterError):
                raise ClusterError(f"cluster: shard {path}: {cause}") from None
            if isinstance(cause, GoldDiffError):
                raise ArgumentError(f"shard {path}: {cause}") from None
            raise ClusterError(f"cluster: shard {path} failed: {_last_line(error)}") from error
        except self.ray.exceptions.RayError as error:
            self._lose(shard, f"its process cannot go on ({_last_line(error)})")
            return None
        if self.pids.setdefault(path, pid) != pid:
            log.warning("shard %s was started again, and the step done again", path)
        self.pids[path] = pid
        return packed

    def _lose(self, shard: int, why: str) -> None:
        """Record a shard as lost; raises ClusterError unless missing shards are allowed."""
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
        """Kill a shard's process, so that Ray does not repeat its call."""
        actor, _ = self._actors.pop(shard), self._heartbeats.pop(shard, None)
        if self.ray.is_initialized():
            self.ray.kill(actor)


def _last_line(error: Exception) -> str:
    """The last line of a Ray error's message, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
