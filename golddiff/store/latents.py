"""Training sets of VAE latents: encoding images into a store, decoding latents into images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from golddiff.sources.source import Batch, Source
from golddiff.store.build import build, check_free
from golddiff.store.images import ImageStore
from golddiff.store.opening import open_source
from golddiff.system.arguments import check_batch, path_of
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
    """Build a store of float32 latents, encoding images in one streaming pass.

    A latent is (mean of the VAE's posterior - shift) * scaling factor, the coordinates that latent
    diffusion models are trained in; where the VAE's configuration has
    ``latents_mean`` and ``latents_std``, they are the shift and a divisor of the factor. Encoding
    is deterministic: it uses the mean, not a sample.

    Args:
        source: images from any source of :meth:`golddiff.ImageStore.build`.
        path: folder to create.
        vae: a diffusers autoencoder, on the device to encode on.
        batch_size: images encoded together.
        overwrite: replace an existing store.
        progress: show a progress bar.
        reading: ``size``, ``labels``, ``split``, ``limit`` ... of ``ImageStore.build``; the VAE
            sets the number of channels.

    Raises:
        ArgumentError: an argument is invalid, or the VAE does not accept the images.
        SourceError: the source cannot be read.
        StoreError: the disk is full or not writable.
    """
    _check_vae(vae)
    batch_size = check_count("batch_size", batch_size)
    folder, channels = path_of("path", path), int(vae.config.in_channels)
    check_free(folder, overwrite)
    if channels in (1, 3):  # of other numbers, only arrays have that many
        reading = {"channels": channels, **reading}
    images = open_source(source, **reading)
    build(_Latents(images, vae, batch_size), folder, overwrite=overwrite, progress=progress)
    return ImageStore.open(folder)


@torch.no_grad()
def encode(vae: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    """Scaled latents (b, c, h, w) float32 of images (b, C, H, W) in [-1, 1]."""
    encoded = vae.encode(images.to(vae.device, vae.dtype))
    if not hasattr(encoded, "latent_dist"):  # AutoencoderTiny, VQModel
        raise _no_vae(vae)
    mean = encoded.latent_dist.mean.float()
    shift, factor = _shift_and_factor(vae)
    return _finite((mean - shift) * factor).cpu()


@torch.no_grad()
def decode(vae: AutoencoderKL, latents: torch.Tensor, batch_size: int = 16) -> torch.Tensor:
    """Images (b, C, H, W) float32 in [-1, 1] of scaled latents (b, c, h, w), on the same device.

    Raises:
        ArgumentError: the latents are not a tensor (b, c, h, w) of floats, b at least 1 and c the
            VAE's latent channels; the images hold NaN; not a VAE.
    """
    _check_vae(vae)
    batch_size = check_count("batch_size", batch_size)
    check_batch("latents", latents, None, "VAE")
    channels = vae.config.latent_channels
    if latents.ndim != 4 or not len(latents) or latents.shape[1] != channels:
        got = tuple(latents.shape)
        raise ArgumentError(f"latents: got shape {got}, expected (b, {channels}, h, w)")
    shift, factor = _shift_and_factor(vae)
    images = []
    for part in torch.split(latents, batch_size):
        raw = part.to(vae.device, torch.float32) / factor + shift
        decoded = _finite(vae.decode(raw.to(vae.dtype)).sample.float())
        images.append(decoded.clamp(-1, 1).to(latents.device))
    return torch.cat(images)


def _check_vae(vae: object) -> None:
    config = getattr(vae, "config", None)
    if not (hasattr(type(vae), "encode") and hasattr(config, "scaling_factor")):
        raise _no_vae(vae)


def _no_vae(vae: object) -> ArgumentError:
    return ArgumentError(f"vae: got {type(vae).__name__}, expected a diffusers AutoencoderKL")


def _shift_and_factor(vae: AutoencoderKL) -> tuple[torch.Tensor, torch.Tensor]:
    """(1, c or 1, 1, 1) float32 each: a latent is (the VAE's - shift) * factor."""
    mean, std = vae.config.get("latents_mean"), vae.config.get("latents_std")
    if mean is None or std is None:
        mean, std = vae.config.get("shift_factor") or 0.0, 1.0
    both = (torch.tensor(v, dtype=torch.float32, device=vae.device) for v in (mean, std))
    shift, scale = (v.reshape(1, -1, 1, 1) for v in both)
    return shift, vae.config.scaling_factor / scale


def _finite(values: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(values).all():
        raise ArgumentError(
            "vae: its output holds NaN or infinity; many VAEs overflow in float16, so try "
            "vae.float()"
        )
    return values


class _Latents:
    """A source that yields the latents of another source's images."""

    def __init__(self, images: Source, vae: AutoencoderKL, batch_size: int) -> None:
        shape = images.info.shape
        channels = int(vae.config.in_channels)
        if len(shape) != 3 or shape[0] != channels:
            raise ArgumentError(
                f"source: got examples of shape {shape}, but the VAE takes ({channels}, H, W)"
            )
        self._images, self._vae, self._batch_size = images, vae, batch_size
        self.total, self.skipped, self.names = images.total, images.skipped, images.names
        self.info = replace(
            images.info,
            shape=tuple(encode(vae, torch.zeros(1, *shape, device="cpu")).shape[1:]),
            dtype=np.dtype(np.float32),
            is_pixels=False,
            description=(
                f"latents of {images.info.description} ({type(vae).__name__}, "
                f"scaling factor {vae.config.scaling_factor:g})"
            ),
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of at most ``size`` latents, in source order."""
        for pixels, labels in self._images.batches(min(size, self._batch_size)):
            images = torch.from_numpy(pixels.astype(np.float32))
            if pixels.dtype == np.uint8:
                images = images / 127.5 - 1
            yield Batch(encode(self._vae, images).numpy(), labels)
