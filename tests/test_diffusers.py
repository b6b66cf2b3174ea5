"""Analytical denoisers in the pipelines and schedulers of diffusers."""

import json
import logging
from itertools import pairwise

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMPipeline,
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    UniPCMultistepScheduler,
)

import golddiff
from golddiff import PCA, AnalyticUNet, GoldDiff, Kamb, Optimal, PaperSchedule, Wiener, sample
from golddiff.estimators.describe import build, describe
from golddiff.noise import sigma_of_alpha
from golddiff.system.errors import ArgumentError, StoreError
from tests.recorded import Recorded

logging.getLogger("diffusers").setLevel(logging.ERROR)

SCHEDULERS = [
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    UniPCMultistepScheduler,
]


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(200, (3, 8, 8)), torch.arange(200) % 4)


@pytest.fixture(scope="module")
def denoiser(store):
    return GoldDiff(PCA(store), PaperSchedule(variant="released"))


def run_pipeline(pipeline, n, seed, **arguments):
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator("cpu").manual_seed(seed)
    images = pipeline(n, generator=generator, output_type="np", **arguments).images
    return torch.from_numpy(images).permute(0, 3, 1, 2) * 2 - 1


def run_loop(unet, scheduler, noise, steps=10, labels=None):
    """The denoising loop from the documentation of diffusers."""
    scheduler.set_timesteps(steps)
    x = noise * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        output = unet(scheduler.scale_model_input(x, t), t, class_labels=labels).sample
        x = scheduler.step(output, t, x).prev_sample
    return x


@pytest.mark.kernels
@pytest.mark.parametrize("prediction_type", ["epsilon", "sample", "v_prediction"])
def test_the_ddim_pipeline_calls_the_denoiser_as_sample_does(denoiser, prediction_type):
    """Steps are x' = x0 + sigma' (x - x0) / sigma, with the noise and noise levels of sample."""
    recorded = Recorded(denoiser)
    unet = AnalyticUNet(denoiser, prediction_type)
    unet.denoiser = recorded
    run_pipeline(
        DDIMPipeline(unet=unet, scheduler=DDIMScheduler(**unet.scheduler_settings)),
        4, seed=3, num_inference_steps=10,
    )  # fmt: skip
    run = sample(denoiser, 4, seed=3)
    expected_x = run.x_init.double() * (1 + run.sigmas[0] ** 2) ** 0.5
    for i, (x, sigma, _, x0) in enumerate(recorded.calls):
        assert float(sigma) == pytest.approx(run.sigmas[i], rel=1e-6)
        # About ten float32 roundings of x_t (2^-24 = 6e-8 each), scaled as x is.
        assert (x - expected_x).abs().max() < 2e-6 * x.abs().max()
        if i + 1 < len(run.sigmas):
            expected_x = x0 + run.sigmas[i + 1] * (x - x0) / sigma
    assert len(recorded.calls) == 10


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_every_scheduler_ends_near_training_images(store, denoiser, kind, prediction_type):
    unet = AnalyticUNet(denoiser, prediction_type)
    scheduler = kind(**unet.scheduler_settings)
    noise = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    images = run_loop(unet, scheduler, noise)
    assert images.isfinite().all()
    # Unit noise, by contrast, is far from every training image.
    nearest = torch.cdist(images.flatten(1), store.images().flatten(1)).amin(1) / 192**0.5
    assert nearest.max() < 0.5
    assert torch.cdist(noise.flatten(1), store.images().flatten(1)).min() / 192**0.5 > 0.9


def test_euler_and_heun_follow_their_equations_in_sigma_coordinates(store):
    denoiser = Wiener(store)  # smooth, so rounding errors do not grow
    unet = AnalyticUNet(denoiser)
    noise = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))

    def slope(x, sigma):
        return (x - denoiser(x, sigma).double()) / sigma

    for kind in (EulerDiscreteScheduler, HeunDiscreteScheduler):
        scheduler = kind(**unet.scheduler_settings)
        images = run_loop(unet, scheduler, noise)
        levels = list(dict.fromkeys(scheduler.sigmas.tolist()))
        assert len(levels) == 11
        x = noise.double() * float(scheduler.init_noise_sigma)
        for sigma, lower in pairwise(levels):
            first = slope(x, sigma)
            proposal = x + (lower - sigma) * first
            if kind is HeunDiscreteScheduler and lower > 0:
                proposal = x + (lower - sigma) * (first + slope(proposal, lower)) / 2
            x = proposal
        assert (images - x).abs().max() < 1e-3


