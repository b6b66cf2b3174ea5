"""The options of ``golddiff bench step`` and their checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from golddiff.cli.command import argument, option
from golddiff.cli.options import METHOD_NAMES, JsonPath, Threads
from golddiff.estimators.registry import MethodSettings, check_methods
from golddiff.system.errors import ArgumentError
from golddiff_lab.arguments import STEPS, at_least, split_names
from golddiff_lab.peers import PEERS, recognise

MAX_NOISE = 1e6  # largest noise level, far below where float32 squares lose meaning
OF_PEERS = ("mask_threshold", "variant", "k_min", "k_max", "patch_size", "boundary")


@dataclass(frozen=True)
class StepJob:
    """Options of ``golddiff bench step``."""

    store: Path = argument("A folder that golddiff index built.")
    method: list[str] | None = option(
        f"Methods, repeated or comma-separated: {METHOD_NAMES}. Default golddiff-pca.", None
    )
    peer: list[str] | None = option(
        "A checkout of another implementation, whose code is run: shangxinyi/GoldDiff, "
        "analytic-diffusion-studio, convolutional_diffusion or pspc, recognised by its files; or "
        "'faiss'. May be repeated.",
        None,
    )
    batch: int = option("Images per step.", 4, names=("--batch-size", "--batch"))
    repeats: int = option("Timed steps per noise level, after a warm-up step.", 5)
    seconds: float = option("Time limit for a side's timed steps at a level, in seconds.", 60.0)
    levels: tuple[float, ...] | None = option(
        "Comma-separated noise levels; default: those of 10-step DDIM, which three digits select.",
        None,
    )
    queries_from: str = option(
        "Queries: trajectory (states of a sampling run) or noised (noisy training images).",
        "trajectory",
    )
    truth_queries: int = option(
        "Number of queries at which errors to the full scan are measured; 0: none.", 4
    )
    limit: int | None = option("Use only this number of images, the first ones.", None)
    seed: int = option("Seed of noise and random choices.", 0)
    threads: Threads = None
    settings: MethodSettings = field(default_factory=MethodSettings)
    json: JsonPath = None

    def check(self) -> None:
        """Check everything that does not depend on the store."""
        from golddiff.system.arguments import check_positive  # imports slowly

        at_least(self, batch=1, repeats=1, truth_queries=0, limit=1)
        check_positive("seconds", self.seconds)
        if self.queries_from not in ("trajectory", "noised"):
            raise ArgumentError(
                f"queries_from: got {self.queries_from!r}, expected trajectory or noised"
            )
        for level in self.sigmas:
            if not 0 < level <= MAX_NOISE:
                raise ArgumentError(
                    f"levels: got {level}, expected numbers above 0, at most {MAX_NOISE:g}"
                )
        check_methods(self.methods, self.settings, OF_PEERS if self.peer else ())
        names = self.named
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError(f"peer: got {twice} twice")
        from golddiff_lab.peers.checkout import vp_timestep  # imports slowly

        for name in names[len(self.methods) :]:
            for sigma in self.sigmas if PEERS[name].vp_levels else ():
                vp_timestep(PEERS[name].title, sigma)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return split_names(self.method or ["golddiff-pca"])

    @property
    def sigmas(self) -> list[float]:
        """The noise levels; one that agrees with a DDIM level to three digits is replaced by it."""
        from golddiff.noise import ddim_sigmas

        steps = ddim_sigmas(STEPS)
        if self.levels is None:
            return steps
        named = (
            next((s for s in steps if abs(s - v) <= 1e-3 * s or f"{s:.3g}" == f"{v:.3g}"), v)
            for v in self.levels
        )
        return list(dict.fromkeys(named))

    @property
    def named(self) -> list[str]:
        """Names of the sides in order: methods, then peers."""
        return [*self.methods, *(recognise(peer)[0] for peer in self.peer or ())]

    @property
    def compared(self) -> int:
        """Number of queries at which errors are measured; 0 for no errors."""
        return min(self.truth_queries, self.batch)

    @property
    def reference(self) -> str:
        """Name of the side that the others are compared with: the first peer, if any."""
        return self.named[len(self.methods) if self.peer else 0]
