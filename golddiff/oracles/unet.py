"""The attention-free DDPM U-Net that Lukoianov et al. and the paper compare with.

Ho et al. 2020 with the self-attention of its levels removed; the middle of the network keeps one
attention block, as the published weights have it. Parameters bear the names of the published
checkpoints (``models/baseline_unet/<data set>/ckpt_epoch_200.pt``), so those load as they are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from golddiff.errors import ArgumentError
from golddiff.oracles.layers import Block, Double, Halve, TimeEmbedding, start

# Far above any network that this code is for; a damaged file must not ask for terabytes.
LARGEST = 4096
DEEPEST = 8
# Not learned: row t is the sinusoids of timestep t.
TABLE = "time_embedding.timembedding.0.weight"


@dataclass(frozen=True)
class UNetConfig:
    """Sizes of a :class:`UNet`.

    Attributes:
        channels: width of the first level, a multiple of ``groups``.
        multipliers: width of each level as a multiple of ``channels``; each level halves the side.
        blocks: residual blocks a level on the way down; one more on the way up.
        image_channels: of the images, in and out.
        classes: number of classes of a conditional network, 0 for an unconditional one.
        dropout: share of features dropped in training.
        groups: of its group normalisation; 32 in the published networks. A group of one channel
            loses its mean, and with it the brightness of an image, so narrow networks want fewer.
    """

    channels: int
    multipliers: tuple[int, ...]
    blocks: int = 2
    image_channels: int = 3
    classes: int = 0
    dropout: float = 0.15
    groups: int = 32

    @property
    def divisor(self) -> int:
        """The side of an image must be a multiple of this."""
        return int(2 ** (len(self.multipliers) - 1))

    @property
    def parts(self) -> int:
        """How many blocks it has; each holds several weights."""
        return self.blocks * len(self.multipliers)

    def check(self) -> None:
        """Raise for sizes that no network can have.

        Raises:
            ArgumentError: names the size.
        """
        sizes = {"channels": self.channels, "blocks": self.blocks, "groups": self.groups}
        sizes["image_channels"] = self.image_channels
        sizes.update({f"multipliers[{i}]": m for i, m in enumerate(self.multipliers)})
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
                raise ArgumentError(f"{name}: got {value!r}, expected an integer 1 to {LARGEST}")
        if self.channels % 2:  # a sine and a cosine for each frequency
            raise ArgumentError(f"channels: got {self.channels}, expected an even number")
        if self.channels % self.groups:
            raise ArgumentError(
                f"channels: got {self.channels}, expected a multiple of {self.groups} groups"
            )
        if not 1 <= len(self.multipliers) <= DEEPEST:
            raise ArgumentError(
                f"multipliers: got {len(self.multipliers)} levels, expected 1 to {DEEPEST}"
            )
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 0:
            raise ArgumentError(f"classes: got {self.classes!r}, expected an integer of 0 or more")
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"dropout: got {self.dropout}, expected 0 or more, below 1")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "multipliers": list(self.multipliers)}


class UNet(nn.Module):
    """eps(x_t, t, labels): the noise in a variance-preserving state at timestep 0..999.

    A conditional network adds a learned embedding of the class to the time features; its last row
    (index ``classes``) stands for "no class", learned by dropping labels in training.
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
            nn.init.normal_(self.class_embedding.weight, std=0.02)
        self.head = nn.Conv2d(config.image_channels, c, 3, padding=1)
        start(self.head)

        self.downblocks, kept, now = nn.ModuleList(), [c], c
        for level, width in enumerate(widths):
            for _ in range(config.blocks):
                self.downblocks.append(Block(now, width, *common))
                now = width
                kept.append(now)
            if level < len(widths) - 1:
                self.downblocks.append(Halve(now))
                kept.append(now)
        self.middleblocks = nn.ModuleList(
            Block(now, now, *common, attention=first) for first in (True, False)
        )
        self.upblocks = nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(config.blocks + 1):
                self.upblocks.append(Block(now + kept.pop(), width, *common))
                now = width
            if level:
                self.upblocks.append(Double(now))
        self.tail = nn.Sequential(
            nn.GroupNorm(config.groups, now),
            nn.SiLU(),
            nn.Conv2d(now, config.image_channels, 3, padding=1),
        )
        start(self.tail[2], gain=1e-5)

    def forward(
        self, x: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Predict the noise.

        Args:
            x: (B, C, H, W) x_t = sqrt(alpha_t) x0 + sqrt(1 - alpha_t) eps; H and W divide by
                2^(levels - 1).
            t: (B,) timesteps 0..999, integer, or float for the embedding between two of them.
            labels: (B,) int64 class indices of a conditional network, ``classes`` for none.
        """
        features = self.time_embedding(t)
        if labels is not None:
            features = features + self.class_embedding(labels)
        h = self.head(x)
        kept = [h]
        for layer in self.downblocks:
            h = layer(h, features)
            kept.append(h)
        for layer in self.middleblocks:
            h = layer(h, features)
        for layer in self.upblocks:
            if isinstance(layer, Block):
                h = torch.cat([h, kept.pop()], dim=1)
            h = layer(h, features)
        out: torch.Tensor = self.tail(h)
        return out
