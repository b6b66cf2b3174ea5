"""The settings of ``golddiff bench scaling``, and what can be told of them before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from golddiff.estimators.registry import MethodSettings
from golddiff.noise import ddim_sigmas
from golddiff.system.errors import ArgumentError
from golddiff.system.residency import DEFAULT_LIMIT
from golddiff_lab.arguments import at_least, check_methods
from golddiff_lab.queries import STEPS, TRAJECTORY_OF

ENLARGED = "enlarged:"  # and a store or another source, of which copies are changed
SIZES = (10_000, 100_000, 1_280_000)
COMPARED = ("adaptive-optimal", "adaptive-pca", "golddiff-optimal", "golddiff-pca")
# Where no method needs the masks, neither does the run that queries come from.
WITHOUT_MASKS = frozenset({"optimal", "golddiff-optimal", "adaptive-optimal"})


@dataclass(frozen=True)
class ScalingJob:
    """What to measure.

    Attributes:
        data: one source whose first images are the smaller sets ("enlarged:PATH", a store, ...),
            or several stores.
        sizes: numbers of images; of several stores, their own.
        methods: names of ``METHODS``.
        settings: of the methods; each takes those that it has.
        batch: queries of a step, and images of the whole run.
        repeats: timed steps of a level, after one to warm up.
        seconds: that timing one level may take, about; a step that takes longer is timed with
            fewer queries, down to one. Ten times this for the whole run.
        truth_queries: how many queries errors are measured at; 0 for no errors.
        truth_seconds: that the full scans of one size and estimator may take, about; levels that
            need longer have fewer queries, or no error.
        memory_limit: of the stores (:meth:`golddiff.ImageStore.open`), bytes.
        seed: of noise, held-out images and draws.
        threads: to use; None for torch's own number.
        fresh: measure again what an earlier run has measured.
    """

    data: tuple[str, ...]
    sizes: tuple[int, ...] = SIZES
    methods: tuple[str, ...] = COMPARED
    settings: MethodSettings = field(default_factory=MethodSettings)
    batch: int = 16
    repeats: int = 3
    seconds: float = 20.0
    truth_queries: int = 4
    truth_seconds: float = 1200.0
    memory_limit: float = DEFAULT_LIMIT
    seed: int = 0
    threads: int | None = None
    fresh: bool = False

    def check(self) -> None:
        """Everything that can be told without opening the data.

        Raises:
            ArgumentError: names the argument.
        """
        if not self.data:
            raise ArgumentError("data: got none, expected a source (enlarged:PATH) or stores")
        at_least(self, batch=1, repeats=1, truth_queries=0, seed=0, threads=1)
        for name in ("seconds", "truth_seconds", "memory_limit"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ArgumentError(f"{name}: got {value}, expected a finite number above 0")
        if len(self.data) == 1 and len(set(self.sizes)) < 2:
            raise ArgumentError(
                f"sizes: got {self.sizes}, expected two or more numbers of images to compare"
            )
        if len(set(self.sizes)) < len(self.sizes) or min(self.sizes, default=2) < 2:
            raise ArgumentError(f"sizes: got {self.sizes}, expected different numbers, 2 or more")
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise ArgumentError(f"method: got {self.methods}, expected one or more, each once")
        check_methods(self.methods, self.settings)

    @property
    def sigmas(self) -> list[float]:
        """The noise levels of the 10-step DDIM run."""
        return ddim_sigmas(STEPS)

    @property
    def passing(self) -> str:
        """The method whose run queries are taken from."""
        return "golddiff-optimal" if WITHOUT_MASKS.issuperset(self.methods) else TRAJECTORY_OF
