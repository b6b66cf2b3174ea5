"""The parts of the attention-free DDPM U-Net."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import nn
from torch.nn.functional import interpolate

TIMESTEPS = 1000


def sinusoids(t: torch.Tensor, dim: int) -> torch.Tensor:
    """Embedding (B, dim) of timesteps (B,), whole or fractional: sin and cos in turn.

    Column 2i is sin(t / 10000^(2i/dim)), column 2i + 1 the cosine (Vaswani et al. 2017).
    """
    # In float64 on the processor whatever the device; a network of no memory has no numbers at all.
    place = "meta" if t.is_meta else "cpu"
    places = torch.arange(0, dim, 2, dtype=torch.float64, device=place)
    angles = t.to(place, torch.float64)[:, None] * torch.exp(places * (-math.log(10000) / dim))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float().to(t.device)


class TimeEmbedding(nn.Module):
    """Timestep (B,) to features (B, features): sinusoids, then two linear layers."""

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        table = nn.Embedding(
            TIMESTEPS, dim, _weight=sinusoids(torch.arange(TIMESTEPS), dim), _freeze=True
        )
        layers = [table, nn.Linear(dim, features), nn.SiLU(), nn.Linear(features, features)]
        self.timembedding = nn.Sequential(*layers)
        for layer in (layers[1], layers[3]):
            start(layer)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        """Features of timesteps, int64 for the table's rows, float for the formula."""
        table, *layers = self.timembedding
        dim = cast(nn.Embedding, table).embedding_dim
        # Rows of the table are the network's own; between them the formula that they come from.
        h: torch.Tensor = sinusoids(t, dim) if t.is_floating_point() else table(t)
        for layer in layers:
            h = layer(h)
        return h


class Attention(nn.Module):
    """Self-attention of one head over all positions, added to its input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels)
        self.proj_q, self.proj_k, self.proj_v, self.proj = (
            nn.Conv2d(channels, channels, 1) for _ in range(4)
        )
        for layer in (self.proj_q, self.proj_k, self.proj_v):
            start(layer)
        start(self.proj, gain=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of x (B, C, H, W)."""
        h = self.group_norm(x)
        q, k, v = (f(h).flatten(2) for f in (self.proj_q, self.proj_k, self.proj_v))  # (B, C, HW)
        scores = q.transpose(1, 2) @ k * q.shape[1] ** -0.5  # (B, HW, HW)
        mixed = v @ scores.softmax(dim=-1).transpose(1, 2)
        out: torch.Tensor = x + self.proj(mixed.view_as(x))
        return out


class Block(nn.Module):
    """Two normalised convolutions with the time features between them, around a shortcut."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        features: int,
        dropout: float,
        groups: int,
        *,
        attention: bool = False,
    ) -> None:
        super().__init__()
        self.block1 = nn.Sequential(
            nn.GroupNorm(groups, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.temb_proj = nn.Sequential(nn.SiLU(), nn.Linear(features, outputs))
        self.block2 = nn.Sequential(
            nn.GroupNorm(groups, outputs),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        start(self.block1[2])
        start(self.temb_proj[1])
        start(self.block2[3], gain=1e-5)
        if inputs != outputs:
            start(self.shortcut)
        self.attn = Attention(outputs, groups) if attention else nn.Identity()

    def forward(self, x: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Of x (B, inputs, H, W) and time features (B, features)."""
        h = self.block1(x) + self.temb_proj(features)[:, :, None, None]
        out: torch.Tensor = self.attn(self.block2(h) + self.shortcut(x))
        return out


class Halve(nn.Module):
    """Half the side, by a strided convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.main = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        start(self.main)

    def forward(self, x: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Of x (B, C, H, W); time plays no part."""
        out: torch.Tensor = self.main(x)
        return out


class Double(nn.Module):
    """Twice the side: nearest neighbours, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.main = nn.Conv2d(channels, channels, 3, padding=1)
        start(self.main)

    def forward(self, x: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Of x (B, C, H, W); time plays no part."""
        out: torch.Tensor = self.main(interpolate(x, scale_factor=2, mode="nearest"))
        return out


def start(layer: nn.Module, gain: float = 1.0) -> None:
    """Ho et al.'s start: Glorot-uniform weights, nearly zero where a residual branch ends."""
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    nn.init.xavier_uniform_(layer.weight, gain=gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
