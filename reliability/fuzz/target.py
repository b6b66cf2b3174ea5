"""A reader under test: its valid inputs, their mutations, and the allowed outcomes."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from golddiff.evaluation.peak_memory import peak_memory
from golddiff.system.errors import GoldDiffError
from reliability.fuzz.mutate import Mutation, mutated
from reliability.fuzz.watch import watched

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Target:
    """A reader under test.

    Attributes:
        name: name of the reader.
        seeds: makes small valid inputs.
        read: reads an input, given an empty folder for files.
        mutations: mutations of its format, used beside mutations of bytes.
        refuses: exceptions that it may raise.
        floor: bytes of memory that any input may take.
        multiple: further bytes of memory for each byte of the input.
        general: whether mutations of bytes are useful; not for bundles.
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
        """A mutated input."""
        try:
            return self._damaged(rng, data, others)
        except Exception:  # mutations of a format may fail on damaged input
            return mutated(rng, data, others) if self.general else others[0]

    def _damaged(self, rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        if self.mutations and (not self.general or rng.random() < 0.5):
            for _ in range(rng.choice((1, 1, 2, 3))):
                data = rng.choice(self.mutations)(rng, data)
            return data
        return mutated(rng, data, others)


@dataclass(frozen=True)
class Outcome:
    """The outcome of an input.

    Attributes:
        kind: "read", "refused", or a finding: "raised", "opened or ran", "memory".
        detail: message that describes the finding.
    """

    kind: str
    detail: str = ""

    @property
    def found(self) -> bool:
        """Whether the outcome is a finding."""
        return self.kind not in ("read", "refused")


class Examiner:
    """Reads inputs with a target and returns their outcomes.

    Args:
        target: the reader; its seeds are read first to complete lazy imports.
        folder: folder for files, emptied before each input.

    Raises:
        AssertionError: a seed is not read.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.seeds = target.seeds()
        for _ in range(2):  # the second pass imports nothing
            for seed in self.seeds:
                outcome = self._outcome(seed, watch=False)
                assert outcome.kind == "read", f"{target.name}: a valid input gave {outcome}"

    def examine(self, data: bytes) -> Outcome:
        """Read one input."""
        return self._outcome(data, watch=True)

    def _outcome(self, data: bytes, *, watch: bool) -> Outcome:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        detail = ""
        with peak_memory() as peak, watched(self.folder) as events, warnings.catch_warnings():
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
            actions = list(events)
        # Elsewhere the system cannot reset the peak, which then says nothing about this input.
        used = peak.bytes - peak.before if peak.kind == "resident" else 0
        allowed = self.target.floor + self.target.multiple * len(data)
        if watch and actions:
            return Outcome("opened or ran", "; ".join(actions)[:500])
        if watch and used > allowed:
            return Outcome("memory", f"{used / MEGABYTE:.0f} MB for {len(data):,} bytes")
        return Outcome(kind, detail)
