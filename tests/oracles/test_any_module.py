"""Any torch module becomes a denoiser, given its parameterisation.

The images are a few points, whose posterior mean has a closed form. The ideal network of every
parameterisation is therefore known, and must give that mean.
"""

import math
import pickle

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from torch import nn

import golddiff
from golddiff.oracles.parameterisations import ddpm_alphas
from golddiff.system.errors import ArgumentError, CheckpointError

POINTS = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LEVELS = [0.02, 0.5, 3.0, 40.0]
ALPHAS = ddpm_alphas()
V_SCHEDULER = DDIMScheduler(prediction_type="v_prediction")
X0_SCHEDULER = DDIMScheduler(prediction_type="sample")


def mean(x, sigma, points=POINTS):
    """E[x0 | x] over the points, x (B, 1, 4, 4), sigma (B,)."""
    squares = (x[:, None] - points).square().sum(dim=(2, 3, 4))
    weights = (-squares / (2 * sigma[:, None] ** 2)).softmax(dim=1)
    return torch.einsum("bi,ichw->bchw", weights, points)


def halved(x, t):
    return x / 2


def per_image(value):
    return value[:, None, None, None]


class Ideal(nn.Module):
    """The ideal network of a parameterisation, from its scaled input and time."""

    def __init__(self, kind, points=POINTS, sigma_of_time=None):
        super().__init__()
        self.kind, self.points, self.sigma_of_time = kind, points, sigma_of_time
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x, t):
        sigma = self.sigma_of_time(t)
        assert x.dtype == torch.float64
        if self.kind in ("eps", "v", "x0"):
            a = per_image(1 / (1 + sigma**2))
            x0 = mean(x / a.sqrt(), sigma, self.points)
            eps = (x - a.sqrt() * x0) / (1 - a).sqrt()
            return {"eps": eps, "x0": x0, "v": a.sqrt() * eps - (1 - a).sqrt() * x0}[self.kind]
        if self.kind == "flow":  # x = (1 - t) x0 + t eps
            s = per_image(t)
            x0 = mean(x / (1 - s), sigma, self.points)
            return (x - (1 - s) * x0) / s - x0
        # EDM's F, from D = c_skip x + c_out F.
        data = 0.5
        total = per_image(sigma**2 + data**2)
        noisy = x * total.sqrt()
        x0 = mean(noisy, sigma, self.points)
        return (x0 - data**2 / total * noisy) * total.sqrt() / (per_image(sigma) * data)


def vp_level(t):
    """Sigma at time t; log sigma is linear between two steps."""
    steps = ((1 - ALPHAS) / ALPHAS).sqrt().log()
    low = t.double().floor().long().clamp(max=998)
    return (steps[low] + (t - low) * (steps[low + 1] - steps[low])).exp()


SIGMA_OF_TIME = {
    "eps": vp_level,
    "v": vp_level,
    "x0": vp_level,
    "flow": lambda t: t / (1 - t),
    "edm": lambda t: (4 * t).exp(),
}


@pytest.mark.parametrize("kind", SIGMA_OF_TIME)
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.5, 0.5), (3.0, 0.0)])
def test_ideal_network_gives_the_posterior_mean(kind, scale, shift):
    network = Ideal(kind, scale * POINTS + shift, SIGMA_OF_TIME[kind])
    D = golddiff.Oracle(
        network, kind, scale=scale if shift == 0 else (scale, shift), shape=(1, 4, 4)
    )
    sigma = torch.tensor(LEVELS, dtype=torch.float64)
    noise = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = POINTS[:4] + per_image(sigma) * noise
    # Below its lowest level, a VP network uses that level.
    tolerance = 1e-3 if kind in ("eps", "v", "x0") else 1e-5
    torch.testing.assert_close(D(x, sigma).double(), mean(x, sigma), atol=tolerance, rtol=0)
    images = golddiff.sample(D, n=3, steps=4, seed=0).images
    assert images.shape == (3, 1, 4, 4)
    assert next(network.parameters()).requires_grad


def test_all_parameterisations_give_the_same_samples():
    def images(kind):
        oracle = golddiff.Oracle(Ideal(kind, sigma_of_time=SIGMA_OF_TIME[kind]), kind,
                                 shape=(1, 4, 4))  # fmt: skip
        return golddiff.sample(oracle, n=8, steps=10, seed=3).images

    expected = images("edm")
    for kind in SIGMA_OF_TIME:
        torch.testing.assert_close(images(kind), expected, atol=2e-3, rtol=0)


