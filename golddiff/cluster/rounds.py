"""One question to all shards: answers as they come, and what to do where none comes.

- A process that dies is started again by Ray, where there is a machine for it; once it shows a sign
  of life it is asked again. It opens its shard anew and asks back for what it lacks.
- One that works for long says so from a thread of its own, and is waited for.
- A shard is lost when its files cannot be opened, when its process dies again and again over one
  question, or when it shows no sign of life for as long as the pool's patience.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from golddiff import __version__
from golddiff.cluster.worker import DONE, LOST, NEEDS, OTHER, pack
from golddiff.errors import ArgumentError, ClusterError

if TYPE_CHECKING:
    from golddiff.cluster.pool import Pool

DEATHS = 3  # of a shard's process over one question
TRIES = 20  # to reach one that lives
DEAD = 6  # signs of life that Ray refuses for good, since the process cannot start
QUESTIONS = 12  # that a shard may ask back
PULSE = 2.0  # seconds without an answer after which the silent are asked for a sign of life
AGAIN = 0.5  # seconds between two calls to a process that is being started

Arguments = Callable[[int], tuple[Any, ...]]
Done = Callable[[int, Any], None]


@dataclass
class Standing:
    """How one shard stands in a round.

    Attributes:
        heard: when it last gave a sign of life, or was first asked.
        questions: that it asked back.
        deaths: of its process.
        tries: how many times it was asked.
        refused: how many signs of life Ray has refused for good in a row.
        status: reference to how its call went; None while it is being started.
        answer: reference to the answer.
        pulse: reference to a sign of life that was asked for.
        after: when to ask for the next one.
    """

    heard: float
    questions: int = 0
    deaths: int = 0
    tries: int = 0
    refused: int = 0
    status: Any = None
    answer: Any = None
    pulse: Any = None
    after: float = 0.0


class Round:
    """A question to some shards.

    Args:
        pool: their processes.
        method: of :class:`golddiff.cluster.server.ShardServer`.
        arguments: the same for all, or what a shard is given.
        done: called with a shard and its answer, or None where it is given up.
    """

    def __init__(
        self, pool: Pool, method: str, arguments: Arguments | tuple[Any, ...], done: Done
    ) -> None:
        self._pool, self._method, self._arguments = pool, method, arguments
        self._same = None if callable(arguments) else pack(arguments)
        self._done = done
        self._standing: dict[int, Standing] = {}
        self._answers: dict[int, Any] = {}

    def over(self, shards: Sequence[int]) -> dict[int, Any]:
        """References to the packed answers, once all have answered or are given up.

        Raises:
            ClusterError: a shard is lost, and none may be missing; another version of golddiff
                where one runs.
            ArgumentError: a shard refuses the call.
        """
        for shard in shards:
            self._standing[shard] = Standing(time.monotonic())
            self._ask(shard)
        while self._standing:
            self._feel()
            ready = self._wait()
            for shard, standing in list(self._standing.items()):
                if standing.status is not None and standing.status in ready:
                    self._answered(shard, standing)
                elif standing.pulse is not None and standing.pulse in ready:
                    self._beaten(shard, standing)
                if shard in self._standing and self._silence(standing) > self._pool.patience:
                    self._give_up(
                        shard,
                        f"no sign of life for {self._pool.patience:g} s (or no machine has the "
                        "resources that were asked for)",
                    )
        return self._answers

    def _ask(self, shard: int) -> None:
        packed = self._same
        if callable(self._arguments):
            packed = pack(self._arguments(shard))
        assert packed is not None
        standing = self._standing[shard]
        standing.tries += 1
        standing.status, standing.answer = self._pool.send(shard, self._method, packed)
        self._pool.traffic.sent += len(packed)
        self._pool.traffic.calls += 1

    def _wait(self) -> set[Any]:
        """The references that are ready, after at most ``PULSE`` seconds."""
        refs = [s.status for s in self._standing.values() if s.status is not None]
        refs += [s.pulse for s in self._standing.values() if s.pulse is not None]
        starting = any(s.status is None for s in self._standing.values())
        if not refs:
            time.sleep(AGAIN)
            return set()
        timeout = AGAIN if starting else PULSE
        ready, _ = self._pool.ray.wait(refs, num_returns=1, timeout=timeout)
        return set(ready)

    def _feel(self) -> None:
        """Ask those for a sign of life that are being started, or silent for a while."""
        now = time.monotonic()
        for shard, standing in self._standing.items():
            due = standing.status is None or self._silence(standing) > PULSE
            if due and standing.pulse is None and now >= standing.after:
                standing.pulse = self._pool.pulse(shard)

    @staticmethod
    def _silence(standing: Standing) -> float:
        return time.monotonic() - standing.heard

    def _answered(self, shard: int, standing: Standing) -> None:
        ref, standing.status = standing.status, None
        try:
            state, word, pid = self._pool.ray.get(ref)
        except self._pool.ray.exceptions.RayTaskError as error:
            raise ClusterError(
                f"cluster: shard {self._pool.paths[shard]} failed: {last_line(error)}"
            ) from error
        except self._pool.ray.exceptions.RayError:
            return  # it died: a sign of life is awaited
        standing.heard = time.monotonic()
        self._pool.note(shard, pid)
        if state == DONE:
            del self._standing[shard]
            self._answers[shard] = standing.answer
            self._done(shard, standing.answer)
            if self._method == "posterior":
                self._pool.on_answer(shard)
        elif state == NEEDS and standing.questions < QUESTIONS:
            standing.questions += 1
            self._pool.give(shard, word)
            self._ask(shard)
        elif state == LOST:
            self._give_up(shard, word)
        elif state == OTHER:
            raise ClusterError(
                f"cluster: shard {self._pool.paths[shard]} runs golddiff {word}, here is "
                f"{__version__}; install one version everywhere"
            )
        else:
            raise ArgumentError(f"shard {self._pool.paths[shard]}: {word}")

    def _beaten(self, shard: int, standing: Standing) -> None:
        ref, standing.pulse = standing.pulse, None
        standing.after = time.monotonic() + AGAIN
        try:
            pid = self._pool.ray.get(ref)
        except self._pool.ray.exceptions.ActorDiedError as error:
            standing.refused += 1
            if standing.refused >= DEAD:
                self._give_up(shard, f"its process cannot start ({last_line(error)})")
            return
        except self._pool.ray.exceptions.RayError:
            return  # not yet
        standing.heard, standing.refused = time.monotonic(), 0
        if standing.status is not None:
            return  # at work
        standing.deaths += pid != self._pool.pids.get(shard, pid)
        if standing.deaths > DEATHS or standing.tries >= TRIES:
            self._give_up(
                shard, f"asked {standing.tries} times, its process died {standing.deaths} times"
            )
            return
        if shard in self._pool.pids:
            self._pool.note(shard, pid)
        self._ask(shard)

    def _give_up(self, shard: int, why: str) -> None:
        del self._standing[shard]
        self._pool.lose(shard, why)
        self._done(shard, None)


def last_line(error: Exception) -> str:
    """What an error of Ray's says in the end, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
