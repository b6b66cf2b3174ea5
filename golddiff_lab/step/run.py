"""One denoising step of several sides at every noise level: the work of ``golddiff bench step``."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from golddiff.denoiser import Estimator
from golddiff.estimators.registry import create
from golddiff.store.images import ImageStore
from golddiff.system.parallel import use_threads
from golddiff_lab.machine import Rates, measure
from golddiff_lab.peers import PEERS, recognise
from golddiff_lab.process import Process
from golddiff_lab.queries import queries
from golddiff_lab.running import RunningSide, own_settings
from golddiff_lab.sides import SideSpec
from golddiff_lab.step.job import StepJob
from golddiff_lab.timing import Timing, race
from golddiff_lab.truth import describe, full_scans, reference_of, rmse

WITHIN = 0.95  # of the queries


@dataclass(frozen=True)
class Level:
    """All sides at one noise level.

    Attributes:
        sigma: the level.
        timings: of each side.
        errors: RMSE to the full scan, over all queries; of those sides where it is known.
        most: the RMSE that 95 of 100 queries have at most, likewise.
        words: how a side chose its images.
        checks: largest difference from ours where the maths is the same.
    """

    sigma: float
    timings: dict[str, Timing]
    errors: dict[str, float]
    most: dict[str, float]
    words: dict[str, str | None]
    checks: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A whole race.

    Attributes:
        store: what was raced over.
        machine: its rates, the higher of those before and after the race.
        levels: in the order raced.
        references: for each side, the full scan that its error is taken to.
        memory: for each side, bytes resident at most after opening the store, and in all.
        parts: images that a side was timed over, where not all.
        checked: for each peer, what its output and ours were compared over.
    """

    store: ImageStore
    machine: Rates
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
        store = stack.enter_context(opened(job.store, job.limit))
        sigmas = job.sigmas()
        specs = _specs(job, store, threads)
        references = {spec.name: _reference(spec, store) for spec in specs}
        watch("machine", 0)
        before = measure()
        watch("queries", 0)
        batches = queries(job.queries_from, store, sigmas, job.batch, job.seed)
        truths = _truths(job, references, batches, sigmas, watch)
        # They start together.
        sides = [Process(spec.name, RunningSide, spec, threads) for spec in specs]
        for side in sides:
            stack.callback(side.close)
        for side in sides:
            stack.enter_context(side)
        levels = []
        for i, (sigma, x) in enumerate(zip(sigmas, batches, strict=True)):
            timings = race(sides, x, sigma, job.repeats, store.n, lambda: watch("steps", 1))
            words = {side.name: side.ask("describe", sigma) for side in sides}
            errors, most = _errors(timings, {name: truth[i] for name, truth in truths.items()})
            levels.append(Level(sigma, timings, errors, most, words))
        about = {side.name: side.ask("about") for side in sides}
        memory = {side.name: (about[side.name][0], side.ask("peak")) for side in sides}
        checked = _compare(sides, levels, batches)
        parts = {name: images for name, (_, images, _) in about.items() if images is not None}
        machine = before.best_of(measure())
    return Outcome(store, machine, levels, references, memory, parts, checked)


@contextlib.contextmanager
def opened(path: Path, limit: int | None) -> Iterator[ImageStore]:
    """The store of a folder, or of its first images in a temporary folder."""
    store = ImageStore.open(path)
    if limit is None or limit >= store.n:
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="golddiff-") as folder:
        pixels = store.flat[:limit].reshape(-1, *store.shape)
        labels = None if store.labels is None else store.labels[:limit]
        yield ImageStore.build(pixels, Path(folder) / "store", labels)


def _specs(job: StepJob, store: ImageStore, threads: int) -> list[SideSpec]:
    """The sides; whether they can run over this store is told here, before any work.

    Raises:
        ArgumentError: a store or settings that a peer has no counterpart of.
    """
    common = SideSpec("", store.path, None, None, None, job.settings, job.seed, threads)
    specs = [replace(common, name=method, method=method) for method in job.methods]
    for text in job.peers:
        name, path = recognise(text)
        spec = replace(common, name=name, peer=name, path=path, images=job.peer_images)
        PEERS[name].check(spec, store)
        specs.append(spec)
    return specs


def _reference(spec: SideSpec, store: ImageStore) -> Estimator:
    method = spec.method or PEERS[str(spec.peer)].base
    denoiser = create(method, store, own_settings(method, spec.settings), spec.seed)
    schedule = getattr(denoiser, "schedule", None)
    if spec.method is not None and "k_min" in spec.settings.given():
        schedule.budgets(1.0, store.n)  # type: ignore[union-attr]  # more images than there are
    return reference_of(denoiser, store, spec.settings.mask_threshold)


def _truths(
    job: StepJob,
    references: dict[str, Estimator],
    batches: list[torch.Tensor],
    sigmas: list[float],
    watch: Watch,
) -> dict[str, list[torch.Tensor]]:
    """The full scan of every side at every level; sides with the same one share it."""
    if job.truth_queries == 0:
        return {}
    made: dict[str, list[torch.Tensor]] = {}
    few = [(sigma, x[: job.truth_queries]) for sigma, x in zip(sigmas, batches, strict=True)]
    for reference in references.values():
        if str(describe(reference)) not in made:
            watch("truth", 0)
            scans = [full_scans(reference, [level], use_cache=job.cache)[0] for level in few]
            made[str(describe(reference))] = scans
            watch("truth", len(few))
    return {name: made[str(describe(reference))] for name, reference in references.items()}


def _errors(
    timings: dict[str, Timing], exact: dict[str, torch.Tensor]
) -> tuple[dict[str, float], dict[str, float]]:
    errors, most = {}, {}
    for name, timing in timings.items():
        if name in exact and timing.out is not None:
            out = timing.out[: len(exact[name])]
            errors[name] = rmse(out, exact[name])
            each = [rmse(one, its) for one, its in zip(out, exact[name], strict=True)]
            most[name] = float(np.quantile(each, WITHIN, method="inverted_cdf"))
    return errors, most


def _compare(
    sides: list[Process], levels: list[Level], batches: list[torch.Tensor]
) -> dict[str, str]:
    """After the race, so that it costs no side memory: peers against ours, the same maths."""
    checked = {}
    for side in sides:
        if side.name not in PEERS:
            continue
        for level, x in zip(levels, batches, strict=True):
            answer = side.ask("check", x.numpy(), level.sigma)
            if answer is not None:
                level.checks[side.name], checked[side.name] = answer
    return checked