@pytest.mark.parametrize("kind", [EulerDiscreteScheduler, HeunDiscreteScheduler])
@pytest.mark.parametrize("karras", [False, True])
@pytest.mark.parametrize("betas", ["linear", "squaredcos_cap_v2"])  # up to sigma 157 and 20,000
def test_the_unet_converts_timesteps_to_the_sigmas_of_euler_and_heun(denoiser, kind, karras, betas):
    scheduler = kind(beta_start=1e-4, beta_end=0.02, beta_schedule=betas, use_karras_sigmas=karras)
    unet = AnalyticUNet(denoiser, scheduler_config=scheduler)
    scheduler.set_timesteps(7)
    assert any(float(t) % 1 for t in scheduler.timesteps)
    for sigma, t in zip(scheduler.sigmas, scheduler.timesteps, strict=False):
        assert unet.sigma(t) == pytest.approx(float(sigma), rel=1e-3)


def test_epsilon_v_and_sample_predictions_agree(store, denoiser):
    alphas = DDPMScheduler().alphas_cumprod
    noise = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for t in (0, 1, 400.5, 999):
        unets = {p: AnalyticUNet(denoiser, p) for p in ("epsilon", "sample", "v_prediction")}
        sigma = float(unets["sample"].sigma(t))
        a, s = 1 / (1 + sigma**2) ** 0.5, sigma / (1 + sigma**2) ** 0.5
        x = a * store.images([0, 1]) + s * noise
        out = {p: unet(x, t).sample for p, unet in unets.items()}
        assert (out["sample"] - denoiser(x / a, sigma)).abs().max() < 1e-5
        assert ((x - s * out["epsilon"]) / a - out["sample"]).abs().max() < 1e-3
        assert (a * x - s * out["v_prediction"] - out["sample"]).abs().max() < 1e-3
    assert float(unets["sample"].sigma(0)) == sigma_of_alpha(float(alphas[0]))


def test_timesteps_may_differ_within_a_batch(denoiser):
    unet = AnalyticUNet(denoiser)
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    times = torch.tensor([0, 500, 999])
    together = unet(x, times).sample
    apart = torch.cat([unet(x[i : i + 1], int(t)).sample for i, t in enumerate(times)])
    assert torch.equal(together, apart)
    assert torch.equal(unet(x, times, return_dict=False)[0], together)


def test_a_compiled_model_leaves_the_denoiser_as_it_is(denoiser):
    """Regression: tracing into compiled loops and mapped files ended in an error of torch."""
    unet, x = AnalyticUNet(denoiser), torch.randn(2, 3, 8, 8).requires_grad_()
    compiled = torch.compile(unet, backend="eager")
    for timestep in (5, torch.tensor([3, 700])):
        out, expected = compiled(x, timestep).sample, unet(x, timestep).sample
        assert torch.equal(out, expected)
        assert torch.equal(*(torch.autograd.grad(o.sum(), x)[0] for o in (out, expected)))
    again = torch.compile(lambda x: denoiser(2 * x, 0.5) + 1, backend="eager")
    assert torch.equal(again(x), denoiser(2 * x, 0.5) + 1)


def test_half_precision_input_gives_half_precision_output(denoiser):
    unet = AnalyticUNet(denoiser, scheduler_config=DDIMScheduler())
    assert HeunDiscreteScheduler(**unet.scheduler_settings)  # which has no zero SNR to set
    assert (unet.dtype, unet.device.type) == (torch.float32, "cpu")
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    exact = unet(x, 500).sample
    unet = unet.to(torch.float16)
    half = unet(x.half(), 500).sample
    assert unet.dtype == half.dtype == torch.float16
    assert (half - exact).abs().max() < 0.02
    settings = unet.scheduler_settings
    images = run_pipeline(DDIMPipeline(unet, DDIMScheduler(**settings)), 2, 0)
    assert images.isfinite().all()


def test_schedules_may_end_in_pure_noise_or_start_without_noise(store):
    denoiser = Optimal(store)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    zero_snr = AnalyticUNet(
        denoiser, "v_prediction", scheduler_config={"rescale_betas_zero_snr": True}
    )
    # v = sqrt(alpha) eps - sqrt(1 - alpha) x0 at alpha = 0, where E[x0] is the mean image.
    assert (zero_snr(x, 999).sample + store.images().mean(0)).abs().max() < 5e-3
    noiseless = AnalyticUNet(denoiser, "sample", beta_start=0.0)
    assert (noiseless(store.images([3, 4]), 0).sample - store.images([3, 4])).abs().max() < 1e-5


def test_class_labels_select_the_class(store):
    unet = AnalyticUNet(Optimal(store))
    noise = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    images = run_loop(unet, DDIMScheduler(), noise, labels=torch.tensor([0, 1, 2, 3]))
    nearest = torch.cdist(images.flatten(1), store.images().flatten(1)).argmin(1)
    assert store.labels[nearest].tolist() == [0, 1, 2, 3]


