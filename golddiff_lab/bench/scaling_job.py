"""The options of ``golddiff bench scaling``, and what can be told of them before any work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from golddiff.cli.command import option
from golddiff.cli.options import JsonPath, Threads
from golddiff.cli.parse import parse_whole_numbers
from golddiff.estimators.registry import MethodSettings, check_methods
from golddiff.system.errors import ArgumentError
from golddiff.system.files import PICTURES, check_writable
from golddiff_lab.arguments import STEPS, at_least, split_names

COMPARED = ("adaptive-optimal", "adaptive-pca", "golddiff-optimal", "golddiff-pca")
# Where no method needs the masks, neither does the run that queries come from.
WITHOUT_MASKS = frozenset({"optimal", "golddiff-optimal", "adaptive-optimal"})


@dataclass(frozen=True)
class ScalingJob:
    """What to measure."""

    data: str = option(
        "A store (golddiff bench enlarge makes large ones), or what golddiff index takes, of at "
        "least the largest size: the smaller sets are its first images."
    )
    sizes: str = option("Numbers of images, with commas between.", "10000,100000,1280000")
    method: list[str] | None = option(
        f"Methods, repeated or with commas; default {', '.join(COMPARED)}.", None
    )
    batch: int = option(
        "Images of one step and of the whole run.", 16, names=("--batch-size", "--batch")
    )
    repeats: int = option("Timed steps a level.", 3)
    seconds: float = option("The timed steps of a level end when they took so long.", 20.0)
    truth_queries: int = option("Queries that errors are measured at; 0 for no errors.", 4)
    truth_seconds: float = option(
        "Time the full scans of a size and estimator may take, about.", 1200.0
    )
    memory_limit: float = option("Bytes of a store's files that may be resident at a time.", 2e9)
    seed: int = option("Of noise, held-out images and random picks.", 0)
    threads: Threads = None
    fresh: bool = option("Measure again what an earlier run has measured.", False)
    settings: MethodSettings = field(default_factory=MethodSettings)
    plot: Path | None = option("Draw it to this file (.png, .jpg, .webp).", None)
    json: JsonPath = None

    def check(self) -> None:
        """Everything that can be told without opening the data.

        Raises:
            ArgumentError: names the argument.
        """
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
        """The numbers of images, ascending."""
        return tuple(sorted(parse_whole_numbers("sizes", self.sizes)))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods' names."""
        return split_names(self.method or COMPARED)

    @property
    def masked(self) -> bool:
        """Whether any of them needs masks."""
        return not WITHOUT_MASKS.issuperset(self.methods)

    @property
    def sigmas(self) -> list[float]:
        """The noise levels of the 10-step DDIM run."""
        from golddiff.noise import ddim_sigmas

        return ddim_sigmas(STEPS)

    @property
    def passing(self) -> str:
        """The method whose run queries are taken from."""
        return "golddiff-pca" if self.masked else "golddiff-optimal"
