"""FAISS: exact search for the k nearest images, then their softmax average."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from golddiff.noise import precision
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff_lab.peers.checkout import released_schedule
from golddiff_lab.sides import SideSpec, Step


def load_faiss() -> Any:
    """Import faiss; ArgumentError if it is not installed."""
    try:
        return import_module("faiss")
    except ImportError:
        raise ArgumentError(
            "faiss is not installed; it comes with the extra: pip install 'golddiff[dev]'"
        ) from None


def check(spec: SideSpec, store: ImageStore) -> None:
    """Raise ArgumentError if faiss is missing, or a subset's size is not allowed."""
    load_faiss()
    released_schedule(spec.settings)


def make(spec: SideSpec, store: ImageStore) -> Step:
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

    return step
