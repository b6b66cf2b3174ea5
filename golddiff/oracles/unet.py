"""The attention-free DDPM U-Net that Lukoianov et al. and the paper compare with.

The network of Ho et al. 2020 without self-attention in its levels; like the published weights, it
keeps one attention block in the middle. Parameters have the names of the published checkpoints
(``models/baseline_unet/<data set>/ckpt_epoch_200.pt``), which therefore load unchanged.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from golddiff.oracles.parameterisations import TIMESTEPS
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import is_whole

# Far above any real network: a damaged file must not allocate terabytes.
MAX_SIZE, MAX_BLOCKS, MAX_LEVELS = 4096, 16, 8
# Frozen during training: row t holds the sinusoids of timestep t.
TABLE = "time_embedding.timembedding.0.weight"


@dataclass(frozen=True)
class UNetConfig:
    """Sizes of a :class:`UNet`."""

    channels: int  # width of the first level, a multiple of ``groups``
    multipliers: tuple[int, ...]  # width of each level over ``channels``; sides halve per level
    blocks: int = 2  # residual blocks per level on the way down; one more on the way up
    image_channels: int = 3  # channels of the images, in and out
    classes: int = 0  # number of classes, 0 for an unconditional network
    dropout: float = 0.15  # share of features dropped in training
    # Groups of each group normalisation, 32 in the published networks. Narrow networks need fewer:
    # a group of one channel loses its mean, and with it the brightness of the image.
    groups: int = 32

    @property
    def divisor(self) -> int:
        """The side of an image must be a multiple of this number."""
        return int(2 ** (len(self.multipliers) - 1))

    def check(self) -> None:
        """Raise ArgumentError for sizes that are out of range or inconsistent."""
        sizes = [(n, getattr(self, n)) for n in ("channels", "blocks", "groups", "image_channels")]
        for name, value in [*sizes, *(("multipliers", m) for m in self.multipliers)]:
            most = MAX_BLOCKS if name == "blocks" else MAX_SIZE
            if not is_whole(value) or not 1 <= value <= most:
                raise ArgumentError(f"{name}: got {value!r}, expected an integer 1 to {most}")
        if self.channels % 2:  # a sine and a cosine for each frequency
            raise ArgumentError(f"channels: got {self.channels}, expected an even number")
        if self.channels % self.groups:
            raise ArgumentError(
                f"channels: got {self.channels}, expected a multiple of {self.groups} groups"
            )
        if not 1 <= len(self.multipliers) <= MAX_LEVELS:
            raise ArgumentError(
                f"multipliers: got {len(self.multipliers)} levels, expected 1 to {MAX_LEVELS}"
            )
        if not is_whole(self.classes) or self.classes < 0:
            raise ArgumentError(f"classes: got {self.classes!r}, expected an integer of 0 or more")
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"dropout: got {self.dropout}, expected 0 or more, below 1")


def sinusoids(t: torch.Tensor, dim: int) -> torch.Tensor:
    """Embedding (B, dim) of timesteps (B,), integer or fractional (Vaswani et al. 2017).

    Column 2i is sin(t / 10000^(2i/dim)), column 2i + 1 the cosine.
    """
    # Always in float64 on the CPU; a network on the meta device has no values to compute.
    device = "meta" if t.is_meta else "cpu"
    columns = torch.arange(0, dim, 2, dtype=torch.float64, device=device)
    angles = t.to(device, torch.float64)[:, None] * torch.exp(columns * (-math.log(10000) / dim))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float().to(t.device)


class TimeEmbedding(nn.Module):
    """Time features (B, features) of timesteps (B,): sinusoids, then two linear layers."""

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        table = nn.Embedding(
            TIMESTEPS, dim, _weight=sinusoids(torch.arange(TIMESTEPS), dim), _freeze=True
        )
        layers = [table, nn.Linear(dim, features), nn.SiLU(), nn.Linear(features, features)]
        self.timembedding = nn.Sequential(*layers)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        """Embed integer timesteps by the stored table, floating-point ones by the formula."""
        table, *layers = self.timembedding
        dim = cast(nn.Embedding, table).embedding_dim
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to x (B, C, H, W)."""
        h = self.group_norm(x)
        q, k, v = (f(h).flatten(2) for f in (self.proj_q, self.proj_k, self.proj_v))  # (B, C, HW)
        scores = q.transpose(1, 2) @ k * q.shape[1] ** -0.5  # (B, HW, HW)
        mixed = v @ scores.softmax(dim=-1).transpose(1, 2)
        return x + self.proj(mixed.view_as(x))


