"""The DDPM++ and NCSN++ networks (Song et al. 2021), in the form that EDM trained."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from golddiff.oracles.edm.layers import (
    Conv2d,
    ConvThenDown,
    FourierEmbedding,
    PositionalEmbedding,
    UNetBlock,
    group_norm,
)


class SongUNet(nn.Module):
    """U-Net of DDPM++ and NCSN++; each block of the encoder feeds one of the decoder.

    Args:
        img_resolution: side of the images.
        in_channels: channels of the images.
        out_channels: channels of the output.
        label_dim: classes; 0: unconditional.
        augment_dim: length of augmentation labels, which are only used in training.
        model_channels: channels of the first level.
        channel_mult: each level's multiple of ``model_channels``.
        channel_mult_emb: the embedding's.
        num_blocks: residual blocks a level.
        attn_resolutions: sides at which blocks have self-attention.
        embedding_type: "positional" (DDPM++) or "fourier" (NCSN++).
        channel_mult_noise: the noise features' multiple, 1 for DDPM++, 2 for NCSN++.
        encoder_type: "standard" (DDPM++), or "residual" (NCSN++): a path of its own carries the
            downsampled image.
        resample_filter: (1, 1) for DDPM++, (1, 3, 3, 1) for NCSN++.
    """

    def __init__(
        self,
        img_resolution: int,
        in_channels: int,
        out_channels: int,
        label_dim: int = 0,
        augment_dim: int = 0,
        model_channels: int = 128,
        channel_mult: Sequence[int] = (1, 2, 2, 2),
        channel_mult_emb: int = 4,
        num_blocks: int = 4,
        attn_resolutions: Sequence[int] = (16,),
        embedding_type: str = "positional",
        channel_mult_noise: int = 1,
        encoder_type: str = "standard",
        resample_filter: Sequence[float] = (1, 1),
    ) -> None:
        super().__init__()
        self.label_dim = label_dim
        noise, emb = model_channels * channel_mult_noise, model_channels * channel_mult_emb
        self.map_noise: nn.Module = (
            PositionalEmbedding(noise, endpoint=True)
            if embedding_type == "positional"
            else FourierEmbedding(noise)
        )
        self.map_label = nn.Linear(label_dim, noise) if label_dim else None
        self.map_augment = nn.Linear(augment_dim, noise, bias=False) if augment_dim else None
        self.map_layer0 = nn.Linear(noise, emb)
        self.map_layer1 = nn.Linear(emb, emb)

        # What all blocks and resampling layers have in common.
        self._block = functools.partial(
            UNetBlock,
            emb_channels=emb,
            skip_scale=math.sqrt(0.5),
            eps=1e-6,
            resample_filter=resample_filter,
            resample_proj=True,
            adaptive_scale=False,
        )
        self.enc, self.dec = nn.ModuleDict(), nn.ModuleDict()
        sides = [img_resolution >> level for level in range(len(channel_mult))]
        widths = [model_channels * multiple for multiple in channel_mult]
        attention = [side in attn_resolutions for side in sides]
        levels = list(zip(sides, widths, attention, strict=True))
        skips = self._add_encoder(
            in_channels, model_channels, levels, num_blocks, encoder_type, resample_filter
        )
        self._add_decoder(out_channels, levels, num_blocks, skips)

    def _add_encoder(
        self,
        in_channels: int,
        model_channels: int,
        levels: list[tuple[int, int, bool]],
        num_blocks: int,
        encoder_type: str,
        resample_filter: Sequence[float],
    ) -> list[int]:
        """Add the encoder's layers; the channels of each output that the decoder takes up."""
        channels, carried = model_channels, in_channels
        skips = [channels]
        for level, (side, width, attention) in enumerate(levels):
            at = f"{side}x{side}"
            if level == 0:
                self.enc[f"{at}_conv"] = Conv2d(in_channels, channels, 3)
            else:
                self.enc[f"{at}_down"] = self._block(channels, channels, down=True)
                skips.append(channels)
                if encoder_type == "residual":
                    self.enc[f"{at}_aux_residual"] = ConvThenDown(
                        carried, channels, 3, down=True, resample_filter=resample_filter
                    )
                    carried = channels
            for index in range(num_blocks):
                self.enc[f"{at}_block{index}"] = self._block(channels, width, heads=int(attention))
                channels = width
                skips.append(channels)
        return skips

    def _add_decoder(
        self,
        out_channels: int,
        levels: list[tuple[int, int, bool]],
        num_blocks: int,
        skips: list[int],
    ) -> None:
        """Add the decoder's layers, from the lowest resolution up."""
        channels = levels[-1][1]
        for level, (side, width, attention) in reversed(list(enumerate(levels))):
            at = f"{side}x{side}"
            if level == len(levels) - 1:
                self.dec[f"{at}_in0"] = self._block(channels, channels, heads=1)
                self.dec[f"{at}_in1"] = self._block(channels, channels)
            else:
                self.dec[f"{at}_up"] = self._block(channels, channels, up=True)
            for index in range(num_blocks + 1):
                # Only the last block of a level attends, unlike in the encoder.
                heads = int(attention and index == num_blocks)
                self.dec[f"{at}_block{index}"] = self._block(
                    channels + skips.pop(), width, heads=heads
                )
                channels = width
        self.dec[f"{at}_aux_norm"] = group_norm(channels, 1e-6)
        self.dec[f"{at}_aux_conv"] = Conv2d(channels, out_channels, 3)

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
        embedding = self._embedding(noise, classes)
        h, skips = self._encode(x, embedding)
        return self._decode(h, skips, embedding)

    def _embedding(self, noise: torch.Tensor, classes: torch.Tensor | None) -> torch.Tensor:
        cosines, sines = self.map_noise(noise).chunk(2, dim=1)
        features = torch.cat([sines, cosines], dim=1)
        if self.map_label is not None:
            assert classes is not None
            features = features + self.map_label(classes * math.sqrt(self.label_dim))
        return functional.silu(self.map_layer1(functional.silu(self.map_layer0(features))))

    def _encode(
        self, x: torch.Tensor, embedding: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        skips: list[torch.Tensor] = []
        carried = h = x
        for name, layer in self.enc.items():
            if name.endswith("aux_residual"):
                h = skips[-1] = carried = (h + layer(carried)) / math.sqrt(2)
            else:
                h = layer(h, embedding) if isinstance(layer, UNetBlock) else layer(h)
                skips.append(h)
        return h, skips

    def _decode(
        self, h: torch.Tensor, skips: list[torch.Tensor], embedding: torch.Tensor
    ) -> torch.Tensor:
        for name, layer in self.dec.items():
            if name.endswith("aux_norm"):
                h = functional.silu(layer(h))
            elif name.endswith("aux_conv"):
                h = layer(h)
            else:
                if "_block" in name:
                    h = torch.cat([h, skips.pop()], dim=1)
                h = layer(h, embedding)
        return h
