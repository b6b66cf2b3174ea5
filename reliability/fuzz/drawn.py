"""Inputs drawn by hypothesis, which prefers edge cases and repetitions and avoids duplicates."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from reliability.fuzz.target import Examiner, Target
from reliability.fuzz.worker import Report

CHANGES = ("put", "insert", "remove", "cut")


@st.composite
def damaged(draw: st.DrawFn, target: Target, seeds: list[bytes]) -> bytes:
    """A valid input with a few changes of bytes, or one to four mutations of its format.

    Mutations use a random generator whose seed is drawn: drawing every choice would be slow.
    """
    data = draw(st.sampled_from(seeds))
    if not target.general or draw(st.booleans()):
        rng = random.Random(draw(st.integers(0, 2**64)))
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = target.damage(rng, data, seeds)
        return data
    changes = st.tuples(st.sampled_from(CHANGES), st.integers(0, len(data)), st.binary(max_size=8))
    for change, start, new in draw(st.lists(changes, min_size=1, max_size=6)):
        removed = {"put": len(new), "insert": 0, "remove": 8, "cut": len(data)}[change]
        inserted = b"" if change in ("remove", "cut") else new
        data = data[:start] + inserted + data[start + removed :]
    return data


def run_drawn(examiner: Examiner, inputs: int, seed: int, report: Report) -> None:
    """Run a reader on inputs drawn by hypothesis.

    Args:
        examiner: examiner of the reader.
        inputs: number of inputs.
        seed: seed of hypothesis.
        report: counts the outcomes.
    """
    round_ = 0
    while report.tally.inputs < inputs:
        # Hypothesis stops early once it finds no new inputs; another seed continues.
        _run(examiner, inputs, seed * 1000 + round_, report)
        round_ += 1


def _run(examiner: Examiner, inputs: int, seed: int, report: Report) -> None:
    @seeded(seed)
    @settings(
        max_examples=max(1, inputs - report.tally.inputs),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(examiner.target, examiner.seeds))
    def read(data: bytes) -> None:
        if report.tally.inputs < inputs:
            report.examine(examiner, data)

    read()
