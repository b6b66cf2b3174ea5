"""Stores of a VAE's latents, for the pipelines of diffusers."""

import copy

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, DDIMScheduler

import golddiff
from golddiff import AnalyticUNet, Wiener, sample
from golddiff.diffusers import decode, index_latents
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from tests.test_diffusers import run_loop


@pytest.fixture(scope="module")
def vae():
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(8, 8), norm_num_groups=2, latent_channels=2, sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        scaling_factor=0.5, shift_factor=0.1,
    ).eval()  # fmt: skip


def test_latents_are_the_scaled_posterior_means_of_the_vae(vae, smooth_images, tmp_path):
    images = smooth_images(40, (3, 16, 16))
    store = index_latents(images, tmp_path / "latents", vae, batch_size=16, labels=np.arange(40))
    assert (store.n, store.shape, store.is_pixels) == (40, (2, 8, 8), False)
    assert store.labels.tolist() == list(range(40))
    with torch.no_grad():
        means = vae.encode(images.float() / 127.5 - 1).latent_dist.mean
    assert (store.images() - (means - 0.1) * 0.5).abs().max() < 1e-5
    with torch.no_grad():
        decoded = vae.decode(means).sample.clamp(-1, 1)
    assert (decode(vae, store.images(), batch_size=7) - decoded).abs().max() < 1e-4


def test_latents_have_the_mean_and_deviation_of_the_vae_s_configuration(vae, tmp_path):
    """Regression: both were ignored; SDXL's VAE has them."""
    mean, std = [-1.5, 2.0], [8.0, 5.0]
    other = copy.deepcopy(vae)
    other.register_to_config(latents_mean=mean, latents_std=std)
    images = torch.rand(5, 3, 16, 16) * 2 - 1
    latents = index_latents(images, tmp_path / "latents", other).images()
    means = other.encode(images).latent_dist.mean.detach()
    expected = (means - torch.tensor(mean).view(2, 1, 1)) * 0.5 / torch.tensor(std).view(2, 1, 1)
    assert (latents - expected).abs().max() < 1e-5
    decoded = other.decode(means).sample.detach().clamp(-1, 1)
    assert (decode(other, latents) - decoded).abs().max() < 1e-4


def test_latents_are_float32_whatever_the_default_type(vae, tmp_path):
    """Regression: with a default of float64 a store was written that did not open."""
    images = torch.rand(5, 3, 16, 16) * 2 - 1
    torch.set_default_dtype(torch.float64)
    try:
        assert index_latents(images, tmp_path / "latents", vae).images().dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_pipeline_runs_on_latents(vae, smooth_images, tmp_path):
    store = index_latents(smooth_images(40, (3, 16, 16)), tmp_path / "latents", vae)
    unet = AnalyticUNet(Wiener(store))
    scheduler = DDIMScheduler(**unet.scheduler_settings, clip_sample=False)
    latents = run_loop(unet, scheduler, sample(unet.denoiser, 2, seed=1).x_init)
    # The bound for pixels above holds here too.
    assert (latents - sample(unet.denoiser, 2, seed=1).images).abs().max() < 1e-4
    assert decode(vae, latents).shape == (2, 3, 16, 16)


def test_latents_that_overflow_are_refused(vae, smooth_images, tmp_path):
    """Regression: a store of NaN was built; many VAEs overflow in float16."""
    broken = copy.deepcopy(vae)
    torch.nn.init.constant_(broken.quant_conv.bias, torch.nan)
    with pytest.raises(golddiff.ArgumentError, match="vae: its output holds NaN or infinity"):
        index_latents(smooth_images(4, (3, 16, 16)), tmp_path / "latents", broken)
    assert list(tmp_path.iterdir()) == []


def test_pictures_that_overflow_are_refused(vae):
    """Regression: they were NaN."""
    half = copy.deepcopy(vae).half()
    with pytest.raises(golddiff.ArgumentError, match="vae: its output holds NaN or infinity"):
        decode(half, torch.full((1, 2, 8, 8), 1e5))


@pytest.mark.parametrize("shape", [(4, 2, 2), (0, 4, 2, 2), (1, 3, 2, 2)])
def test_decode_takes_a_batch(vae, shape):
    """Regression: one latent gave a wrong picture."""
    with pytest.raises(golddiff.ArgumentError, match="latents: got shape"):
        decode(vae, torch.zeros(shape))


def test_index_latents_takes_stores_and_lists_of_floats(vae, smooth_images, tmp_path):
    images = smooth_images(3, (3, 16, 16))
    store = ImageStore.build(images, tmp_path / "store")
    latents = index_latents(store.path, tmp_path / "of-store", vae).images()
    assert torch.equal(latents, index_latents(images, tmp_path / "of-bytes", vae).images())
    floats = list(images / 127.5 - 1)
    assert torch.allclose(latents, index_latents(floats, tmp_path / "of-floats", vae).images())


def test_index_latents_takes_arrays_of_as_many_channels_as_the_vae(tmp_path):
    vae = AutoencoderKL(in_channels=4, block_out_channels=(8,), norm_num_groups=2)
    assert index_latents(torch.zeros(3, 4, 16, 16) - 1, tmp_path / "latents", vae).n == 3


def test_anything_but_a_vae_is_refused(tmp_path):
    for other in ("stabilityai/sd-vae-ft-mse", torch.nn.Linear(2, 2)):
        for call in (
            lambda vae: index_latents(torch.zeros(4, 3, 16, 16), tmp_path / "latents", vae),
            lambda vae: decode(vae, torch.zeros(1, 4, 2, 2)),
        ):
            with pytest.raises(ArgumentError, match=r"vae: got .*, expected a diffusers Auto"):
                call(other)
    tiny = AutoencoderTiny(encoder_block_out_channels=(8,), decoder_block_out_channels=(8,),
                           num_encoder_blocks=(1,), num_decoder_blocks=(1,))  # fmt: skip
    with pytest.raises(ArgumentError, match="got AutoencoderTiny, expected a diffusers Autoenc"):
        index_latents(torch.zeros(4, 3, 16, 16), tmp_path / "latents", tiny)


def test_index_latents_names_wrong_channels_and_batch_sizes(vae, tmp_path):
    with pytest.raises(ArgumentError, match=r"float images \(1, 16, 16\), expected \(3, 16, 16\)"):
        index_latents(torch.zeros(4, 1, 16, 16), tmp_path / "latents", vae)
    with pytest.raises(ArgumentError, match="batch_size: got 0"):
        index_latents(torch.zeros(4, 3, 16, 16), tmp_path / "latents", vae, batch_size=0)
    with pytest.raises(ArgumentError, match="batch_size: got 0"):
        decode(vae, torch.zeros(1, 4, 2, 2), batch_size=0)
