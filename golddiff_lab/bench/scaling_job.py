"""The options of ``golddiff bench scaling`` and their checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from golddiff.cli.command import option
from golddiff.cli.options import JsonPath, Threads
from golddiff.estimators.registry import MethodSettings, check_methods
from golddiff.system.errors import ArgumentError
from golddiff.system.files import PICTURES, check_writable
from golddiff_lab.arguments import STEPS, at_least, split_names

COMPARED = ("adaptive-optimal", "adaptive-pca", "golddiff-optimal", "golddiff-pca")
# Methods without masks; if only these are measured, the queries come from one of them too.
WITHOUT_MASKS = frozenset({"optimal", "golddiff-optimal", "adaptive-optimal"})


@dataclass(frozen=True)
class ScalingJob:
    """Options of ``golddiff bench scaling``."""

    data: str = option(
        "A store (golddiff bench enlarge builds large ones) or any source of golddiff index, with "
        "at least the largest number of images; smaller sets are its first images."
    )
    sizes: tuple[int, ...] = option(
        "Comma-separated numbers of images.", (10_000, 100_000, 1_280_000)
    )
    method: list[str] | None = option(
        f"Methods, repeated or comma-separated; default {', '.join(COMPARED)}.", None
    )
    batch: int = option("Images per step and per run.", 16, names=("--batch-size", "--batch"))
    repeats: int = option("Timed steps per noise level.", 3)
    seconds: float = option("Time limit for the timed steps of a level, in seconds.", 20.0)
    truth_queries: int = option("Number of queries at which errors are measured; 0: none.", 4)
    truth_seconds: float = option(
        "Approximate time limit for the full scans of one size and estimator, in seconds.", 1200.0
    )
    memory_limit: float = option("Bytes of a store's files that may be resident at a time.", 2e9)
    seed: int = option("Seed of noise, held-out images and random choices.", 0)
    threads: Threads = None
    fresh: bool = option("Ignore cached results of earlier runs.", False)
    settings: MethodSettings = field(default_factory=MethodSettings)
    plot: Path | None = option("Draw the results to this file (.png, .jpg, .webp).", None)
    json: JsonPath = None

    def check(self) -> None:
        """Check everything that does not depend on the data."""
        from golddiff.system.arguments import check_positive  # imports slowly

        at_least(self, batch=1, repeats=1, truth_queries=0, seed=0)
        for name in ("seconds", "truth_seconds", "memory_limit"):
            check_positive(name, getattr(self, name))
        counts = self.counts
        if len(set(counts)) < max(2, len(counts)) or min(counts) < 2:
            raise ArgumentError(
                f"sizes: got {self.sizes}, expected two or more different numbers, each 2 or more"
            )
        check_methods(self.methods, self.settings)
        if self.plot is not None:
            check_writable("plot", self.plot, PICTURES)

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of images in ascending order."""
        return tuple(sorted(self.sizes))

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return split_names(self.method or COMPARED)

    @property
    def masked(self) -> bool:
        """Whether any method needs masks."""
        return not WITHOUT_MASKS.issuperset(self.methods)

    @property
    def sigmas(self) -> list[float]:
        """The noise levels of the 10-step DDIM run."""
        from golddiff.noise import ddim_sigmas

        return ddim_sigmas(STEPS)

    @property
    def passing(self) -> str:
        """The method whose run supplies half of the queries."""
        return "golddiff-pca" if self.masked else "golddiff-optimal"
