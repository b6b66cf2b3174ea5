"""The kernels that a device runs: Triton's where it can, plain torch's twins elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from golddiff.kernels.mask_blocks import MaskBlocks
from golddiff.kernels.masked_terms import Terms
from golddiff.kernels.partial import Partial
from golddiff.kernels.patch_tables import PatchTables
from golddiff.kernels.screen_torch import Proxies
from golddiff.kernels.triton_support import triton_runs_on


class MaskedPartials(Protocol):
    """:func:`golddiff.kernels.masked_torch.masked_partials`."""

    def __call__(  # noqa: D102
        self,
        pixels: torch.Tensor,
        rows: torch.Tensor,
        log_weights: torch.Tensor | None,
        terms: Terms,
        mask: MaskBlocks,
        scale: float,
        offset: float,
        part_size: int | None = None,
    ) -> Partial: ...


class PatchPartials(Protocol):
    """:func:`golddiff.kernels.kamb_torch.patch_partials`."""

    def __call__(  # noqa: D102
        self,
        pixels: torch.Tensor,
        rows: torch.Tensor,
        log_weights: torch.Tensor | None,
        x: torch.Tensor,
        sigma: float,
        tables: PatchTables,
        scale: float,
        offset: float,
    ) -> Partial: ...


class SquaredDistances(Protocol):
    """:func:`golddiff.kernels.gather_torch.squared_distances`."""

    def __call__(  # noqa: D102
        self, pixels: torch.Tensor, rows: torch.Tensor, x: torch.Tensor, shift: float
    ) -> torch.Tensor: ...


class WeightedSums(Protocol):
    """:func:`golddiff.kernels.gather_torch.weighted_sums`."""

    def __call__(  # noqa: D102
        self, pixels: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor, d: int
    ) -> torch.Tensor: ...


class ProxyDistances(Protocol):
    """:func:`golddiff.kernels.screen_torch.proxy_distances`."""

    def __call__(  # noqa: D102
        self, proxies: Proxies, x: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor: ...


class Smallest(Protocol):
    """:func:`golddiff.kernels.screen_torch.smallest`."""

    def __call__(self, distances: torch.Tensor, k: int) -> torch.Tensor: ...  # noqa: D102


@dataclass(frozen=True)
class Backend:
    """One implementation of each kernel, and the block of positions that its patches come in."""

    name: str
    masked_partials: MaskedPartials
    patch_partials: PatchPartials
    squared_distances: SquaredDistances
    weighted_sums: WeightedSums
    proxy_distances: ProxyDistances
    smallest: Smallest
    patch_block: int


def backend_of(device: torch.device) -> Backend:
    """Triton's kernels where they run on ``device``, else torch's."""
    return triton_backend() if triton_runs_on(device) else torch_backend()


def torch_backend() -> Backend:
    """Plain torch: any device."""
    from golddiff.kernels import gather_torch, kamb_torch, masked_torch, screen_torch

    return Backend(
        "torch", masked_torch.masked_partials, kamb_torch.patch_partials,
        gather_torch.squared_distances, gather_torch.weighted_sums,
        screen_torch.proxy_distances, screen_torch.smallest, 64,
    )  # fmt: skip


def triton_backend() -> Backend:
    """Triton: GPUs, and the CPU under its interpreter."""
    from golddiff.kernels import gather_triton, kamb_triton, masked_triton, screen_triton

    return Backend(
        "triton", masked_triton.masked_partials, kamb_triton.patch_partials,
        gather_triton.squared_distances, gather_triton.weighted_sums,
        screen_triton.proxy_distances, screen_triton.smallest, kamb_triton.POSITIONS,
    )  # fmt: skip
