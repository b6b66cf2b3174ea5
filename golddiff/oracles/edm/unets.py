"""The U-Nets of DDPM++ and NCSN++ (Song et al. 2021) and of ADM, as trained by EDM."""

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
    UNetBlock,
    group_norm,
    positional_embedding,
)

CHANNELS_PER_HEAD = 64  # in ADM


def make_levels(
    sizes: tuple[int, int, int],
    widths: Sequence[int],
    num_blocks: int,
    block: Callable[..., UNetBlock],
    heads: Callable[[int, int, bool], int],
    carry: Callable[[int, int], nn.Module] | None = None,
) -> tuple[nn.ModuleDict, nn.ModuleDict]:
    """The encoder's layers and the decoder's, which has one block more per level.

    ``sizes`` are the side and channels of the images and the channels after the first convolution.
    ``heads(side, width, is_last)`` is a block's number of attention heads, with side 0 in the
    middle. ``carry`` creates a layer of NCSN++'s path that carries the downsampled image.
    """
    enc, dec = nn.ModuleDict(), nn.ModuleDict()
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
            attention = heads(side, width, True)
            enc[f"{side}x{side}_block{index}"] = block(channels, width, heads=attention)
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
    return enc, dec


def run_levels(
    enc: nn.ModuleDict, dec: nn.ModuleDict, x: torch.Tensor, embedding: torch.Tensor
) -> torch.Tensor:
    """Apply the encoder and the decoder's blocks to x (B, C, side, side)."""
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
        label_dim: number of classes; 0: unconditional.
        augment_dim: length of augmentation labels, which only training uses.
        model_channels: channels of the first level.
        channel_mult: channels of each level, in multiples of ``model_channels``.
        channel_mult_emb: channels of the embedding, in the same multiples.
        num_blocks: residual blocks per level.
        attn_resolutions: sides at which blocks have self-attention.
        embedding_type: "positional" (DDPM++) or "fourier" (NCSN++).
        channel_mult_noise: channels of the noise features: 1 for DDPM++, 2 for NCSN++.
        encoder_type: "standard" (DDPM++) or "residual" (NCSN++), where a second path carries the
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
        embeddings: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "positional": functools.partial(positional_embedding, channels=noise, endpoint=True),
            "fourier": FourierEmbedding(noise),
        }
        self.map_noise = embeddings[embedding_type]
        self.map_label = nn.Linear(label_dim, noise) if label_dim else None
        self.map_augment = nn.Linear(augment_dim, noise, bias=False) if augment_dim else None
        self.map_layer0 = nn.Linear(noise, emb)
        self.map_layer1 = nn.Linear(emb, emb)
        block = functools.partial(
            UNetBlock, emb_channels=emb, adm=False, resample_filter=resample_filter
        )
        carry = functools.partial(
            ConvThenDown, kernel=3, down=True, resample_filter=resample_filter
        )
        encoders = {"standard": None, "residual": carry}
        widths = [model_channels * multiple for multiple in channel_mult]

        def heads(side: int, width: int, last: bool) -> int:
            # Only the last block of a decoder level has attention, and the middle block always.
            return int(side == 0 or (last and side in attn_resolutions))

        self.enc, self.dec = make_levels(
            (img_resolution, in_channels, model_channels), widths, num_blocks, block, heads,
            encoders[encoder_type],
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
        return self.dec[f"{self._at}_aux_conv"](h)


class DhariwalUNet(nn.Module):
    """U-Net of ADM (Dhariwal and Nichol 2021), whose embedding scales and shifts the features.

    Takes the arguments of :class:`SongUNet`.
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
        self.map_noise = functools.partial(positional_embedding, channels=first)
        self.map_augment = nn.Linear(augment_dim, first, bias=False) if augment_dim else None
        self.map_layer0 = nn.Linear(first, emb)
        self.map_layer1 = nn.Linear(emb, emb)
        self.map_label = nn.Linear(label_dim, emb, bias=False) if label_dim else None
        widths = [model_channels * multiple for multiple in channel_mult]

        def heads(side: int, width: int, last: bool) -> int:
            return width // CHANNELS_PER_HEAD if side == 0 or side in attn_resolutions else 0

        block = functools.partial(UNetBlock, emb_channels=emb, adm=True)
        self.enc, self.dec = make_levels(
            (img_resolution, in_channels, widths[0]), widths, num_blocks, block, heads
        )
        self.out_norm = group_norm(widths[0])
        self.out_conv = Conv2d(widths[0], out_channels, 3)

    def forward(
        self, x: torch.Tensor, noise: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See :meth:`SongUNet.forward`."""
        embedding = self.map_layer1(silu(self.map_layer0(self.map_noise(noise))))
        if self.map_label is not None:
            embedding = embedding + self.map_label.weight.T[labels]
        h = run_levels(self.enc, self.dec, x, silu(embedding))
        return self.out_conv(silu(self.out_norm(h)))
