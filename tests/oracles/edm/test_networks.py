"""Whole networks against NumPy in float64, the tensor names of EDM's files, preconditioning."""

import math

import numpy as np
import pytest
import torch

from golddiff.oracles.edm import preconditioning
from golddiff.oracles.oracle import Oracle
from tests.oracles.edm import direct
from tests.oracles.edm.make import ADM, TINY, VE, VP, make_network

SMALL_ADM = ADM | {
    "model_channels": 64,
    "channel_mult": [1, 2],
    "num_blocks": 1,
    "attn_resolutions": [2],
}


def inputs(network, side, classes, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, side, side, generator=generator, dtype=torch.float64)
    noise = torch.tensor([-1.3, 0.7], dtype=torch.float64)
    labels = torch.tensor([1, 0]) if classes else None
    named = network.model.double().state_dict().items()
    return x, noise, labels, {name: tensor.numpy() for name, tensor in named}


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("design", [VP, VE], ids=["DDPM++", "NCSN++"])
def test_song_unet_matches_numpy_reference(design, classes):
    config = design | TINY
    network = make_network(classes=classes, augment_dim=9, **config)
    x, noise, labels, tensors = inputs(network, 8, classes)
    expected = direct.song(
        tensors, config, x.numpy(), noise.numpy(), np.eye(classes)[labels] if classes else None
    )
    output = network.model(x, noise, labels)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("classes", [0, 3])
def test_dhariwal_unet_matches_numpy_reference(classes):
    network = make_network(side=4, classes=classes, augment_dim=9, **SMALL_ADM)
    x, noise, labels, tensors = inputs(network, 4, classes)
    expected = direct.adm(
        tensors,
        SMALL_ADM,
        x.numpy(),
        noise.numpy(),
        np.eye(classes)[labels] if classes else None,
    )
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(network.model(x, noise, labels), expected, rtol=1e-9, atol=1e-9)


def test_every_parameter_except_augmentation_changes_the_output():
    config = VE | TINY
    network = make_network(classes=2, augment_dim=9, **config)
    x, noise, labels, _ = inputs(network, 8, 2)
    before = network.model(x, noise, labels)
    for name, parameter in network.model.named_parameters():
        original = parameter.clone()
        parameter.add_(torch.randn(parameter.shape, dtype=torch.float64))
        changed = not torch.equal(network.model(x, noise, labels), before)
        assert changed == ("map_augment" not in name), name
        parameter.copy_(original)


