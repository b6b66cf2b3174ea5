"""FAISS: exact search for the k nearest images, then their softmax average."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.estimators.optimal import Optimal
from golddiff.golden import GoldDiff
from golddiff.noise import precision
from golddiff.store.images import ImageStore
from golddiff.support import AnySupport
from golddiff.supports.paper import PaperSchedule
from golddiff_lab.race.side import Check, Side, SideSpec
from golddiff_lab.race.work import DISTANCE, WEIGHTED, Work
from golddiff_lab.search.ways import load_faiss


def make(spec: SideSpec, store: ImageStore) -> Side:
    """``IndexFlatL2`` over all values, k as in the schedule, a gather and a softmax in torch.

    The squared distances that the search returns are the logits; none is computed twice.

    Raises:
        ArgumentError: faiss is not installed.
    """
    faiss = load_faiss()
    faiss.omp_set_num_threads(spec.threads)
    names = ("k_min", "k_max")
    sizes = {name: v for name, v in spec.settings.given().items() if name in names}
    variant = spec.settings.variant or "released"
    schedule = PaperSchedule(variant=variant, **sizes)  # type: ignore[arg-type]
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

    def work(x: torch.Tensor, sigma: float) -> Work:
        _, k = schedule.budgets(sigma, store.n)
        operations = len(x) * (DISTANCE * store.n + WEIGHTED * k) * store.d
        return Work(operations, 4 * (store.n + len(x) * k) * store.d, "float32_matrix")

    def check() -> Check:
        ours = GoldDiff(Optimal(store), _AllScreened(schedule))
        return Check(step, ours, "Optimal over the k nearest images")

    return Side(step, work, check)


class _AllScreened:
    """The k nearest of all images, k of another schedule."""

    def __init__(self, schedule: PaperSchedule) -> None:
        self.schedule = schedule

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        return n, self.schedule.budgets(sigma, n)[1]

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> Sequence[AnySupport]:
        _, k = self.budgets(sigma, store.n)
        exact = PaperSchedule(k_min=k, k_max=k, m_min=1.0, m_max=1.0)
        return exact.supports(store, x, sigma, label, seed)
