"""The settings of ``golddiff bench step``, and what can be told of them before any work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from golddiff.errors import ArgumentError
from golddiff.noise import ddim_sigmas
from golddiff.registry import METHODS, MethodSettings
from golddiff_lab.peers import recognise

STEPS = 10
QUERIES_FROM = ("trajectory", "noised")


@dataclass(frozen=True)
class StepJob:
    """What to race.

    Attributes:
        store: folder of the store.
        methods: names of ``METHODS``.
        peers: checkouts, or "faiss".
        against: the side that ratios are taken to; None: the first peer, else the first method.
        settings: of the methods; each side takes those that it has.
        batch: queries of a step.
        repeats: timed steps, after one to warm up.
        levels: noise levels; None for the ten of 10-step DDIM. One within 0.1 % of one of those
            is that one.
        queries_from: "trajectory" or "noised".
        truth_queries: how many of the queries errors are measured at; 0 for no errors.
        cache: keep and use full scans in the cache folder.
        limit: use the first so many images of the store only.
        peer_images: a peer that scans everything is timed over so many; 0 for all.
        seed: of the noise and of random draws.
        threads: to use; None for torch's own number.
    """

    store: Path
    methods: tuple[str, ...] = ("golddiff-pca",)
    peers: tuple[str, ...] = ()
    against: str | None = None
    settings: MethodSettings = field(default_factory=MethodSettings)
    batch: int = 4
    repeats: int = 5
    levels: tuple[float, ...] | None = None
    queries_from: str = "trajectory"
    truth_queries: int = 4
    cache: bool = True
    limit: int | None = None
    peer_images: int = 4096
    seed: int = 0
    threads: int | None = None

    def check(self) -> None:
        """Everything that can be told without opening the store.

        Raises:
            ArgumentError: names the argument.
        """
        for name, least in (("batch", 1), ("repeats", 1), ("truth_queries", 0), ("peer_images", 0)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name}: got {getattr(self, name)}, expected {least} or more")
        for name in ("limit", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{name}: got {value}, expected 1 or more")
        if self.queries_from not in QUERIES_FROM:
            raise ArgumentError(
                f"queries_from: got {self.queries_from!r}, expected {' or '.join(QUERIES_FROM)}"
            )
        for level in self.levels or ():
            if not 0 < level < float("inf"):
                raise ArgumentError(f"levels: got {level}, expected finite numbers above 0")
        if not self.methods and not self.peers:
            raise ArgumentError("method: got none, expected at least one method or peer")
        for method in self.methods:
            if method not in METHODS:
                raise ArgumentError(f"method: got {method!r}, expected one of {', '.join(METHODS)}")
        self._check_settings()
        names = list(self.named())
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError(f"method: got {twice} twice")
        if self.against is not None and self.against not in names:
            raise ArgumentError(
                f"against: got {self.against!r}, expected one of {', '.join(names)}"
            )

    def _check_settings(self) -> None:
        having = frozenset[str]().union(*(METHODS[method].settings for method in self.methods))
        if self.peers:
            having |= {"mask_threshold", "variant", "k_min", "k_max", "patch_size", "boundary"}
        for setting in self.settings.given():
            if setting not in having:
                raise ArgumentError(f"{setting}: does not apply to {', '.join(self.methods)}")

    def sigmas(self) -> list[float]:
        """The noise levels raced."""
        steps = ddim_sigmas(STEPS)
        if self.levels is None:
            return steps
        return [
            next((step for step in steps if abs(step - level) <= 1e-3 * step), level)
            for level in self.levels
        ]

    def named(self) -> Iterator[str]:
        """The names of the sides, in turn."""
        yield from self.methods
        for peer in self.peers:
            yield recognise(peer)[0]

    def reference(self) -> str:
        """The side that ratios are taken to."""
        names = list(self.named())
        return self.against or names[len(self.methods) if self.peers else 0]
