"""The U-Nets of DDPM++ and NCSN++ (Song et al. 2021) and of ADM, in the form that EDM trained."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.functional import silu

from golddiff.oracles.edm.layers import (
    Conv2d,
    ConvThenDown,
    FourierEmbedding,
    PositionalEmbedding,
    UNetBlock,
    group_norm,
)

CHANNELS_PER_HEAD = 64  # of ADM


def add_levels(
    enc: nn.ModuleDict,
    dec: nn.ModuleDict,
    sizes: tuple[int, int, int],
    widths: Sequence[int],
    num_blocks: int,
    block: Callable[..., UNetBlock],
    heads: Callable[[int, int, bool], int],
    carry: Callable[[int, int], nn.Module] | None = None,
) -> None:
    """Fill the encoder, and from the lowest resolution up the decoder, a block more a level.

    ``sizes``: side of the images, their channels, those after the first convolution. ``heads`` of
    attention: at a side and width, and whether it is a level's last block. ``carry`` makes a layer
    of the path that carries the downsampled image.
    """
    resolution, image_channels, channels = sizes
    carried, skips = image_channels, [channels]
    enc[f"{resolution}x{resolution}_conv"] = Conv2d(image_channels, channels, 3)
    for level, width in enumerate(widths):
        side = resolution >> level
        if level:
            enc[f"{side}x{side}_down"] = block(channels, channels, down=True)
            skips.append(channels)
            if carry is not None:
                enc[f"{side}x{side}_aux_residual"] = carry(carried, channels)
                carried = channels
        for index in range(num_blocks):
            made = block(channels, width, heads=heads(side, width, True))
            enc[f"{side}x{side}_block{index}"] = made
            channels = width
            skips.append(channels)
    for level, width in reversed(list(enumerate(widths))):
        side = resolution >> level
        if level == len(widths) - 1:
            dec[f"{side}x{side}_in0"] = block(channels, channels, heads=heads(0, width, True))
            dec[f"{side}x{side}_in1"] = block(channels, channels)
        else:
            dec[f"{side}x{side}_up"] = block(channels, channels, up=True)
        for index in range(num_blocks + 1):
            attention = heads(side, width, index == num_blocks)
            dec[f"{side}x{side}_block{index}"] = block(
                channels + skips.pop(), width, heads=attention
            )
            channels = width


def run_levels(
    enc: nn.ModuleDict, dec: nn.ModuleDict, x: torch.Tensor, embedding: torch.Tensor
) -> torch.Tensor:
    """Through the encoder and the blocks of the decoder: (B, C, side, side) each."""
    skips: list[torch.Tensor] = []
    carried = h = x
    for layer in enc.values():
        if isinstance(layer, ConvThenDown):
            h = skips[-1] = carried = (h + layer(carried)) / math.sqrt(2)
        else:
            h = layer(h, embedding) if isinstance(layer, UNetBlock) else layer(h)
            skips.append(h)
    for name, layer in dec.items():
        if "_block" in name:
            h = torch.cat([h, skips.pop()], dim=1)
        if isinstance(layer, UNetBlock):
            h = layer(h, embedding)
    return h


class SongUNet(nn.Module):
    """U-Net of DDPM++ and NCSN++.

    Args:
        img_resolution, in_channels: side and channels of the images.
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
        block = functools.partial(
            UNetBlock,
            emb_channels=emb,
            skip_scale=math.sqrt(0.5),
            eps=1e-6,
            resample_filter=resample_filter,
            resample_proj=True,
            adaptive_scale=False,
        )
        carry = functools.partial(
            ConvThenDown, kernel=3, down=True, resample_filter=resample_filter
        )
        widths = [model_channels * multiple for multiple in channel_mult]

        def heads(side: int, width: int, last: bool) -> int:
            # Of a decoder's level only the last block attends, and the middle always.
            return int(side == 0 or (last and side in attn_resolutions))

        self.enc, self.dec = nn.ModuleDict(), nn.ModuleDict()
        add_levels(
            self.enc, self.dec, (img_resolution, in_channels, model_channels), widths, num_blocks,
            block, heads, carry if encoder_type == "residual" else None,
        )  # fmt: skip
        self._at = f"{img_resolution}x{img_resolution}"
        self.dec[f"{self._at}_aux_norm"] = group_norm(widths[0], 1e-6)
        self.dec[f"{self._at}_aux_conv"] = Conv2d(widths[0], out_channels, 3)

    def forward(
        self, x: torch.Tensor, noise: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B, C, side, side), noise levels (B,), classes (B,) -> (B, out_channels, side, side)."""
        cosines, sines = self.map_noise(noise).chunk(2, dim=1)
        features = torch.cat([sines, cosines], dim=1)
        if self.map_label is not None:
            scale = math.sqrt(self.map_label.in_features)
            features = features + scale * self.map_label.weight.T[labels] + self.map_label.bias
        embedding = silu(self.map_layer1(silu(self.map_layer0(features))))
        h = silu(self.dec[f"{self._at}_aux_norm"](run_levels(self.enc, self.dec, x, embedding)))
        made: torch.Tensor = self.dec[f"{self._at}_aux_conv"](h)
        return made


class DhariwalUNet(nn.Module):
    """U-Net of ADM (Dhariwal and Nichol 2021): the embedding scales and shifts.

    Arguments as of :class:`SongUNet`.
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
        first, emb = model_channels, model_channels * channel_mult_emb
        self.map_noise = PositionalEmbedding(first)
        self.map_augment = nn.Linear(augment_dim, first, bias=False) if augment_dim else None
        self.map_layer0 = nn.Linear(first, emb)
        self.map_layer1 = nn.Linear(emb, emb)
        self.map_label = nn.Linear(label_dim, emb, bias=False) if label_dim else None
        widths = [model_channels * multiple for multiple in channel_mult]

        def heads(side: int, width: int, last: bool) -> int:
            return width // CHANNELS_PER_HEAD if side == 0 or side in attn_resolutions else 0

        self.enc, self.dec = nn.ModuleDict(), nn.ModuleDict()
        add_levels(
            self.enc, self.dec, (img_resolution, in_channels, widths[0]), widths, num_blocks,
            functools.partial(UNetBlock, emb_channels=emb), heads,
        )  # fmt: skip
        self.out_norm = group_norm(widths[0])
        self.out_conv = Conv2d(widths[0], out_channels, 3)

    def forward(
        self, x: torch.Tensor, noise: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run the network, as :meth:`SongUNet.forward`."""
        embedding = self.map_layer1(silu(self.map_layer0(self.map_noise(noise))))
        if self.map_label is not None:
            embedding = embedding + self.map_label.weight.T[labels]
        h = run_levels(self.enc, self.dec, x, silu(embedding))
        made: torch.Tensor = self.out_conv(silu(self.out_norm(h)))
        return made
