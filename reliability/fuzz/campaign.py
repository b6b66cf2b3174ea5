"""All targets by name, and counts of the outcomes of their inputs."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from golddiff.system.markdown import markdown_table
from reliability.fuzz.target import Examiner, Outcome, Target


def all_targets() -> list[Target]:
    """The targets of all readers."""
    from reliability.fuzz import folders, images, networks, saved_files, stores

    return [
        *images.targets(),
        *folders.targets(),
        *networks.targets(),
        *stores.targets(),
        *saved_files.targets(),
    ]


def target_named(name: str) -> Target:
    """The target of this name.

    Raises:
        KeyError: no target has this name.
    """
    return {target.name: target for target in all_targets()}[name]


@dataclass
class Tally:
    """Outcomes of the inputs of a reader.

    Attributes:
        outcomes: number of inputs by kind of outcome.
        seconds: time spent.
        findings: one finding of each kind, by digest: kind, detail, and the input in hex.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    findings: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return sum(self.outcomes.values())

    def add(self, outcome: Outcome, data: bytes) -> None:
        """Count an outcome; of findings that differ only in digits, keep the first."""
        self.outcomes[outcome.kind] += 1
        if outcome.found:
            pattern = "".join(c for c in outcome.detail[:80] if not c.isdigit())
            key = hashlib.sha256(f"{outcome.kind} {pattern}".encode()).hexdigest()[:12]
            finding = {"kind": outcome.kind, "detail": outcome.detail, "input": data[:65536].hex()}
            self.findings.setdefault(key, finding)

    def examine(self, examiner: Examiner, data: bytes) -> Outcome:
        """Examine an input and count its outcome."""
        start = time.perf_counter()
        outcome = examiner.examine(data)
        self.seconds += time.perf_counter() - start
        self.add(outcome, data)
        return outcome

    def as_dict(self) -> dict[str, Any]:
        """The tally as a JSON object."""
        return {
            "inputs": self.inputs,
            "outcomes": dict(self.outcomes),
            "seconds": round(self.seconds, 1),
            "findings": self.findings,
        }

    @classmethod
    def of(cls, body: dict[str, Any]) -> Tally:
        """The tally of a JSON object."""
        return cls(Counter(body["outcomes"]), float(body["seconds"]), dict(body["findings"]))


def table(tallies: dict[str, Tally]) -> str:
    """A Markdown table of counts by reader, as in ``docs/results/reliability.md``."""
    total = Tally(sum((tally.outcomes for tally in tallies.values()), Counter()))
    rows = []
    for name, tally in [*sorted(tallies.items()), ("all", total)]:
        read, refused = tally.outcomes["read"], tally.outcomes["refused"]
        counts = (tally.inputs, read, refused, tally.inputs - read - refused)
        rows.append([name, *(f"{count:,}" for count in counts)])
    return "\n".join(markdown_table(["reader", "inputs", "read", "refused", "findings"], rows))


def save(path: Path, tallies: dict[str, Tally]) -> None:
    """Write all tallies to a file, which is replaced at once."""
    body = {name: tally.as_dict() for name, tally in tallies.items()}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    temporary.replace(path)


def load(path: Path) -> dict[str, Tally]:
    """Read the tallies of a file; none if it does not exist."""
    if not path.is_file():
        return {}
    return {name: Tally.of(body) for name, body in json.loads(path.read_text("utf-8")).items()}