def test_sigma_schedule_passes_x_and_sigma_unchanged():
    x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    D = golddiff.Oracle(lambda x, sigma: mean(x.double(), sigma.double()), "x0", "sigma")
    torch.testing.assert_close(
        D(x, 0.7).double(), mean(x, torch.full((2,), 0.7, dtype=torch.float64)), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("form", ["alphas", "array", "list", "tuple", "scheduler", "function"])
def test_schedule_may_be_alphas_a_scheduler_or_a_function(form):
    scheduler = DDIMScheduler()
    timesteps = []

    def network(x, t):
        timesteps.append(t)
        return torch.zeros_like(x)

    schedule = {
        "alphas": scheduler.alphas_cumprod,
        "array": scheduler.alphas_cumprod.numpy(),  # as in OpenAI's guided diffusion
        "list": scheduler.alphas_cumprod.tolist(),
        "tuple": tuple(scheduler.alphas_cumprod.tolist()),
        "scheduler": scheduler,
        "function": lambda sigma: ((1 + sigma**2) ** -0.5, 1000 * sigma),
    }[form]
    alpha = float(scheduler.alphas_cumprod[300])
    golddiff.Oracle(network, "eps", schedule)(torch.ones(1, 1, 4, 4), math.sqrt(1 / alpha - 1))
    expected = 1000 * math.sqrt(1 / alpha - 1) if form == "function" else 300
    assert float(timesteps[0]) == pytest.approx(expected)


def test_a_function_of_sigma_may_return_one_factor_for_all_images():
    x, seen = torch.randn(3, 2), []
    network = golddiff.Oracle(lambda x, t: seen.append((x, t)) or x, "x0", lambda sigma: (0.5, 7))
    network(x, [1.0, 2.0, 3.0])
    assert torch.equal(seen[0][0], 0.5 * x)
    assert seen[0][1].tolist() == [7, 7, 7]


def test_diffusers_network_needs_no_wrapper():
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=2, layers_per_block=1, norm_num_groups=4,
        block_out_channels=(8,), down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
        num_class_embeds=3, add_attention=False,
    )  # fmt: skip
    D = golddiff.Oracle(unet, "eps", DDIMScheduler(), shape=(1, 8, 8), num_classes=3)
    x = torch.randn(2, 1, 8, 8)
    alpha = DDIMScheduler().alphas_cumprod[500].double()
    sigma = float((1 / alpha - 1).sqrt())
    with torch.no_grad():
        eps = unet(x * alpha.sqrt().float(), 500, torch.tensor([2, 0])).sample[:, :1]
    torch.testing.assert_close(D(x, sigma, [2, 0]), x - sigma * eps, atol=1e-4, rtol=1e-4)
    with pytest.raises(ArgumentError, match="labels: this network takes a class"):
        D(x, sigma)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parameterisation": "noise"}, "parameterisation: got 'noise', expected eps, v, x0, flow"),
        ({"schedule": "karras"}, "schedule: got 'karras'"),
        ({"schedule": 5}, "schedule: got 5"),
        ({"schedule": ["a"]}, r"schedule: got \['a'\], expected cumulative alphas"),
        ({"schedule": FlowMatchEulerDiscreteScheduler()}, "got FlowMatchEulerDiscreteScheduler, "),
        ({"schedule": torch.ones(10)}, "schedule: expected cumulative alphas"),
        ({"schedule": torch.linspace(0.9, -0.1, 9)}, "schedule: expected cumulative alphas"),
        (
            {"schedule": V_SCHEDULER},
            "prediction_type 'v_prediction', but parameterisation is 'eps'",
        ),
        ({"schedule": V_SCHEDULER, "parameterisation": "x0"}, "but parameterisation is 'x0'"),
        ({"schedule": X0_SCHEDULER}, "'sample', but parameterisation is 'eps'"),
        ({"schedule": X0_SCHEDULER, "parameterisation": "v"}, "but parameterisation is 'v'"),
        ({"schedule": DDIMScheduler}, "schedule: got <class .*DDIMScheduler"),
        ({"shape": golddiff.Oracle}, "shape: got <class .*, expected whole numbers"),
        ({"shape": "abc"}, "shape: got 'abc', expected whole numbers"),
        ({"shape": (1, 8.5, 8)}, "shape: got 8.5"),
        ({"scale": 0.0}, "scale: got 0.0"),
        ({"scale": math.nan}, "scale: got nan"),
        ({"scale": True}, "scale: got True"),
        ({"scale": (0.5,)}, r"scale: got \(0.5,\), expected two numbers"),
        ({"scale": (0.5, None)}, "expected two numbers"),
        ({"sigma_range": 80.0}, "sigma_range: got 80.0, expected two numbers"),
        ({"sigma_range": (80.0, 0.1)}, "sigma_range: got .*, expected the lowest level first"),
        ({"num_classes": "10"}, "num_classes: got '10', expected an integer"),
        ({"num_classes": 2, "no_class": 2.0}, "no_class: got 2.0, expected an integer"),
        ({"sigma_data": -1}, "sigma_data: got -1"),
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"device": "nowhere"}, "device: got 'nowhere'"),
        ({"module": 3}, "module: got int"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        golddiff.Oracle(**{"module": nn.Identity()} | arguments)


@pytest.mark.parametrize("name", ["v", "v_prediction", lambda x, sigma, output: output])
def test_a_scheduler_of_the_same_prediction_and_a_function_of_ones_own_are_accepted(name):
    assert golddiff.Oracle(nn.Identity(), name, V_SCHEDULER).sigma_max > 100


@pytest.mark.parametrize("kind", ["eps", "v", "x0", "flow", "edm"])
def test_an_oracle_is_the_same_after_pickling(kind):
    for schedule in (None, "sigma"):
        D = golddiff.Oracle(halved, kind, schedule, shape=(1, 4, 4), sigma_data=0.3)
        x = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
        assert torch.equal(pickle.loads(pickle.dumps(D))(x, 0.7), D(x, 0.7))


def test_levels_of_a_network_trained_on_scaled_images_are_divided_by_the_scale():
    plain, scaled = (golddiff.Oracle(nn.Identity(), scale=scale) for scale in (1, 4))
    assert scaled.sigma_min == pytest.approx(plain.sigma_min / 4)
    assert scaled.sigma_max == pytest.approx(plain.sigma_max / 4)


def test_numpy_scalars_are_accepted():
    x = torch.ones(1, 1, 4, 4)
    plain, numpy_scalars = (
        golddiff.Oracle(lambda x, t: x, "edm", scale=scale, sigma_data=sigma_data)(x, 1.0)
        for scale, sigma_data in ((2, 1), (np.float32(2), np.int64(1)))
    )
    assert torch.equal(plain, numpy_scalars)


def test_oracle_without_shape_denoises_but_cannot_sample():
    D = golddiff.Oracle(lambda x, t: torch.zeros_like(x))
    assert D(torch.ones(2, 3, 4, 5), 1.0).shape == (2, 3, 4, 5)
    assert D(torch.ones(2, 7), 1.0).shape == (2, 7)
    with pytest.raises(ArgumentError, match="shape: give Oracle"):
        golddiff.sample(D, n=1)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_network_output_must_be_finite(value):
    D = golddiff.Oracle(lambda x, t: torch.full_like(x, value, dtype=torch.float64))
    with pytest.raises(CheckpointError, match="returns NaN or infinity"):
        D(torch.ones(2, 1, 4, 4), 1.0)


def test_network_output_must_have_the_shape_of_the_images():
    for returned in (torch.zeros(1, 1, 2, 2), torch.zeros(()), None, [1]):
        with pytest.raises(CheckpointError, match=r"returns .* for images"):
            golddiff.Oracle(lambda x, t, r=returned: r)(torch.ones(1, 1, 4, 4), 1.0)


def test_module_keeps_its_device_by_default():
    network = nn.Linear(2, 2, device="meta")
    assert golddiff.Oracle(network, "edm").device == torch.device("meta")
    assert golddiff.Oracle(lambda x, t: x, "edm").device == torch.device("cpu")
    assert golddiff.Oracle(nn.Linear(2, 2), "edm", device="meta").device == torch.device("meta")


def test_half_precision_network_runs_in_its_dtype():
    dtypes = []

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2).to(torch.bfloat16)

        def forward(self, x, t):
            dtypes.append((x.dtype, t.dtype))
            return self.layer(x)

    assert golddiff.Oracle(Half(), "edm")(torch.ones(3, 2), 1.0).dtype == torch.float32
    assert dtypes == [(torch.bfloat16, torch.float32)]


def test_a_network_in_training_is_called_in_evaluation_mode():
    class WithTime(nn.Dropout):
        def forward(self, x, t):
            return super().forward(x)

    module = WithTime(0.5)
    oracle = golddiff.Oracle(module, "x0", "sigma")
    module.train()
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(oracle(x, 1.0), x)
