"""So many cases, and the worst error by path."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reliability.numbers.cases import random_case, random_store
from reliability.numbers.paths import PATHS

CASES_A_STORE = 6
# Of the largest value of the images, what an error may be at queries near images and far from them.
ROOM_NEAR, ROOM_FAR = 1e-3, 5e-3


@dataclass
class Worst:
    """Errors of one path.

    Attributes:
        cases: compared.
        near: the largest error at queries that are images noised.
        far: the largest at queries that are noise alone.
        where: the case of the largest.
    """

    cases: int = 0
    near: float = 0.0
    far: float = 0.0
    where: str = ""

    @property
    def found(self) -> bool:
        """Whether that must not be."""
        return not (self.near < ROOM_NEAR and self.far < ROOM_FAR)


@dataclass
class Report:
    """Worst errors by path, and the cases so far."""

    cases: int = 0
    paths: dict[str, Worst] = field(default_factory=dict)


def compare(
    cases: int, seed: int, report: Report | None = None, only: Sequence[str] | None = None
) -> Report:
    """Compare so many cases more; a case is one path at one noise level over one store.

    Args:
        cases: how many, at least.
        seed: of all that is random.
        report: goes on with it; None: a new one.
        only: names of ``PATHS``, each tried every time; None: all, as often as they say.
    """
    report = Report() if report is None else report
    paths = list(PATHS.values()) if only is None else [(PATHS[name][0], 1.0) for name in only]
    rng = np.random.default_rng(seed)
    aim = report.cases + cases
    with tempfile.TemporaryDirectory() as place:
        number = 0
        while report.cases < aim:
            number += 1
            kind, store = random_store(rng, Path(place) / f"store{number}")
            for _ in range(CASES_A_STORE):
                case = random_case(rng, kind, store)
                for path, often in paths:
                    if rng.random() >= often:
                        continue
                    for name, error in path(rng, case):
                        _note(report, name, error, case.near, f"{kind}, {store.n} x {store.shape}, "
                              f"sigma {case.sigma:.4g}")  # fmt: skip
    return report


def _note(report: Report, name: str, error: float, near: bool, where: str) -> None:
    worst = report.paths.setdefault(name, Worst())
    worst.cases += 1
    report.cases += 1
    if error > max(worst.near, worst.far):
        worst.where = where
    if near:
        worst.near = max(worst.near, error)
    else:
        worst.far = max(worst.far, error)
