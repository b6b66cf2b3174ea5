"""The settings of ``golddiff bench step``, and what can be told of them before any work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from golddiff.estimators.registry import METHODS, MethodSettings
from golddiff.noise import ddim_sigmas
from golddiff.system.errors import ArgumentError
from golddiff_lab.peers import PEERS, recognise
from golddiff_lab.peers.checkout import vp_timestep
from golddiff_lab.queries import STEPS, check_source


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
        levels: noise levels; None for the ten of 10-step DDIM. One that is one of those to three
            digits is that one.
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
        at_least(self, batch=1, repeats=1, truth_queries=0, peer_images=0, limit=1, threads=1)
        check_source(self.queries_from)
        for level in self.levels or ():
            if not 0 < level < float("inf"):
                raise ArgumentError(f"levels: got {level}, expected finite numbers above 0")
        if not self.methods and not self.peers:
            raise ArgumentError("method: got none, expected at least one method or peer")
        of_peers = {"mask_threshold", "variant", "k_min", "k_max", "patch_size", "boundary"}
        check_methods(self.methods, self.settings, of_peers if self.peers else ())
        names = self.named()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError(f"method: got {twice} twice")
        if self.against is not None and self.against not in names:
            raise ArgumentError(
                f"against: got {self.against!r}, expected one of {', '.join(names)}"
            )
        for name in names[len(self.methods) :]:
            for sigma in self.sigmas() if PEERS[name].vp_levels else ():
                vp_timestep(PEERS[name].title, sigma)

    def sigmas(self) -> list[float]:
        """The noise levels raced."""
        steps = ddim_sigmas(STEPS)
        if self.levels is None:
            return steps
        return [
            next((s for s in steps if abs(s - v) <= 1e-3 * s or f"{s:.3g}" == f"{v:.3g}"), v)
            for v in self.levels
        ]

    def named(self) -> list[str]:
        """The names of the sides, in turn: methods, then peers."""
        return [*self.methods, *(recognise(peer)[0] for peer in self.peers)]

    def reference(self) -> str:
        """The side that ratios are taken to."""
        return self.against or self.named()[len(self.methods) if self.peers else 0]


def at_least(job: object, **least: int) -> None:
    """Raise ArgumentError where a number of a job, if it has one, is less than it may be."""
    for name, smallest in least.items():
        value = getattr(job, name)
        if value is not None and value < smallest:
            raise ArgumentError(f"{name}: got {value}, expected {smallest} or more")


def check_methods(
    methods: Iterable[str], settings: MethodSettings, others: Iterable[str] = ()
) -> None:
    """Raise where a name is no method, or where none of them has a setting.

    Args:
        methods: the names.
        settings: given for all of them.
        others: settings that somebody else has.

    Raises:
        ArgumentError: says which methods there are, or which setting does not apply.
    """
    for method in methods:
        if method not in METHODS:
            raise ArgumentError(f"method: got {method!r}, expected one of {', '.join(METHODS)}")
    having = frozenset(others).union(*(METHODS[method].settings for method in methods))
    for setting in settings.given():
        if setting not in having:
            raise ArgumentError(f"{setting}: does not apply to {', '.join(methods)}")
