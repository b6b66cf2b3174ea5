"""Classifier-free guidance: extrapolation from the unconditional mean towards that of a class."""

from __future__ import annotations

import torch

from golddiff.denoiser import Denoiser
from golddiff.noise import Labels, Sigma
from golddiff.system.arguments import MOST, as_dense_tensor, check_number, classes_of
from golddiff.system.errors import ArgumentError


class Guided:
    """A callable D_u + scale (D_c - D_u) with fixed labels; see :func:`guided`.

    It is no posterior mean, so it has no ``posterior``, ``score``, ``given`` or
    ``attribute``.
    """

    def __init__(self, denoiser: Denoiser, labels: Labels, scale: float) -> None:
        self.denoiser, self.labels, self.scale = denoiser, labels, scale
        self.store = denoiser.store
        self.batch = max(denoiser.batch, as_dense_tensor("labels", labels, "integers").numel())

    def __repr__(self) -> str:
        return f"guided({self.denoiser!r}, {self.labels!r}, {self.scale:g})"

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """The guided mean (B, *store.shape), differentiable if the denoiser is."""
        if labels is not None:
            raise ArgumentError("labels: a guided denoiser has its own; leave them out")
        unconditional = self.denoiser(x, sigma)
        return unconditional + self.scale * (self.denoiser(x, sigma, self.labels) - unconditional)


def guided(denoiser: Denoiser, labels: Labels, scale: float) -> Guided:
    """Classifier-free guidance: D_u + scale (D_c - D_u).

    Args:
        denoiser: D_u without labels, D_c with them.
        labels: class index for all queries, or one per query.
        scale: 0 gives D_u, 1 gives D_c, and larger values extrapolate.

    Raises:
        ArgumentError: the denoiser is not one, the scale is not finite, or labels are missing.

    Source: Ho & Salimans 2022.
    """
    if not isinstance(denoiser, Denoiser):
        raise ArgumentError(f"denoiser: got {type(denoiser).__name__}, expected a Denoiser")
    scale = check_number("scale", scale, "a finite number", -MOST, MOST)
    if labels is None:
        raise ArgumentError("labels: got None, expected a class to guide towards")
    given = as_dense_tensor("labels", labels, "integers")
    for label in set(classes_of(given, given.numel()).tolist()):
        denoiser.store.count_of(label)
    return Guided(denoiser, given.tolist(), scale)  # a copy, as the caller may change its own
