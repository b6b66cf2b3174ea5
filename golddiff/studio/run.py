"""One run: all selected methods denoise the same start, one step at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from golddiff.denoiser import Denoiser
from golddiff.estimators.dial import NOVELTY
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.registry import SHOWN
from golddiff.samplers import State, check_settings, initial_noise, noise_levels, noised, steps
from golddiff.studio.library import OpenStore
from golddiff.system.errors import ArgumentError

MAX_STEPS = 100
MAX_IMAGES = 4
# Every step of every method is kept for the step slider; as float32 this is half a gigabyte.
MAX_VALUES = 2**27


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    store: str  # name in the library
    methods: tuple[str, ...]  # names, in display order
    variant: str = "released"  # schedule of golden subsets, "released" or "text"
    novelty: float = NOVELTY  # setting of the method ``recommended``, 0 to 1
    sampler: str = "ddim"  # "ddim" or "heun"
    steps: int = 10
    seed: int = 0
    n: int = 1  # images per method
    label: int | None = None  # class index, or None for all
    # Noise level added to the start image; None: the run starts from pure noise
    start: float | None = None


@dataclass(frozen=True)
class Selection:
    """A pixel of one image of one method."""

    method: str
    image: int
    y: int
    x: int


# For each method, (noise level, effective number of images behind one pixel) at each step
Curves = dict[str, list[tuple[float, float]]]


@dataclass
class Run:
    """A run of one session with its results so far, which only :meth:`advance` extends."""

    settings: Settings
    opened: OpenStore
    denoisers: dict[str, Denoiser]  # by method
    sigmas: list[float]  # noise level of each step
    x_init: torch.Tensor  # (n, *shape) common start, see golddiff.samplers.steps
    start: torch.Tensor  # (n, *shape) the start for display: noise, or the noisy image
    # By method, the states and seconds of the finished steps
    states: dict[str, list[State]]
    seconds: dict[str, list[float]]
    # Cached curves, by pixel and number of finished steps
    curves: dict[tuple[Selection, int], Curves] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)  # set to stop the run

    @property
    def steps_done(self) -> int:
        """Number of steps that every method has finished."""
        return min(len(done) for done in self.states.values())

    @property
    def with_sources(self) -> list[str]:
        """The methods whose output is a weighted sum of training images."""
        return [method for method in self.settings.methods if SHOWN[method].has_sources]

    def advance(self) -> Iterator[str]:
        """Run one step of one method at a time until stopped; yield the method after each."""
        s = self.settings
        steppers = {
            name: steps(denoiser, self.x_init, self.sigmas, s.sampler, s.label)
            for name, denoiser in self.denoisers.items()
        }
        for _ in self.sigmas:
            for name, stepper in steppers.items():
                if self.stopped.is_set():
                    return
                with self.opened.lock:
                    begin = time.perf_counter()
                    state = next(stepper)
                    self.seconds[name].append(time.perf_counter() - begin)
                self.states[name].append(state)
                yield name

    def state(self, method: str, step: int) -> State | None:
        """The method's state at a step, or its last finished one before; None if there is none."""
        done = self.states[method][: step + 1]
        return done[-1] if done else None

    def budgets(self, method: str) -> list[tuple[int, int]] | None:
        """(m, k) of the method's golden subset at each step; None if it has none."""
        denoiser = self.denoisers[method]
        if not isinstance(denoiser, GoldDiff):
            return None
        count = self.opened.store.count_of(self.settings.label)
        return [denoiser.schedule.budgets(sigma, count) for sigma in self.sigmas]


def prepare(opened: OpenStore, settings: Settings, image: torch.Tensor | None) -> Run:
    """Check the settings and create a run that starts from noise or from a noisy image."""
    s, store = settings, opened.store
    if not s.methods:
        raise ArgumentError("methods: got none, expected at least one")
    for method in s.methods:
        if method not in SHOWN:
            raise ArgumentError(f"methods: got {method!r}, expected some of {', '.join(SHOWN)}")
    check_settings(s.n, s.steps, s.sampler, s.seed)
    if s.steps > MAX_STEPS or s.n > MAX_IMAGES:
        raise ArgumentError(
            f"got {s.steps} steps and {s.n} images, expected at most {MAX_STEPS} and {MAX_IMAGES}"
        )
    most = MAX_VALUES // (2 * len(s.methods) * s.n * store.d)
    if s.steps > most:
        raise ArgumentError(
            f"steps: got {s.steps}, expected at most {most} with {s.n} images of {store.d:,} "
            f"values and {len(s.methods)} methods: every step is kept for the slider"
        )
    store.count_of(s.label)  # raises for a class without images
    sigmas = noise_levels(s.steps, s.sampler, s.start)
    noise = initial_noise(s.n, store.shape, s.seed)
    return Run(
        s,
        opened,
        {name: opened.denoiser(name, s.variant, s.novelty, s.seed) for name in s.methods},
        sigmas,
        noise if image is None else noised(image, sigmas[0], noise, s.sampler),
        noise if image is None else image + sigmas[0] * noise,
        {name: [] for name in s.methods},
        {name: [] for name in s.methods},
    )
