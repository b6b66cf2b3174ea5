"""Inputs drawn by hypothesis: edges and repetitions sooner than chance, none drawn twice."""

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
    """A sound input with a few places changed, or damaged as its format is, once to four times.

    The second by a seed that is drawn: to draw each of its decisions takes longer than reading.
    """
    data = draw(st.sampled_from(seeds))
    if not target.general or draw(st.booleans()):
        rng = random.Random(draw(st.integers(0, 2**64)))
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = target.damage(rng, data, seeds)
        return data
    changes = st.tuples(st.sampled_from(CHANGES), st.integers(0, len(data)), st.binary(max_size=8))
    for way, at, new in draw(st.lists(changes, min_size=1, max_size=6)):
        gone = {"put": len(new), "insert": 0, "remove": 8, "cut": len(data)}[way]
        data = data[:at] + (b"" if way in ("remove", "cut") else new) + data[at + gone :]
    return data


def drawn(examiner: Examiner, inputs: int, seed: int, report: Report) -> None:
    """Give a reader so many inputs.

    Args:
        examiner: of the reader.
        inputs: how many.
        seed: of hypothesis.
        report: counts them.
    """
    round_ = 0
    while report.tally.inputs < inputs:
        # Hypothesis ends by itself where it believes to have seen all: begun anew it goes on.
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
