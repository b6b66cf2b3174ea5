"""FAISS: exact search for the k nearest images, then their softmax average."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.optimal import Optimal
from golddiff.noise import precision
from golddiff.store.images import ImageStore
from golddiff.support import AnySupport, Prior
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32
from golddiff_lab.peers.checkout import released_schedule
from golddiff_lab.sides import Check, Side, SideSpec


def load_faiss() -> Any:
    """Import faiss.

    Raises:
        ArgumentError: faiss is not installed.
    """
    try:
        return import_module("faiss")
    except ImportError:
        raise ArgumentError(
            "faiss is not installed; it comes with the extra: pip install 'golddiff[dev]'"
        ) from None


def check(spec: SideSpec, store: ImageStore) -> None:
    """Raise ArgumentError if faiss is missing, or if k exceeds the number of images."""
    load_faiss()
    released_schedule(spec.settings).budgets(1.0, store.n)


def make(spec: SideSpec, store: ImageStore) -> Side:
    """``IndexFlatL2`` search with the schedule's k, then gather and softmax in torch.

    The logits come from the squared distances that the search returns.
    """
    faiss, schedule = load_faiss(), released_schedule(spec.settings)
    faiss.omp_set_num_threads(spec.threads)
    images = store.images().reshape(store.n, store.d)
    index = faiss.IndexFlatL2(store.d)
    index.add(images.numpy())

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        _, k = schedule.budgets(sigma, store.n)
        distances, rows = index.search(x.reshape(len(x), -1).numpy(), k)
        logits = torch.from_numpy(distances) * -precision(sigma)
        weights = torch.softmax(logits, dim=1)
        nearest = images[torch.from_numpy(rows)]
        return torch.einsum("bk,bkd->bd", weights, nearest).reshape(x.shape)

    def make_check() -> Check:
        ours = GoldDiff(Optimal(store), _AllScreened(schedule))
        return Check(step, ours, "Optimal over the k nearest images")

    return Side(step, make_check)


class _AllScreened:
    """A schedule that takes the k nearest of all images, with another schedule's k."""

    def __init__(self, schedule: PaperSchedule) -> None:
        self.schedule = schedule

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        return n, self.schedule.budgets(sigma, n)[1]

    def supports(
        self, store: ImageStore, x: F32, sigma: float, label: Prior, seed: int
    ) -> list[AnySupport]:
        _, k = self.budgets(sigma, store.n)
        exact = PaperSchedule(k_min=k, k_max=k, m_min=1.0, m_max=1.0)
        return list(exact.supports(store, x, sigma, label, seed))
