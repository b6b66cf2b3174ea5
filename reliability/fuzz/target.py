"""One reader under fire: what goes in, how it is damaged, and what must come of it."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from golddiff.system.errors import GoldDiffError
from reliability.fuzz.mutate import Mutation, mutated
from reliability.fuzz.watch import Peak, watched

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        name: of the reader.
        seeds: makes small sound inputs.
        read: reads an input in a folder of its own; returns or raises.
        mutations: of its own format, beside those of bytes in general.
        refuses: what it may raise.
        floor: bytes of memory that any input may take.
        multiple: of the input's size, on top.
        general: whether bytes in general are worth damaging; not where the input is a pack.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]
    mutations: tuple[Mutation, ...] = ()
    refuses: tuple[type[Exception], ...] = (GoldDiffError,)
    floor: int = 128 * MEGABYTE
    multiple: int = 100
    general: bool = True

    def damage(self, rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        """An input made from another."""
        try:
            return self._damaged(rng, data, others)
        except Exception:  # what is damaged already may be beyond taking apart
            return mutated(rng, data, others) if self.general else others[0]

    def _damaged(self, rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        if self.mutations and (not self.general or rng.random() < 0.5):
            for _ in range(rng.choice((1, 1, 2, 3))):
                data = rng.choice(self.mutations)(rng, data)
            return data
        return mutated(rng, data, others)


@dataclass(frozen=True)
class Outcome:
    """What came of one input.

    Attributes:
        kind: "read", "refused", or what was found: "raised", "opened or ran", "memory".
        detail: of what was found.
    """

    kind: str
    detail: str = ""

    @property
    def found(self) -> bool:
        """Whether that must not be."""
        return self.kind not in ("read", "refused")


class Examiner:
    """Gives one target inputs and tells what came of each.

    Args:
        target: the reader; its seeds are read first, so that what is imported lazily is there.
        folder: an empty folder of its own.

    Raises:
        AssertionError: a seed is not read.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.peak = Peak()
        self.seeds = target.seeds()
        for _ in range(2):  # the second time nothing is imported any more
            for seed in self.seeds:
                outcome = self._outcome(seed, watch=False)
                assert outcome.kind == "read", f"{target.name}: a sound input gave {outcome}"

    def examine(self, data: bytes) -> Outcome:
        """Read one input."""
        return self._outcome(data, watch=True)

    def _outcome(self, data: bytes, *, watch: bool) -> Outcome:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        detail = ""
        self.peak.start()
        with watched(self.folder) as events, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.target.read(data, self.folder)
                kind = "read"
            except self.target.refuses as error:
                kind, detail = "refused", str(error)[:200]
                if "\n" in str(error).strip():
                    kind, detail = "raised", f"a message of several lines: {str(error)[:200]!r}"
            except Exception as error:
                kind, detail = "raised", f"{type(error).__name__}: {str(error)[:300]}"
            ran = list(events)
        used, allowed = self.peak.bytes(), self.target.floor + self.target.multiple * len(data)
        if watch and ran:
            return Outcome("opened or ran", "; ".join(ran)[:500])
        if watch and used > allowed:
            took = f"{used / MEGABYTE:.0f} MB for {len(data):,} bytes"
            return Outcome("memory", took)
        return Outcome(kind, detail)
