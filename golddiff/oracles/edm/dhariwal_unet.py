"""The ADM network (Dhariwal and Nichol 2021), in the form that EDM trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from golddiff.oracles.edm.layers import Conv2d, PositionalEmbedding, UNetBlock, group_norm

CHANNELS_PER_HEAD = 64


class DhariwalUNet(nn.Module):
    """U-Net of ADM: attention at several resolutions, the embedding scales and shifts.

    Args:
        img_resolution: side of the images.
        in_channels: channels of the images.
        out_channels: channels of the output.
        label_dim: classes; 0: unconditional.
        augment_dim: length of augmentation labels, which are only used in training.
        model_channels: base number of channels.
        channel_mult: each level's multiple of ``model_channels``.
        channel_mult_emb: the embedding's.
        num_blocks: residual blocks a level.
        attn_resolutions: sides at which blocks have self-attention.
    """

    def __init__(
        self,
        img_resolution: int,
        in_channels: int,
        out_channels: int,
        label_dim: int = 0,
        augment_dim: int = 0,
        model_channels: int = 192,
        channel_mult: Sequence[int] = (1, 2, 3, 4),
        channel_mult_emb: int = 4,
        num_blocks: int = 3,
        attn_resolutions: Sequence[int] = (32, 16, 8),
    ) -> None:
        super().__init__()
        emb = model_channels * channel_mult_emb
        self.map_noise = PositionalEmbedding(model_channels)
        self.map_augment = (
            nn.Linear(augment_dim, model_channels, bias=False) if augment_dim else None
        )
        self.map_layer0 = nn.Linear(model_channels, emb)
        self.map_layer1 = nn.Linear(emb, emb)
        self.map_label = nn.Linear(label_dim, emb, bias=False) if label_dim else None

        def heads(channels: int, attention: bool) -> int:
            return channels // CHANNELS_PER_HEAD if attention else 0

        self.enc = nn.ModuleDict()
        channels = model_channels * channel_mult[0]
        skips = [channels]
        for level, multiple in enumerate(channel_mult):
            side = f"{img_resolution >> level}x{img_resolution >> level}"
            attention = img_resolution >> level in attn_resolutions
            if level == 0:
                self.enc[f"{side}_conv"] = Conv2d(in_channels, channels, 3)
            else:
                self.enc[f"{side}_down"] = UNetBlock(channels, channels, emb, down=True)
                skips.append(channels)
            cout = model_channels * multiple
            for index in range(num_blocks):
                self.enc[f"{side}_block{index}"] = UNetBlock(
                    channels, cout, emb, heads=heads(cout, attention)
                )
                channels = cout
                skips.append(channels)

        self.dec = nn.ModuleDict()
        for level, multiple in reversed(list(enumerate(channel_mult))):
            side = f"{img_resolution >> level}x{img_resolution >> level}"
            attention = img_resolution >> level in attn_resolutions
            if level == len(channel_mult) - 1:
                self.dec[f"{side}_in0"] = UNetBlock(
                    channels, channels, emb, heads=heads(channels, True)
                )
                self.dec[f"{side}_in1"] = UNetBlock(channels, channels, emb)
            else:
                self.dec[f"{side}_up"] = UNetBlock(channels, channels, emb, up=True)
            cout = model_channels * multiple
            for index in range(num_blocks + 1):
                self.dec[f"{side}_block{index}"] = UNetBlock(
                    channels + skips.pop(), cout, emb, heads=heads(cout, attention)
                )
                channels = cout
        self.out_norm = group_norm(channels)
        self.out_conv = Conv2d(channels, out_channels, 3)

    def forward(
        self, x: torch.Tensor, noise: torch.Tensor, classes: torch.Tensor | None
    ) -> torch.Tensor:
        """Run the network.

        Args:
            x: (B, in_channels, side, side).
            noise: (B,) transformed noise levels.
            classes: (B, label_dim) one-hot, or None for an unconditional network.

        Returns:
            (B, out_channels, side, side).
        """
        embedding = self.map_layer1(functional.silu(self.map_layer0(self.map_noise(noise))))
        if self.map_label is not None:
            assert classes is not None
            embedding = embedding + self.map_label(classes)
        embedding = functional.silu(embedding)
        h, skips = x, []
        for layer in self.enc.values():
            h = layer(h, embedding) if isinstance(layer, UNetBlock) else layer(h)
            skips.append(h)
        for name, layer in self.dec.items():
            if "block" in name:
                h = torch.cat([h, skips.pop()], dim=1)
            h = layer(h, embedding)
        made: torch.Tensor = self.out_conv(functional.silu(self.out_norm(h)))
        return made
