"""Merging the shards' answers in a tree whose shape does not depend on which shard is quick.

Up to ``FAN`` shards the driver merges neighbours as soon as both have answered. Above, each group
of ``FAN`` neighbours is merged by a Ray task as soon as the group has answered, so that the driver
receives at most ``FAN`` answers however many shards there are, and a slow shard holds up its own
group alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from golddiff.cluster.worker import merge, merged

FAN = 8


Fetched = Callable[[Any], Any]


class Tree:
    """Makes the merging of each step.

    Args:
        ray: the package.
        fetched: brings an answer here.
    """

    def __init__(self, ray: Any, fetched: Fetched) -> None:
        self._task = ray.remote(merged).options(num_cpus=0)
        self._fetched = fetched

    def over(self, shards: int) -> Merging:
        """The merging of so many shards' answers."""
        if shards <= FAN:
            return Here(shards, self._fetched)
        return InGroups(shards, self._fetched, self._task)


class Merging(Protocol):
    """The answers of one step so far."""

    def add(self, shard: int, ref: Any) -> None:
        """An answer has come; None: the shard has none."""
        ...

    def result(self) -> Any:
        """Everything merged."""
        ...


class Here:
    """Merges neighbours in the driver as soon as both have answered."""

    def __init__(self, shards: int, fetched: Fetched) -> None:
        self._shards, self._fetched = shards, fetched
        self._waiting: dict[tuple[int, int], Any] = {}

    def add(self, shard: int, ref: Any) -> None:
        """See :class:`Merging`."""
        made, level, place, width = ref, 0, shard, self._shards
        if ref is not None:
            made = self._fetched(ref)
        while width > 1:
            beside = place ^ 1
            if beside < width:
                if (level, beside) not in self._waiting:
                    break
                other = self._waiting.pop((level, beside))
                made = _both(made, other) if place < beside else _both(other, made)
            level, place, width = level + 1, place // 2, -(-width // 2)
        self._waiting[level, place] = made

    def result(self) -> Any:
        """See :class:`Merging`."""
        (made,) = self._waiting.values()
        return made


class InGroups:
    """Merges groups of neighbours by Ray tasks."""

    def __init__(self, shards: int, fetched: Fetched, task: Any) -> None:
        self._fetched, self._task = fetched, task
        self._answers: dict[int, Any] = {}
        self._groups = [range(i, min(i + FAN, shards)) for i in range(0, shards, FAN)]
        self._merged: dict[int, Any] = {}

    def add(self, shard: int, ref: Any) -> None:
        """See :class:`Merging`."""
        self._answers[shard] = ref
        group = self._groups[shard // FAN]
        if all(other in self._answers for other in group):
            self._merged[shard // FAN] = self._submitted([self._answers[i] for i in group])

    def result(self) -> Any:
        """See :class:`Merging`."""
        refs = [self._merged[i] for i in range(len(self._groups))]
        while len(refs) > FAN:
            refs = [self._submitted(refs[i : i + FAN]) for i in range(0, len(refs), FAN)]
        last = Here(len(refs), self._fetched)
        for place, ref in enumerate(refs):
            last.add(place, ref)
        return last.result()

    def _submitted(self, refs: Sequence[Any]) -> Any:
        there = [ref for ref in refs if ref is not None]
        if len(there) < 2:
            return there[0] if there else None
        return self._task.remote(*there)


def _both(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return a if b is None else b
    return merge(a, b)
