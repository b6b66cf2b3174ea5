"""The posterior accumulator of :mod:`golddiff.posterior` in torch, on any device, float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class Partial:
    """Partial posterior mean over some part of the training set, on a device.

    Attributes:
        log_max: (..., L) largest logit seen; -inf where nothing was seen.
        total: (..., L) sum of exp(logit - log_max).
        weighted: (..., D) sum of exp(logit - log_max) * value, D a multiple of L: the locations'
            values, channel after channel.
    """

    log_max: torch.Tensor
    total: torch.Tensor
    weighted: torch.Tensor

    def merge(self, other: Partial) -> Partial:
        """The posterior over both parts together (associative, commutative)."""
        return Partial(
            torch.stack([self.log_max, other.log_max]),
            torch.stack([self.total, other.total]),
            torch.stack([self.weighted, other.weighted]),
        ).merged()

    def merged(self) -> Partial:
        """The posterior over all parts that the first axis lists."""
        log_max = self.log_max.amax(dim=0)
        # -inf - -inf would be NaN: where no part saw an image any scale will do.
        safe = torch.where(torch.isneginf(log_max), torch.zeros_like(log_max), log_max)
        share = torch.exp(self.log_max - safe)
        return Partial(
            log_max,
            (self.total * share).sum(dim=0),
            (self.weighted * self._spread(share)).sum(dim=0),
        )

    def mean(self) -> torch.Tensor:
        """The posterior mean, (..., D); NaN where nothing was seen."""
        return self.weighted / self._spread(self.total)

    def _spread(self, per_location: torch.Tensor) -> torch.Tensor:
        times = self.weighted.shape[-1] // per_location.shape[-1]
        return per_location if times == 1 else _tiled(per_location, times)


def _tiled(values: torch.Tensor, times: int) -> torch.Tensor:
    return values.repeat(*[1] * (values.ndim - 1), times)