def test_tensor_names_and_shapes_match_edm_files():
    network = make_network(classes=10, augment_dim=9, **VE | TINY)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    expected = {
        "model.map_noise.freqs": (8,),
        "model.map_label.weight": (16, 10),
        "model.map_label.bias": (16,),
        "model.map_augment.weight": (16, 9),
        "model.map_layer0.weight": (32, 16),
        "model.map_layer1.bias": (32,),
        "model.enc.8x8_conv.weight": (8, 3, 3, 3),
        "model.enc.8x8_block0.norm0.weight": (8,),
        "model.enc.8x8_block0.affine.weight": (8, 32),
        "model.enc.4x4_down.conv0.resample_filter": (1, 1, 4, 4),
        "model.enc.4x4_down.skip.weight": (8, 8, 1, 1),
        "model.enc.4x4_aux_residual.weight": (8, 3, 3, 3),
        "model.enc.4x4_block0.conv1.bias": (16,),
        "model.enc.4x4_block0.qkv.weight": (48, 16, 1, 1),
        "model.enc.4x4_block0.proj.bias": (16,),
        "model.dec.4x4_in0.norm2.bias": (16,),
        "model.dec.4x4_block0.skip.weight": (16, 32, 1, 1),
        "model.dec.4x4_block1.qkv.bias": (48,),
        "model.dec.8x8_up.skip.resample_filter": (1, 1, 4, 4),
        "model.dec.8x8_aux_norm.weight": (8,),
        "model.dec.8x8_aux_conv.weight": (3, 8, 3, 3),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    # Only the last block of each decoder level has attention.
    assert "model.dec.4x4_block0.qkv.weight" not in shapes
    assert "model.dec.4x4_in1.qkv.weight" not in shapes


@pytest.mark.parametrize(
    ("design", "parameters"),
    [
        # NVIDIA's CIFAR-10 networks, counted with EDM's code.
        (VP | {"model_channels": 128, "channel_mult": [2, 2, 2], "augment_dim": 9}, 55_733_891),
        (VE | {"model_channels": 128, "channel_mult": [2, 2, 2], "augment_dim": 9}, 56_397_827),
    ],
    ids=["VP", "VE"],
)
def test_parameter_counts_of_published_networks(design, parameters):
    from golddiff.oracles.edm.pickled import architecture, check_arguments

    kwargs = {"img_resolution": 32, "img_channels": 3} | design
    with torch.device("meta"):
        network = architecture(check_arguments("EDMPrecond", (), kwargs))
    assert sum(p.numel() for p in network.parameters()) == parameters


SIGMAS = torch.tensor([0.002, 0.5, 3.0, 80.0], dtype=torch.float64)
S = SIGMAS.numpy()


@pytest.mark.parametrize(
    ("precond", "skip", "out", "scale", "noise"),
    [
        (
            preconditioning.edm,
            0.25 / (S**2 + 0.25),
            S * 0.5 / np.sqrt(0.25 + S**2),
            1 / np.sqrt(0.25 + S**2),
            np.log(S) / 4,
        ),
        (preconditioning.ve, np.ones(4), S, np.ones(4), np.log(S / 2)),
        (
            preconditioning.vp,
            np.ones(4),
            -S,
            1 / np.sqrt(1 + S**2),
            999 * (np.sqrt(0.1**2 + 2 * 19.9 * np.log(1 + S**2)) - 0.1) / 19.9,
        ),
    ],
    ids=["EDM", "VE", "VP"],
)
def test_preconditioning_matches_edm_table_1(precond, skip, out, scale, noise):
    oracle = Oracle(torch.nn.Identity(), **precond())
    x, sigma = torch.randn(4, 3, 2, 2, dtype=torch.float64), SIGMAS[:, None, None, None]
    per_image = (slice(None), None, None, None)
    zero = oracle.parameterisation(x, sigma, torch.zeros_like(x))
    np.testing.assert_allclose(zero, skip[per_image] * x.numpy(), rtol=1e-9)
    gain = (oracle.parameterisation(x, sigma, torch.ones_like(x)) - zero)[:, 0, 0, 0]
    np.testing.assert_allclose(gain, out, rtol=1e-6)
    input_scale, noise_input = oracle.schedule(SIGMAS)
    np.testing.assert_allclose(input_scale, scale, rtol=1e-9)
    np.testing.assert_allclose(noise_input, noise, rtol=1e-9)


def test_vp_sigma_limits_match_the_ends_of_time():
    oracle = Oracle(torch.nn.Identity(), **preconditioning.vp())
    assert oracle.sigma_max == pytest.approx(math.sqrt(math.exp(19.9 / 2 + 0.1) - 1))
    assert float(oracle.schedule(torch.tensor([oracle.sigma_max]))[1]) == pytest.approx(999)
    assert oracle.sigma_min == pytest.approx(1e-3, rel=1e-3)


def test_iddpm_uses_its_first_timestep_below_its_lowest_level():
    """EDM's sampler ends at sigma 0.002, nearer to 0 than to the lowest level 0.0064."""
    levels = torch.tensor([0.002, 1e-6], dtype=torch.float64)
    assert preconditioning.iddpm()["schedule"](levels)[1].tolist() == [0, 0]


def test_iddpm_rounds_sigma_to_its_levels_and_drops_the_variance():
    levels = torch.tensor(preconditioning.iddpm_levels(0.001, 0.008, 1000), dtype=torch.float64)
    assert (levels[1:] < levels[:-1]).all()
    assert levels[-1] == 0
    # Where no beta is clipped, u_j = sqrt(1 / alpha-bar(j) - 1) with the cosine alpha-bar.
    j = np.arange(500, 1001)
    bar = np.sin(np.pi / 2 * j / (1000 * 1.008)) ** 2
    last = np.sin(np.pi / 2 / 1.008) ** 2
    np.testing.assert_allclose(levels[500:], np.sqrt(last / bar - 1), rtol=1e-4, atol=1e-4)
    timesteps = []

    def echo(x, noise):
        timesteps.append(noise)
        return torch.cat([torch.zeros_like(x), torch.ones_like(x)], dim=1)

    denoiser = Oracle(echo, **preconditioning.iddpm())
    assert (denoiser(torch.zeros(3, 2, 1, 1), levels[[999, 500, 0]] * 1.0001) == 0).all()
    assert timesteps[0].tolist() == [0, 499, 999]