class Block(nn.Module):
    """Residual block: two normalised convolutions, with time features added between them."""

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
        self.attn = Attention(outputs, groups) if attention else nn.Identity()

    def forward(self, x: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Apply to x (B, inputs, H, W) and time features (B, features)."""
        h = self.block1(x) + self.temb_proj(features)[:, :, None, None]
        return self.attn(self.block2(h) + self.shortcut(x))


def halve(channels: int) -> nn.Module:
    """Downsampling by 2: a strided convolution."""
    return nn.Sequential(OrderedDict(main=nn.Conv2d(channels, channels, 3, stride=2, padding=1)))


def double(channels: int) -> nn.Module:
    """Upsampling by 2: nearest neighbours, then a convolution."""
    convolution = nn.Conv2d(channels, channels, 3, padding=1)
    return nn.Sequential(OrderedDict(nearest=nn.Upsample(scale_factor=2), main=convolution))


class UNet(nn.Module):
    """eps(x_t, t, labels): predicts the noise of a variance-preserving state at timestep 0..999.

    A conditional network adds a learned embedding of the class to the time features. The last row
    of the embedding (index ``classes``) means "no class"; training learns it by dropping labels.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        c, features = config.channels, 4 * config.channels
        common = features, config.dropout, config.groups
        widths = [c * m for m in config.multipliers]
        self.time_embedding = TimeEmbedding(c, features)
        if config.classes:
            self.class_embedding = nn.Embedding(config.classes + 1, features)
        self.head = nn.Conv2d(config.image_channels, c, 3, padding=1)

        self.downblocks, skips, width_in = nn.ModuleList(), [c], c
        for level, width in enumerate(widths):
            for _ in range(config.blocks):
                self.downblocks.append(Block(width_in, width, *common))
                width_in = width
                skips.append(width_in)
            if level < len(widths) - 1:
                self.downblocks.append(halve(width_in))
                skips.append(width_in)
        self.middleblocks = nn.ModuleList(
            Block(width_in, width_in, *common, attention=first) for first in (True, False)
        )
        self.upblocks = nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(config.blocks + 1):
                self.upblocks.append(Block(width_in + skips.pop(), width, *common))
                width_in = width
            if level:
                self.upblocks.append(double(width_in))
        self.tail = nn.Sequential(
            nn.GroupNorm(config.groups, width_in),
            nn.SiLU(),
            nn.Conv2d(width_in, config.image_channels, 3, padding=1),
        )

    def forward(
        self, x: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Predict the noise.

        Args:
            x: (B, C, H, W) x_t = sqrt(alpha_t) x0 + sqrt(1 - alpha_t) eps; H and W are multiples of
                2^(levels - 1).
            t: (B,) timesteps 0..999, int64, or float for values between two training steps.
            labels: (B,) int64 class indices for a conditional network, ``classes`` for no class.
        """
        features = self.time_embedding(t)
        if labels is not None:
            features = features + self.class_embedding(labels)
        h = self.head(x)
        skips = [h]
        for layer in self.downblocks:
            h = layer(h, features) if isinstance(layer, Block) else layer(h)
            skips.append(h)
        for layer in self.middleblocks:
            h = layer(h, features)
        for layer in self.upblocks:
            if isinstance(layer, Block):
                h = layer(torch.cat([h, skips.pop()], dim=1), features)
            else:
                h = layer(h)
        return self.tail(h)
