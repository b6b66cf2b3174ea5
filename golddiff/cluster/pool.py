"""The Ray actors of a store's shards: asking all of them, and what to do where none answers.

- A process that dies is started again by Ray, where there is a machine for it. Once it shows a sign
  of life it is asked again.
- One that works for long says so from a thread of its own, and is waited for.
- A shard is lost when its files cannot be opened, when its process dies again and again over one
  question, or when it shows no sign of life for as long as the pool's patience.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from golddiff import __version__
from golddiff.cluster.joining import ray_package
from golddiff.cluster.shard import DONE, KEPT, LOST, OTHER, Worker
from golddiff.system.arguments import check_count
from golddiff.system.errors import ArgumentError, ClusterError
from golddiff.system.residency import DEFAULT_LIMIT, Residency

DEATHS = 3  # of a shard's process over one question
DEAD = 6  # signs of life that Ray refuses for good, since the process cannot start
PULSE = 2.0  # seconds without an answer after which the silent are asked for a sign of life
AGAIN = 0.5  # seconds between two such questions

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
    """Bytes between the driver and the shards since the last :meth:`Pool.start_counting`.

    Attributes:
        sent: arguments of the steps' calls.
        received: their answers.
        calls: how many calls.
        rounds: how many times shards were asked at once.
        given: bytes that each machine fetches once: estimators with their masks, metrics.
    """

    sent: int = 0
    received: int = 0
    calls: int = 0
    rounds: int = 0
    given: int = 0


@dataclass
class _Asked:
    """How a question to one shard stands.

    Attributes:
        packed: its arguments.
        heard: when the shard last gave a sign of life, or was first asked.
        status, answer: references to how the call went and to what came out; None where the
            process is being started.
        pulse: reference to a sign of life that was asked for.
        after: when to ask for the next.
        deaths: of its process.
        refused: signs of life that Ray refused for good.
    """

    packed: bytes
    heard: float
    status: Any = None
    answer: Any = None
    pulse: Any = None
    after: float = 0.0
    deaths: int = 0
    refused: int = 0


class Pool:
    """The actors of a store's shards.

    Args:
        paths: of the shards.
        resources: of each process.
        allow_missing: go on without a shard that cannot come back, instead of stopping.
        patience: seconds that a shard may take to come back or to show a sign of life.

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
        cores = self.ray.cluster_resources().get("CPU", 1) / len(paths)
        threads = resources.threads or max(1, int(resources.num_cpus or cores))
        # The driver asks again itself, where it can tell why.
        actor = self.ray.remote(concurrency_groups={"pulse": 1})(Worker).options(
            num_cpus=resources.num_cpus or 0,
            num_gpus=resources.num_gpus,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        limit = resources.memory_limit
        self._actors = [actor.remote(path, threads, limit, __version__) for path in paths]

    @property
    def present(self) -> list[int]:
        """The shards that are not given up."""
        return [i for i, path in enumerate(self.paths) if path not in self.missing]

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """A reference to something that is the same for many questions; fetched once a machine.

        Args:
            key: stands for it; held as long as the reference.
            make: makes it, where there is none.
        """
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

        Args:
            method: of :class:`golddiff.cluster.shard.ShardServer`.
            arguments: the same for all, or what a shard is given.
            once: references to what comes before them (:meth:`once`).
            shards: which; None: all that are there.

        Yields:
            Shards and their answers, in the order of the shards, without those that are given up.

        Raises:
            ClusterError: a shard is lost, and none may be missing; another version of golddiff
                where one runs.
            ArgumentError: a shard refuses the call.
        """
        wanted = [s for s in self.present if shards is None or s in shards]
        self.traffic.rounds += 1
        left, answers = list(wanted), {}
        for shard, answer in self._answers(method, arguments, list(once), wanted):
            answers[shard] = answer
            while left and (left[0] in answers or self.paths[left[0]] in self.missing):
                if (made := answers.pop(left.pop(0), None)) is not None:
                    self.traffic.received += len(made[1])
                    yield made[0], pickle.loads(made[1])
        if len(self.missing) == len(self.paths):
            raise ClusterError("cluster: every shard of the store is lost")

    def _answers(
        self, method: str, arguments: Arguments, once: list[Any], shards: Sequence[int]
    ) -> Iterator[tuple[int, tuple[int, bytes] | None]]:
        """Each shard with its packed answer as they come; None where it is given up."""
        same = None if callable(arguments) else pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL)
        asked: dict[int, _Asked] = {}

        def send(shard: int) -> None:
            one = asked[shard]
            call = self._actors[shard].ask.options(num_returns=2)
            one.status, one.answer = call.remote(method, one.packed, once)
            self.traffic.sent += len(one.packed)
            self.traffic.calls += 1

        for shard in shards:
            packed = same
            if packed is None:
                assert callable(arguments)
                packed = pickle.dumps(arguments(shard), pickle.HIGHEST_PROTOCOL)
            asked[shard] = _Asked(packed, time.monotonic())
            send(shard)
        while asked:
            self._ask_the_silent(asked)
            waiting = {one.status: s for s, one in asked.items() if one.status is not None}
            waiting |= {one.pulse: s for s, one in asked.items() if one.pulse is not None}
            ready: list[Any] = []
            if waiting:
                ready, _ = self.ray.wait(list(waiting), num_returns=1, timeout=AGAIN)
            else:
                time.sleep(AGAIN)
            for ref in ready:
                shard = waiting[ref]
                one = asked[shard]
                try:
                    if ref is one.pulse:
                        again = self._alive(shard, one)
                        if again:
                            send(shard)
                    elif (answer := self._answered(shard, one)) is not None:
                        del asked[shard]
                        if method == "posterior":
                            self.on_answer(shard)
                        yield shard, (shard, answer)
                except _Lost as lost:
                    del asked[shard]
                    self._lose(shard, str(lost))
                    yield shard, None
            for shard, one in list(asked.items()):
                if time.monotonic() - one.heard > self.patience:
                    del asked[shard]
                    self._lose(
                        shard,
                        f"no sign of life for {self.patience:g} s (or no machine has the "
                        "resources that were asked for)",
                    )
                    yield shard, None

    def _ask_the_silent(self, asked: dict[int, _Asked]) -> None:
        now = time.monotonic()
        for shard, one in asked.items():
            due = one.status is None or now - one.heard > PULSE
            if due and one.pulse is None and now >= one.after:
                actor = self._actors[shard]
                one.pulse = actor.alive.options(concurrency_group="pulse").remote()

    def _answered(self, shard: int, one: _Asked) -> bytes | None:
        """The packed answer; None where the process died."""
        status, answer, one.status, one.answer = one.status, one.answer, None, None
        try:
            state, word, pid = self.ray.get(status)
            packed: bytes = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            raise ClusterError(
                f"cluster: shard {self.paths[shard]} failed: {_last_line(error)}"
            ) from error
        except self.ray.exceptions.RayError:
            return None  # a sign of life is awaited
        one.heard = time.monotonic()
        self._note(shard, pid)
        if state == LOST:
            raise _Lost(word)
        if state == OTHER:
            raise ClusterError(
                f"cluster: shard {self.paths[shard]} runs golddiff {word}, here is {__version__}; "
                "install one version everywhere"
            )
        if state != DONE:
            raise ArgumentError(f"shard {self.paths[shard]}: {word}")
        return packed

    def _alive(self, shard: int, one: _Asked) -> bool:
        """What a sign of life says: whether the shard is to be asked again."""
        pulse, one.pulse = one.pulse, None
        one.after = time.monotonic() + AGAIN
        try:
            pid = self.ray.get(pulse)
        except self.ray.exceptions.ActorDiedError as error:
            one.refused += 1
            if one.refused >= DEAD:
                raise _Lost(f"its process cannot start ({_last_line(error)})") from error
            return False
        except self.ray.exceptions.RayError:
            return False  # not yet
        one.heard, one.refused = time.monotonic(), 0
        if one.status is not None:
            return False  # at work
        one.deaths += 1
        if one.deaths > DEATHS:
            raise _Lost(f"its process died {one.deaths} times over one question")
        self._note(shard, pid)
        return True

    def _note(self, shard: int, pid: int) -> None:
        path = self.paths[shard]
        if self.pids.setdefault(path, pid) != pid:
            log.warning("shard %s was started again, and the step done again", path)
        self.pids[path] = pid

    def _lose(self, shard: int, why: str) -> None:
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
        if self.ray.is_initialized():
            for actor in self._actors:
                self.ray.kill(actor)
        self._actors = []


class _Lost(Exception):  # noqa: N818  a word from within, no error of its own
    """A shard cannot come back; says why."""


def _last_line(error: Exception) -> str:
    """What an error of Ray's says in the end, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