def test_guidance_towards_a_class_runs_in_a_pipeline(store, tmp_path):
    guide = golddiff.guided(PCA(store), 2, 1.5)
    unet = AnalyticUNet(guide)
    images = run_pipeline(
        DDIMPipeline(unet=unet, scheduler=DDIMScheduler(**unet.scheduler_settings)),
        2, seed=3, num_inference_steps=5,
    )  # fmt: skip
    assert (images - sample(guide, 2, 5, seed=3).images).abs().max() < 1e-4
    with pytest.raises(ArgumentError, match="or is guided"):
        unet.save_pretrained(tmp_path)


def test_the_configuration_has_the_fields_of_a_diffusers_unet(denoiser, make_store):
    config = AnalyticUNet(denoiser, "v_prediction").config
    assert (config.sample_size, config.in_channels, config.out_channels) == (8, 3, 3)
    assert config.prediction_type == "v_prediction"
    wide = make_store(torch.zeros(4, 1, 6, 10, dtype=torch.uint8))
    unet = AnalyticUNet(Optimal(wide))
    assert unet.config.sample_size == [6, 10]
    images = run_pipeline(DDIMPipeline(unet, DDIMScheduler()), 1, 0, num_inference_steps=2)
    assert images.shape == (1, 1, 6, 10)


@pytest.mark.parametrize(
    "make",
    [
        Optimal,
        Wiener,
        lambda s: PCA(s, 0.05, "wss", 64, memory_limit=5e8),
        lambda s: Kamb(s, [(0.1, 3), (2.0, 5)], "circular"),
        lambda s: GoldDiff(Kamb(s), seed=7),
        lambda s: GoldDiff(PCA(s), PaperSchedule(3, 0.2, 0.3, 150, "released"), seed=2),
    ],
)
def test_a_saved_model_reopens_with_the_same_settings_and_output(store, make, tmp_path):
    denoiser = make(store)
    AnalyticUNet(denoiser, "sample", beta_end=0.03).save_pretrained(tmp_path / "model")
    unet = AnalyticUNet.from_pretrained(tmp_path / "model")
    assert describe(unet.denoiser) == json.loads(json.dumps(describe(denoiser)))
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = AnalyticUNet(denoiser, "sample", beta_end=0.03)(x, 600.25).sample
    assert torch.equal(unet(x, 600.25).sample, expected)


def test_saving_a_denoiser_with_log_weights_is_refused(denoiser, tmp_path):
    weighted = denoiser.given(torch.zeros(denoiser.store.n))
    with pytest.raises(golddiff.ArgumentError, match="denoiser: has log weights"):
        AnalyticUNet(weighted).save_pretrained(tmp_path)


def test_a_whole_pipeline_is_saved_and_reopened(denoiser, tmp_path):
    unet = AnalyticUNet(denoiser)
    pipeline = DDIMPipeline(unet, DDIMScheduler(**unet.scheduler_settings))
    pipeline.save_pretrained(tmp_path)
    assert [p.name for p in (tmp_path / "unet").iterdir()] == ["config.json"]
    reopened = DDIMPipeline.from_pretrained(tmp_path)
    images = run_pipeline(reopened, 2, seed=3, num_inference_steps=10)
    assert torch.equal(images, run_pipeline(pipeline, 2, seed=3, num_inference_steps=10))


def test_a_store_inside_the_model_folder_moves_with_it(tmp_path, smooth_images):
    store = golddiff.ImageStore.build(smooth_images(20), tmp_path / "model" / "images")
    AnalyticUNet(Optimal(store)).save_pretrained(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / "moved")
    assert AnalyticUNet.from_pretrained(tmp_path / "moved").denoiser.store.n == 20


def test_a_missing_store_is_named_and_can_be_replaced(tmp_path, smooth_images, store):
    moved = golddiff.ImageStore.build(smooth_images(20), tmp_path / "images")
    AnalyticUNet(Optimal(moved)).save_pretrained(tmp_path / "model")
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"images does not exist; give store= to say where"):
        AnalyticUNet.from_pretrained(tmp_path / "model")
    reopened = AnalyticUNet.from_pretrained(tmp_path / "model", store=tmp_path / "elsewhere")
    assert reopened.denoiser.store.n == 20


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"method": "unet"}, "got method 'unet', expected one of 'recommended'"),
        ({"method": "pca", "patch_sizes": 3}, "pca has no setting 'patch_sizes'; it has mask_thr"),
        ({"method": "pca", "weighting": "sss"}, "weighting: got 'sss'"),
        ({"method": "golddiff"}, "golddiff needs a base"),
        ({"method": "golddiff", "base": {"method": "wiener"}}, "base: got Wiener"),
        (
            {"method": "golddiff", "base": {"method": "pca"}, "schedule": {"schedule": "x"}},
            "got schedule 'x', expected one of 'paper'",
        ),
        ("pca", "description: got str"),
    ],
)
def test_errors_of_descriptions_name_the_invalid_part(store, description, message):
    with pytest.raises(ArgumentError, match=message):
        build(description, store)


