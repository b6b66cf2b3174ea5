"""Layers of the DDPM++, NCSN++ and ADM networks, which EDM combines in one kind of U-Net block.

Karras et al. 2022, Elucidating the Design Space of Diffusion-Based Generative Models, App. F.
Parameters have the names of NVIDIA's files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional


class Conv2d(nn.Module):
    """Optional resampling by 2 up or down, then a convolution with zero padding.

    ``kernel`` is the odd side of the convolution; 0 resamples only. The 2-D low-pass filter is the
    outer product of the 1-D ``resample_filter`` with itself, normalised to sum 1.
    """

    resample_filter: torch.Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        up: bool = False,
        down: bool = False,
        resample_filter: Sequence[float] = (1, 1),
    ) -> None:
        super().__init__()
        self.up = up
        self.weight = self.bias = None
        if kernel:
            self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel, kernel))
            self.bias = nn.Parameter(torch.empty(out_channels))
        taps = torch.as_tensor(resample_filter, dtype=torch.float32)
        low_pass = torch.outer(taps, taps) / taps.sum() ** 2
        self.register_buffer("resample_filter", low_pass[None, None] if up or down else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in, H, W) -> (B, out, H', W')."""
        if self.resample_filter is not None:
            kernel, overlap = self._low_pass(x.shape[1])
            if self.up:  # the factor 4 compensates for the zeros between the pixels
                x = functional.conv_transpose2d(
                    x, 4 * kernel, stride=2, padding=overlap, groups=len(kernel)
                )
            else:
                x = functional.conv2d(x, kernel, stride=2, padding=overlap, groups=len(kernel))
        if self.weight is None:
            return x
        return functional.conv2d(x, self.weight, self.bias, padding=self.weight.shape[-1] // 2)

    def _low_pass(self, channels: int) -> tuple[torch.Tensor, int]:
        """The filter of each channel, and the padding for which it halves the side exactly."""
        assert self.resample_filter is not None
        side = self.resample_filter.shape[-1]
        return self.resample_filter.expand(channels, -1, -1, -1), (side - 1) // 2


class ConvThenDown(Conv2d):
    """Convolution, then low-pass filter and downsampling: NCSN++'s residual path.

    The two commute except at the border, because all padding is applied before the convolution.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in, H, W) -> (B, out, H / 2, W / 2)."""
        assert self.weight is not None
        assert self.bias is not None
        kernel, overlap = self._low_pass(len(self.weight))
        wide = functional.conv2d(x, self.weight, padding=self.weight.shape[-1] // 2 + overlap)
        halved = functional.conv2d(wide, kernel, stride=2, groups=len(kernel))
        return halved + self.bias[:, None, None]


def group_norm(channels: int, eps: float = 1e-5) -> nn.GroupNorm:
    """Group normalisation in 32 groups, or fewer so that each has at least 4 channels."""
    return nn.GroupNorm(min(32, channels // 4), channels, eps=eps)


class UNetBlock(nn.Module):
    """Residual block conditioned on the noise embedding, with optional self-attention.

    h = s (skip(x) + conv1(silu(modulated(norm1(conv0(silu(norm0(x)))), affine(emb))))).
    With attention a(h), the output is s (h + a(h)).

    Args:
        in_channels, out_channels, emb_channels: channels of input, output and embedding.
        adm: a block of ADM: the embedding scales and shifts the output of ``norm1``, and s = 1.
            In DDPM++ and NCSN++ it is added before ``norm1``, s = sqrt(1/2) preserves the variance,
            and the skip path has a 1 x 1 convolution even if only the resolution changes.
        up, down: double or halve height and width with ``resample_filter``.
        heads: number of attention heads; 0: no attention.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        emb_channels: int,
        *,
        adm: bool,
        up: bool = False,
        down: bool = False,
        heads: int = 0,
        resample_filter: Sequence[float] = (1, 1),
    ) -> None:
        super().__init__()
        if heads and out_channels % heads:
            raise ValueError(f"{out_channels} channels do not divide into {heads} heads")
        self.heads, self.adm = heads, adm
        self.scale, eps = (1.0, 1e-5) if adm else (math.sqrt(0.5), 1e-6)
        self.norm0 = group_norm(in_channels, eps)
        resampled = partial(Conv2d, up=up, down=down, resample_filter=resample_filter)
        self.conv0 = resampled(in_channels, out_channels, 3)
        self.affine = nn.Linear(emb_channels, out_channels * (2 if adm else 1))
        self.norm1 = group_norm(out_channels, eps)
        self.conv1 = Conv2d(out_channels, out_channels, 3)
        self.skip: nn.Module = nn.Identity()
        if out_channels != in_channels or up or down:
            kernel = 0 if adm and out_channels == in_channels else 1
            self.skip = resampled(in_channels, out_channels, kernel)
        if heads:
            self.norm2 = group_norm(out_channels, eps)
            self.qkv = Conv2d(out_channels, 3 * out_channels, 1)
            self.proj = Conv2d(out_channels, out_channels, 1)

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        """(B, in, H, W), (B, emb) -> (B, out, H', W')."""
        shift = self.affine(embedding)[:, :, None, None]
        h = self.conv0(functional.silu(self.norm0(x)))
        if self.adm:
            scale, shift = shift.chunk(2, dim=1)
            h = self.norm1(h) * (1 + scale) + shift
        else:
            h = self.norm1(h + shift)
        h = self.conv1(functional.silu(h))
        h = (h + self.skip(x)) * self.scale
        if self.heads:
            h = (h + self.proj(self._attention(h))) * self.scale
        return h

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        """Attention of every pixel to every pixel, (B, C, H, W) -> (B, C, H, W)."""
        b, c, height, width = x.shape
        # q, k and v of one channel are neighbours among the 3 C channels of qkv.
        split = self.qkv(self.norm2(x)).reshape(b, self.heads, c // self.heads, 3, height * width)
        q, k, v = split.permute(3, 0, 1, 4, 2).unbind(0)  # each (B, heads, pixels, C / heads)
        # softmax(q k^T / sqrt(C / heads)) v
        attended: torch.Tensor = functional.scaled_dot_product_attention(q, k, v)
        return attended.transpose(2, 3).reshape(b, c, height, width)


def positional_embedding(
    noise: torch.Tensor, channels: int, *, endpoint: bool = False
) -> torch.Tensor:
    """Cosines, then sines of numbers (B,) at frequencies from 1 down to 1e-4, (B, channels).

    With ``endpoint`` (DDPM++) the last frequency is 1e-4, otherwise (ADM) one step above it.
    """
    half = channels // 2
    steps = torch.arange(half, dtype=noise.dtype, device=noise.device)
    angles = noise[:, None] * 1e-4 ** (steps / (half - endpoint))
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class FourierEmbedding(nn.Module):
    """Cosines, then sines of a number at random frequencies stored in the file (NCSN++)."""

    freqs: torch.Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("freqs", torch.empty(channels // 2))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """(B,) -> (B, channels)."""
        angles = noise[:, None] * (2 * math.pi * self.freqs)
        return torch.cat([angles.cos(), angles.sin()], dim=1)
