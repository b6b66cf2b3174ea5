"""Training sets of VAE latents: images encoded into a store, and latents decoded to images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from golddiff.sources.source import Batch, Source
from golddiff.store.build import build
from golddiff.store.images import ImageStore
from golddiff.store.opening import open_source
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import check_count

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


def index_latents(
    source: object,
    path: str | os.PathLike[str],
    vae: AutoencoderKL,
    *,
    batch_size: int = 16,
    overwrite: bool = False,
    progress: bool = False,
    **reading: Any,
) -> ImageStore:
    """Build a store of the latents of images: float32, encoded as they stream by.

    A latent is (mean of the VAE's posterior - shift) * scaling factor, the coordinates that latent
    diffusion models are trained in; nothing is drawn at random.

    Args:
        source: images, as :meth:`golddiff.ImageStore.build` takes them.
        path: folder to make.
        vae: a diffusers autoencoder, on the device that is to encode.
        batch_size: images encoded together.
        overwrite: replace a store that is already there.
        progress: show a progress bar.
        reading: ``size``, ``labels``, ``split``, ``limit`` ... of ``ImageStore.build``; the
            number of channels is the VAE's.

    Raises:
        ArgumentError: a bad argument; images that the VAE does not take.
        SourceError: the source cannot be read.
        StoreError: the disk is full or cannot be written.
    """
    batch_size = check_count("batch_size", batch_size)
    channels = int(vae.config.in_channels)
    pictures = open_source(source, **{**_wanted_channels(source, channels), **reading})
    build(_Latents(pictures, vae, batch_size), Path(path), overwrite=overwrite, progress=progress)
    return ImageStore.open(Path(path))


@torch.no_grad()
def encode(vae: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    """Scaled latents (b, c, h, w) float32 of images (b, C, H, W) in [-1, 1]."""
    mean = vae.encode(images.to(vae.device, vae.dtype)).latent_dist.mean
    latents: torch.Tensor = (mean.float() - _shift(vae)) * vae.config.scaling_factor
    return latents.cpu()


@torch.no_grad()
def decode(vae: AutoencoderKL, latents: torch.Tensor, batch_size: int = 16) -> torch.Tensor:
    """Images (b, C, H, W) float32 in [-1, 1] of scaled latents (b, c, h, w), on their device."""
    images = []
    for start in range(0, len(latents), batch_size):
        part = latents[start : start + batch_size]
        raw = part.to(vae.device, torch.float32) / vae.config.scaling_factor + _shift(vae)
        images.append(vae.decode(raw.to(vae.dtype)).sample.float().clamp(-1, 1).to(latents.device))
    return torch.cat(images)


def _shift(vae: AutoencoderKL) -> float:
    return float(vae.config.get("shift_factor") or 0.0)


def _wanted_channels(source: object, channels: int) -> dict[str, int]:
    """Arrays of floats have the channels that they have; other sources are converted."""
    floats = getattr(getattr(source, "dtype", None), "is_floating_point", None)
    if floats is None:
        floats = isinstance(source, np.ndarray) and source.dtype.kind == "f"
    return {"channels": channels} if channels in (1, 3) and not floats else {}


class _Latents:
    """The latents of another source's images, as a source."""

    def __init__(self, pictures: Source, vae: AutoencoderKL, batch_size: int) -> None:
        shape = pictures.info.shape
        channels = int(vae.config.in_channels)
        if len(shape) != 3 or shape[0] != channels:
            raise ArgumentError(
                f"source: got examples of shape {shape}, but the VAE takes ({channels}, H, W)"
            )
        self._pictures, self._vae, self._batch_size = pictures, vae, batch_size
        self.skipped, self.names = pictures.skipped, pictures.names
        self.info = replace(
            pictures.info,
            shape=tuple(encode(vae, torch.zeros(1, *shape)).shape[1:]),
            dtype=np.dtype(np.float32),
            description=(
                f"latents of {pictures.info.description} ({type(vae).__name__}, "
                f"scaling factor {vae.config.scaling_factor:g})"
            ),
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Latents of at most ``size`` images at a time, in order."""
        for pixels, labels in self._pictures.batches(min(size, self._batch_size)):
            images = torch.from_numpy(pixels.astype(np.float32))
            if pixels.dtype == np.uint8:
                images = images / 127.5 - 1
            yield Batch(encode(self._vae, images).numpy(), labels)
