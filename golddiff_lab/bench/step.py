"""Race one denoising step of several sides at every noise level, for ``golddiff bench step``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from golddiff.denoiser import Estimator
from golddiff.estimators.registry import create
from golddiff.store.images import ImageStore
from golddiff.system.parallel import use_threads
from golddiff_lab.bench.prefixes import first_images
from golddiff_lab.bench.step_job import StepJob
from golddiff_lab.machine import Rates, measure
from golddiff_lab.peers import PEERS, recognise
from golddiff_lab.queries import TRAJECTORY_OF, noised, trajectory
from golddiff_lab.race import Row, level_rows, started
from golddiff_lab.sides import SideSpec
from golddiff_lab.truth import full_scans, reference_of, text_of

Watch = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """The results of a race.

    Attributes:
        store: the training set.
        machine: rates of the machine, measured before the race.
        rows: one row per level and side from :func:`golddiff_lab.race.level_rows`.
        references: by side, the full scan that its error refers to.
        memory: by side, bytes; see :meth:`golddiff_lab.process.RunningSide.memory`.
    """

    store: ImageStore
    machine: Rates
    rows: list[Row]
    references: dict[str, Estimator]
    memory: dict[str, dict[str, int]]


def run(job: StepJob, watch: Watch = lambda what: None) -> Outcome:
    """Race the sides of ``job``; ``watch`` is called with progress messages."""
    job.check()
    use_threads(job.threads)
    store = ImageStore.open(job.store)
    store = first_images(store, min(job.limit or store.n, store.n))
    specs = _specs(job, store)
    references = {spec.name: _reference(spec, store) for spec in specs}
    watch("the machine's rates")
    machine = measure()
    watch("queries")
    if job.queries_from == "noised":
        batches = noised(store, job.sigmas, job.batch, job.seed)
    else:
        passing = create(TRAJECTORY_OF, store, seed=job.seed)
        batches = trajectory(passing, job.sigmas, job.batch, job.seed)
    levels = list(zip(job.sigmas, batches, strict=True))
    watch("full scans")
    truths = _truths(job, references, levels)
    rows: list[Row] = []
    with started(specs) as sides:
        for i, (sigma, x) in enumerate(levels):
            watch(f"sigma {sigma:.3g}")
            exact = {name: scans[i] for name, scans in truths.items()}
            rows += level_rows(sides, sigma, x, exact, job.repeats, job.seconds)
        memory = {side.name: side.ask("memory") for side in sides}
    return Outcome(store, machine, rows, references, memory)


def _specs(job: StepJob, store: ImageStore) -> list[SideSpec]:
    """Specifications of the sides, after checking that peers can run over this store."""
    settings, threads = job.settings, torch.get_num_threads()
    common = SideSpec("", store.path, settings=settings, seed=job.seed, threads=threads)
    specs = [replace(common, name=method) for method in job.methods]
    for text in job.peer or ():
        name, path = recognise(text)
        specs.append(replace(common, name=name, path=path))
        PEERS[name].check(specs[-1], store)
    return specs


def _reference(spec: SideSpec, store: ImageStore) -> Estimator:
    method = PEERS[spec.name].base if spec.name in PEERS else spec.name
    denoiser = create(method, store, spec.settings.of(method), spec.seed)
    return reference_of(denoiser, spec.settings.mask_threshold)


def _truths(
    job: StepJob, references: dict[str, Estimator], levels: list[tuple[float, torch.Tensor]]
) -> dict[str, list[torch.Tensor]]:
    """The full scan of every side at every level; sides with equal references share it."""
    if job.compared == 0:
        return {}
    queries = [(sigma, x[: job.compared]) for sigma, x in levels]
    distinct = {text_of(reference): reference for reference in references.values()}
    scans = {k: full_scans(ref, queries) for k, ref in distinct.items()}
    return {name: scans[text_of(reference)] for name, reference in references.items()}
