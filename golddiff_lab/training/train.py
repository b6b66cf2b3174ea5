"""Training a :class:`golddiff.oracles.unet.UNet` on a store: DDPM's loss, resumable at any step."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from golddiff.oracles.files import describe_network, write_folder
from golddiff.oracles.parameterisations import EPSILON, TIMESTEPS, ddpm_alphas
from golddiff.oracles.unet import UNet
from golddiff.store.build import PIXELS
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff_lab.training.clock import StepClock
from golddiff_lab.training.settings import TrainSettings
from golddiff_lab.training.state import STATE, Progress, Run, read_state, write_state

# Losses are kept as means over so many steps.
WINDOW = 25
# Of the averaged weights, once a run is long enough.
DECAY = 0.999


@dataclass(frozen=True)
class Step:
    """What is told after each step: its number, its loss, and the share of the run that is done."""

    number: int
    loss: float
    share: float
    elapsed: float


def train(
    store: ImageStore,
    out: Path,
    settings: TrainSettings,
    *,
    on_step: Callable[[Step], None] = lambda step: None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
    save_every: float = 120.0,
) -> Progress:
    """Train a network, or go on with the run that ``out`` holds.

    The loss is the mean square of eps (or v) less the network's at (sqrt(alpha_t) x0 +
    sqrt(1 - alpha_t) eps, t), t uniform over the 1000 timesteps (Ho et al. 2020, Eq. 14). Images
    are drawn with replacement. The averaged weights are written to ``out/model.safetensors`` as it
    goes; each file is replaced whole, so that it can be read or the run killed at any time.

    Args:
        store: the training images.
        out: folder to make, or of the run to go on with.
        settings: what to train and for how long.
        on_step: called after each step.
        stop: asked after each step; when true the run is saved and left, to go on later.
        command: the command line of the run, kept with the weights.
        save_every: seconds between saved states.

    Raises:
        ArgumentError: a setting outside its range, or unlike that of the run in ``out``; a folder
            that cannot be written; a loss that is not a number any more (the last state saved
            stays).
        CheckpointError: the state in ``out`` is damaged.
    """
    settings.check()
    # Drop-out draws from torch's own generator, which is left as it was found.
    devices = [torch.cuda.current_device()] if settings.device.startswith("cuda") else []
    with torch.random.fork_rng(devices):
        run = start(store, out, settings)
        saved = time.monotonic()
        run.clock.skip()
        while (share := _share(run, settings)) < 1 and not stop():
            loss = train_step(run, store, settings, share)
            on_step(Step(run.progress.step, loss, _share(run, settings), run.clock.elapsed))
            if time.monotonic() - saved > save_every:
                save(run, store, out, settings, command)
                saved = time.monotonic()
                run.clock.skip()
        save(run, store, out, settings, command)
        return run.progress


def start(store: ImageStore, out: Path, settings: TrainSettings) -> Run:
    """A run at its first step, or where the state in ``out`` left it."""
    config = settings.network(store)
    torch.manual_seed(settings.seed)
    network = UNet(config).to(settings.device)
    average = copy.deepcopy(network).eval().requires_grad_(False)
    learned = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learned, settings.learning_rate)
    draws = torch.Generator("cpu").manual_seed(settings.seed)
    # On the processor, time that others take from the run is not the run's.
    now = time.thread_time if torch.device(settings.device).type == "cpu" else time.perf_counter
    run = Run(network, average, optimiser, draws, Progress(), StepClock(now=now))
    if (out / STATE).exists():
        read_state(out, settings, run, fingerprint(store))
    return run


def train_step(run: Run, store: ImageStore, settings: TrainSettings, share: float) -> float:
    """One step of Adam; its loss."""
    device = settings.device
    rows = torch.randint(store.n, (settings.batch,), generator=run.draws)
    x0 = store.images(rows)
    t = torch.randint(TIMESTEPS, (settings.batch,), generator=run.draws)
    eps = torch.randn(x0.shape, generator=run.draws)
    if settings.flip:
        mirrored = torch.rand(settings.batch, generator=run.draws) < 0.5
        x0 = torch.where(mirrored[:, None, None, None], x0.flip(-1), x0)
    labels = None
    if settings.conditional:
        assert store.labels is not None
        dropped = torch.rand(settings.batch, generator=run.draws) < settings.label_dropout
        labels = store.labels[rows].masked_fill(dropped, run.network.config.classes).to(device)
    a = ddpm_alphas()[t].float()[:, None, None, None]
    x_t = a.sqrt() * x0 + (1 - a).sqrt() * eps

    rate = learning_rate(settings, run.progress.step + 1, share)
    for group in run.optimiser.param_groups:
        group["lr"] = rate
    run.network.train()
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=in_bfloat16(settings)):
        predicted = run.network(x_t.to(device), t.to(device), labels)
    target = eps if settings.prediction == EPSILON else a.sqrt() * eps - (1 - a).sqrt() * x0
    errors = (predicted.float() - target.to(device)).square().mean(dim=(1, 2, 3))
    weights = level_weights(settings.noise_weight)[t].to(device)
    loss = (weights * errors).mean()
    run.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    value = float(errors.detach().mean())
    if not math.isfinite(value):
        raise ArgumentError(
            f"learning_rate: the loss is {value} at step {run.progress.step + 1}; try less than "
            f"{settings.learning_rate:g}"
        )
    torch.nn.utils.clip_grad_norm_(run.network.parameters(), 1.0)
    run.optimiser.step()
    run.progress.step += 1
    update_ema(run.average, run.network, run.progress.step, settings.average)
    run.clock.tick()
    run.progress.record(value, rate, run.clock.elapsed, WINDOW)
    return value


def ema_decay(step: int, decay: float = DECAY) -> float:
    """min(decay, (1 + step) / (10 + step)): short runs must not average in their start."""
    return min(decay, (1 + step) / (10 + step))


@torch.no_grad()
def update_ema(average: nn.Module, network: nn.Module, step: int, decay: float = DECAY) -> None:
    """Set average <- d * average + (1 - d) * network, with d of the step (1, 2, ...), in place."""
    d = ema_decay(step, decay)
    pairs = zip(average.parameters(), network.parameters(), strict=True)
    for mean, value in pairs:
        if value.requires_grad:
            mean.lerp_(value.detach(), 1 - d)


def learning_rate(settings: TrainSettings, step: int, share: float) -> float:
    """Linear to the peak over ``warm_up`` steps, times a cosine over the last share of the run."""
    falling = max(0.0, min(share, 1.0) - (1 - settings.falling)) / max(settings.falling, 1e-9)
    cosine = 0.5 * (1 + math.cos(math.pi * falling))
    return settings.learning_rate * min(1.0, step / settings.warm_up) * cosine


def level_weights(power: float) -> torch.Tensor:
    """(1 + sigma^2)^power of each timestep, (1000,) float32, over their mean."""
    weights = ddpm_alphas() ** -power
    return (weights / weights.mean()).float()


def in_bfloat16(settings: TrainSettings) -> bool:
    """Whether products are taken in bfloat16.

    The default is by measurement, on one thread of a processor with AVX-512 BF16: 0.61 s a step
    against 0.93 s in float32 (32 channels, 28 x 28, batch 64). Without such instructions bfloat16
    is slower than float32.
    """
    if settings.precision is not None:
        return settings.precision == "bfloat16"
    if settings.device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported())
    return settings.device == "cpu" and _cpu_bfloat16()


def _cpu_bfloat16() -> bool:
    supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return supported and "AVX512" in torch.backends.cpu.get_cpu_capability()


def save(
    run: Run, store: ImageStore, out: Path, settings: TrainSettings, command: str | None = None
) -> None:
    """Write the state to go on from, the averaged weights and the losses, each file whole."""
    write_state(out, settings, run, fingerprint(store))
    training = {
        "data": store.manifest.source,
        "images": store.n,
        "class_names": store.class_names if settings.conditional else None,
        "steps": run.progress.step,
        "minutes": round(run.progress.elapsed / 60, 2),
        "loss": run.progress.summary(),
        "settings": settings.as_dict(),
        "command": command,
    }
    description = describe_network(
        run.average.config, store.shape[1], store.is_pixels, training, settings.prediction
    )
    write_folder(out, run.average, description)
    run.progress.write(out)


def fingerprint(store: ImageStore) -> str:
    """Tells one training set from another, wherever its store lies."""
    pixels = store.manifest.files[PIXELS]
    return f"{store.n} images {pixels.sha256[:16]}"


def _share(run: Run, settings: TrainSettings) -> float:
    shares = [0.0]
    if settings.minutes is not None:
        shares.append(run.clock.elapsed / (60 * settings.minutes))
    if settings.steps is not None:
        shares.append(run.progress.step / settings.steps)
    return max(shares)
