"""Compares paths on random cases and collects the largest error of each."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reliability.numbers.cases import random_case, random_store
from reliability.numbers.paths import PATHS

CASES_A_STORE = 6
# Largest allowed errors of near and far queries, relative to the largest value of the images.
TOLERANCE_NEAR, TOLERANCE_FAR = 1e-3, 5e-3


@dataclass
class Worst:
    """The largest errors of a path.

    Attributes:
        cases: number of cases.
        near: the largest error for queries that are noisy images.
        far: the largest error for queries that are pure noise.
        where: description of the case with the largest error.
    """

    cases: int = 0
    near: float = 0.0
    far: float = 0.0
    where: str = ""

    @property
    def found(self) -> bool:
        """Whether an error is above its tolerance, or not a number."""
        return not (self.near < TOLERANCE_NEAR and self.far < TOLERANCE_FAR)


@dataclass
class Report:
    """The largest errors by path, and the number of cases."""

    cases: int = 0
    paths: dict[str, Worst] = field(default_factory=dict)


def compare(
    cases: int, seed: int, report: Report | None = None, only: Sequence[str] | None = None
) -> Report:
    """Compare further cases; a case is one path at one noise level over one store.

    Args:
        cases: minimum number of cases.
        seed: seed of all random choices.
        report: report to extend; None starts a new one.
        only: names of ``PATHS`` to run on every store; None runs all with their probabilities.
    """
    report = Report() if report is None else report
    paths = list(PATHS.values()) if only is None else [(PATHS[name][0], 1.0) for name in only]
    rng = np.random.default_rng(seed)
    goal = report.cases + cases
    with tempfile.TemporaryDirectory() as folder:
        number = 0
        while report.cases < goal:
            number += 1
            kind, store = random_store(rng, Path(folder) / f"store{number}")
            for _ in range(CASES_A_STORE):
                case = random_case(rng, kind, store)
                for path, probability in paths:
                    if rng.random() >= probability:
                        continue
                    for name, error in path(rng, case):
                        where = f"{kind}, {store.n} x {store.shape}, sigma {case.sigma:.4g}"
                        _record(report, name, error, case.near, where)
    return report


def _record(report: Report, name: str, error: float, near: bool, where: str) -> None:
    worst = report.paths.setdefault(name, Worst())
    worst.cases += 1
    report.cases += 1
    if error > max(worst.near, worst.far):
        worst.where = where
    if near:
        worst.near = max(worst.near, error)
    else:
        worst.far = max(worst.far, error)
