"""One denoising step of several sides at every noise level: the work of ``golddiff bench step``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from golddiff.bench import truth
from golddiff.bench.job import StepJob
from golddiff.bench.machine import Machine, measure
from golddiff.bench.peers import PEERS, recognise
from golddiff.bench.queries import queries
from golddiff.bench.side import SideSpec, own_settings
from golddiff.bench.stores import first_images
from golddiff.bench.timing import Timing, race
from golddiff.bench.worker import Remote
from golddiff.denoiser import Estimator
from golddiff.registry import create
from golddiff.store.images import ImageStore
from golddiff.system.parallel import use_threads

WITHIN = 0.95  # of the queries


@dataclass(frozen=True)
class Level:
    """All sides at one noise level.

    Attributes:
        sigma: the level.
        timings: of each side.
        errors: RMSE to the full scan, over all queries; None where not known.
        most: the RMSE that 95 of 100 queries have at most; None where not known.
        words: how a side chose its images.
        checks: largest difference from ours where the maths is the same.
    """

    sigma: float
    timings: dict[str, Timing]
    errors: dict[str, float | None]
    most: dict[str, float | None]
    words: dict[str, str | None]
    checks: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A whole race.

    Attributes:
        store: what was raced over.
        threads: that every side used.
        machine: its rates, the higher of those before and after the race.
        levels: in the order raced.
        references: for each side, the full scan that its error is taken to.
        memory: for each side, bytes resident at most after opening the store, and in all.
        parts: images that a side was timed over, where not all.
        checked: for each peer, what its output and ours were compared over.
    """

    store: ImageStore
    threads: int
    machine: Machine
    levels: list[Level]
    references: dict[str, Estimator]
    memory: dict[str, tuple[int, int]]
    parts: dict[str, int]
    checked: dict[str, str]


Watch = Callable[[str, int], None]


def run(job: StepJob, watch: Watch = lambda what, steps: None) -> Outcome:
    """Race the sides of ``job``.

    Args:
        job: what to race.
        watch: called with what is going on, and how many units of it are now done.

    Raises:
        GoldDiffError: bad input; a side that fails.
    """
    job.check()
    if job.threads is not None:
        use_threads(job.threads)
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        store = ImageStore.open(job.store)
        if job.limit is not None and job.limit < store.n:
            store = stack.enter_context(first_images(store, job.limit))
        sigmas = job.sigmas()
        watch("machine", 0)
        before = measure()
        watch("queries", 0)
        batches = queries(job.queries_from, store, sigmas, job.batch, job.seed)
        specs = _specs(job, store, threads)
        references = {spec.name: _reference(spec, store) for spec in specs}
        truths = _truths(job, references, batches, sigmas, watch)
        remotes = [Remote(spec) for spec in specs]  # they start together
        for remote in remotes:
            stack.callback(remote.close)
        for remote in remotes:
            stack.enter_context(remote)
        levels = []
        for sigma, x in zip(sigmas, batches, strict=True):
            timings = race(remotes, x, sigma, job.repeats, store.n, lambda: watch("steps", 1))
            levels.append(_level(remotes, sigma, timings, truths))
        memory = {r.spec.name: (r.opened, r.peak()) for r in remotes}
        checked = _compare(remotes, levels, batches)
        parts = {r.spec.name: r.images for r in remotes if r.images is not None}
        machine = before.best_of(measure())
    return Outcome(store, threads, machine, levels, references, memory, parts, checked)


def _specs(job: StepJob, store: ImageStore, threads: int) -> list[SideSpec]:
    specs = [
        SideSpec(name, name, None, None, store.path, job.settings, job.seed, threads, 0)
        for name in job.methods
    ]
    for text in job.peers:
        name, path = recognise(text)
        specs.append(
            SideSpec(
                name, None, name, path, store.path, job.settings, job.seed, threads,
                job.peer_images,
            )
        )  # fmt: skip
    return specs


def _reference(spec: SideSpec, store: ImageStore) -> Estimator:
    if spec.method is not None:
        denoiser = create(spec.method, store, own_settings(spec), spec.seed)
        return truth.reference_of(denoiser, store, spec.settings.mask_threshold)
    assert spec.peer is not None
    return _reference(replace(spec, method=PEERS[spec.peer].base, peer=None), store)


def _truths(
    job: StepJob,
    references: dict[str, Estimator],
    batches: list[torch.Tensor],
    sigmas: list[float],
    watch: Watch,
) -> dict[tuple[str, float], torch.Tensor]:
    """The full scan of every side at every level; sides with the same one share it."""
    truths: dict[tuple[str, float], torch.Tensor] = {}
    made: dict[tuple[str, float], torch.Tensor] = {}
    if job.truth_queries == 0:
        return truths
    for name, reference in references.items():
        same = str(truth.describe(reference))
        for sigma, x in zip(sigmas, batches, strict=True):
            if (same, sigma) not in made:
                few = x[: job.truth_queries]
                made[same, sigma] = truth.full_scan(reference, few, sigma, use_cache=job.cache)
                watch("truth", 1)
            truths[name, sigma] = made[same, sigma]
    return truths


def _level(
    remotes: list[Remote],
    sigma: float,
    timings: dict[str, Timing],
    truths: dict[tuple[str, float], torch.Tensor],
) -> Level:
    errors: dict[str, float | None] = dict.fromkeys(timings)
    most: dict[str, float | None] = dict.fromkeys(timings)
    for name, timing in timings.items():
        exact = truths.get((name, sigma))
        if exact is not None and timing.out is not None:
            out = timing.out[: len(exact)]
            errors[name] = truth.rmse(out, exact)
            each = [truth.rmse(one, its) for one, its in zip(out, exact, strict=True)]
            most[name] = float(np.quantile(each, WITHIN, method="inverted_cdf"))
    words = {remote.spec.name: remote.describe(sigma) for remote in remotes}
    return Level(sigma, timings, errors, most, words)


def _compare(
    remotes: list[Remote], levels: list[Level], batches: list[torch.Tensor]
) -> dict[str, str]:
    """After the race, so that it costs no side memory: peers against ours, the same maths."""
    checked = {}
    for remote in remotes:
        if remote.spec.peer is None:
            continue
        for level, x in zip(levels, batches, strict=True):
            answer = remote.check(x, level.sigma)
            if answer is not None:
                level.checks[remote.spec.name], checked[remote.spec.name] = answer
    return checked
