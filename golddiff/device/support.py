"""Supports on a device: the rows and log weights of a batch of queries as two arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from golddiff.support import Support


@dataclass(frozen=True)
class DeviceSupport:
    """The support of each of b queries, or one that all share.

    Attributes:
        rows: (b, k) or (1, k) int64.
        log_weights: like ``rows``, float32; None for all 0; -inf where a place holds no image,
            since queries may have supports of unlike sizes.
    """

    rows: torch.Tensor
    log_weights: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.rows.shape[1]

    @classmethod
    def of(cls, supports: Sequence[Support], device: torch.device) -> DeviceSupport:
        """Bring supports over, one a query; the same object for all is shared."""
        if all(support is supports[0] for support in supports):
            supports = supports[:1]
        k = max(len(support) for support in supports)
        rows = np.zeros((len(supports), k), np.int64)
        weights = np.full((len(supports), k), -np.inf, np.float32)
        for i, support in enumerate(supports):
            rows[i, : len(support)] = support.rows
            weights[i, : len(support)] = support.log_importance()
        prior = torch.from_numpy(weights).to(device) if weights.any() else None
        return cls(torch.from_numpy(rows).to(device), prior)

    def part(self, start: int, size: int) -> DeviceSupport:
        """Places ``start`` to ``start + size`` of each query's support."""
        stop = start + size
        prior = None if self.log_weights is None else self.log_weights[:, start:stop]
        return DeviceSupport(self.rows[:, start:stop], prior)

    def of_queries(self, start: int, stop: int) -> DeviceSupport:
        """The supports of some of the queries."""
        if len(self.rows) == 1:
            return self
        prior = None if self.log_weights is None else self.log_weights[start:stop]
        return DeviceSupport(self.rows[start:stop], prior)