def test_invalid_arguments_are_named(store, denoiser, make_store, tmp_path):
    x = torch.zeros(2, 3, 8, 8)
    points = make_store(torch.zeros(5, 2))
    flow = FlowMatchEulerDiscreteScheduler().config
    flow_sigmas = DPMSolverMultistepScheduler(use_flow_sigmas=True)
    continuous = EulerDiscreteScheduler(
        timestep_type="continuous", prediction_type="v_prediction", use_karras_sigmas=True
    )
    betas = "scheduler_config: got one (without betas|with .* are not those of its betas)"
    (tmp_path / "config.json").write_text("{}")
    for call, message in [
        (lambda: AnalyticUNet(denoiser, "x0"), "prediction_type: got 'x0', expected one of eps"),
        (lambda: AnalyticUNet("pca"), "denoiser: got str"),
        (lambda: AnalyticUNet(denoiser, beta_schedule="fast"), "'fast'}, but fast is not implem"),
        (lambda: AnalyticUNet(denoiser, beta_end="0.02"), r"betas: got .*'beta_end': '0\.02'"),
        (lambda: AnalyticUNet(denoiser, beta_start=-1.0), "expected betas from 0 to 1"),
        (lambda: AnalyticUNet(denoiser, scheduler_config="ddim"), "scheduler_config: got 'ddim'"),
        (lambda: AnalyticUNet(denoiser, scheduler_config=DDIMScheduler), "got <class .*DDIM"),
        (lambda: AnalyticUNet(denoiser, scheduler_config=flow), betas),
        (lambda: AnalyticUNet(denoiser, scheduler_config=flow_sigmas), betas),
        (lambda: AnalyticUNet(denoiser, scheduler_config=continuous), betas),
        (lambda: AnalyticUNet(Optimal(points)), r"shape \(2,\), expected images"),
        (lambda: AnalyticUNet(denoiser)(x, 1000), "timestep: got 1000, expected .* 0 to 999"),
        (lambda: AnalyticUNet(denoiser)(x, torch.tensor([1, 2, 3])), "3 of them for 2 samples"),
        (lambda: AnalyticUNet(denoiser)(x, 5, class_labels=9), "labels: got 9"),
        (lambda: AnalyticUNet(denoiser)(x.byte(), 5), "sample: got torch.uint8, expected a floa"),
        (lambda: AnalyticUNet(denoiser)(x[:, :1], 5), r"sample: got shape \(2, 1, 8, 8\)"),
        (
            lambda: AnalyticUNet(denoiser).save_pretrained(tmp_path / "hub", push_to_hub=True),
            "push_to_hub: got True",
        ),
        (lambda: AnalyticUNet.from_pretrained(tmp_path / "no"), "config.json does not exist"),
        (lambda: AnalyticUNet.from_pretrained(tmp_path), "is not the configuration of an Anal"),
        (
            lambda: AnalyticUNet.from_pretrained(tmp_path, prediction_type="sample"),
            "prediction_type: got one, but the model has the saved one",
        ),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()


@pytest.mark.filterwarnings("ignore:To copy")
@pytest.mark.parametrize("kind", [list, np.float32, torch.tensor])
def test_betas_of_any_kind_and_the_dtype_are_saved_and_opened(denoiser, tmp_path, kind):
    """Regression: arrays and tensors could not be saved; only torch_dtype was respected."""
    betas = [0.001, 0.01, 0.1]
    scheduler = DDIMScheduler(3, trained_betas=kind(betas))
    unet = AnalyticUNet(denoiser, scheduler_config=scheduler)
    unet.save_pretrained(tmp_path)
    for name in ("dtype", "torch_dtype"):
        opened = AnalyticUNet.from_pretrained(tmp_path, **{name: torch.float16})
        assert opened.dtype == torch.float16
        assert opened.sigma([0, 1, 2]) == pytest.approx(unet.sigma([0, 1, 2]), rel=1e-6)


def test_a_model_is_not_opened_on_images_of_another_shape_or_without_its_betas(
    denoiser, make_store, smooth_images, tmp_path
):
    AnalyticUNet(denoiser).save_pretrained(tmp_path)
    for shape in ((3, 6, 8), (1, 8, 8)):
        with pytest.raises(ArgumentError, match=r"store: holds .* expected \(3, 8, 8\)"):
            AnalyticUNet.from_pretrained(tmp_path, store=make_store(smooth_images(20, shape)))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"schedule": {}}))
    with pytest.raises(ArgumentError, match="KeyError: 'num_train_timesteps"):
        AnalyticUNet.from_pretrained(tmp_path)
