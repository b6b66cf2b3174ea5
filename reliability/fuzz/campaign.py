"""The readers by name, and what came of their inputs."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from golddiff_lab.tables import markdown_table
from reliability.fuzz.target import Examiner, Outcome, Target


def all_targets() -> list[Target]:
    """Every reader."""
    from reliability.fuzz import folders, images, kept, networks, stores

    return [
        *images.targets(),
        *folders.targets(),
        *networks.targets(),
        *stores.targets(),
        *kept.targets(),
    ]


def target_named(name: str) -> Target:
    """One reader.

    Raises:
        KeyError: there is none of that name.
    """
    return {target.name: target for target in all_targets()}[name]


@dataclass
class Tally:
    """What came of a reader's inputs.

    Attributes:
        outcomes: how many were read, refused, found wanting.
        seconds: spent.
        findings: of each kind of finding, by its digest: what, and the input in hex.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    findings: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """How many there were."""
        return sum(self.outcomes.values())

    def add(self, outcome: Outcome, data: bytes) -> None:
        """Count one; of findings that read alike the first input is kept."""
        self.outcomes[outcome.kind] += 1
        if outcome.found:
            alike = "".join(c for c in outcome.detail[:80] if not c.isdigit())
            key = hashlib.sha256(f"{outcome.kind} {alike}".encode()).hexdigest()[:12]
            told = {"kind": outcome.kind, "detail": outcome.detail, "input": data[:65536].hex()}
            self.findings.setdefault(key, told)

    def examine(self, examiner: Examiner, data: bytes) -> Outcome:
        """Have an input read, and count what came of it."""
        start = time.perf_counter()
        outcome = examiner.examine(data)
        self.seconds += time.perf_counter() - start
        self.add(outcome, data)
        return outcome

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "inputs": self.inputs,
            "outcomes": dict(self.outcomes),
            "seconds": round(self.seconds, 1),
            "findings": self.findings,
        }

    @classmethod
    def of(cls, body: dict[str, Any]) -> Tally:
        """From JSON."""
        return cls(Counter(body["outcomes"]), float(body["seconds"]), dict(body["findings"]))


def table(tallies: dict[str, Tally]) -> str:
    """Counts by reader, as in ``docs/results/reliability.md``; an input that was found is one."""
    every = Tally(sum((tally.outcomes for tally in tallies.values()), Counter()))
    rows = []
    for name, tally in [*sorted(tallies.items()), ("all", every)]:
        read, refused = tally.outcomes["read"], tally.outcomes["refused"]
        counts = (tally.inputs, read, refused, tally.inputs - read - refused)
        rows.append([name, *(f"{count:,}" for count in counts)])
    return "\n".join(markdown_table(["reader", "inputs", "read", "refused", "findings"], rows))


def save(path: Path, tallies: dict[str, Tally]) -> None:
    """Write what was counted so far, whole."""
    body = {name: tally.as_dict() for name, tally in tallies.items()}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    temporary.replace(path)


def load(path: Path) -> dict[str, Tally]:
    """What was counted before."""
    if not path.is_file():
        return {}
    return {name: Tally.of(body) for name, body in json.loads(path.read_text("utf-8")).items()}
