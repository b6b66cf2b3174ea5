"""Train a :class:`golddiff.oracles.unet.UNet` on a store with DDPM's loss; runs can be resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from golddiff.oracles.parameterisations import EPSILON, TIMESTEPS, ddpm_alphas
from golddiff.store.device import DeviceStore
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff_lab.training.run import STATE, Run, save, start
from golddiff_lab.training.settings import TrainSettings


def train(
    store: ImageStore,
    out: Path,
    settings: TrainSettings,
    *,
    on_step: Callable[[Run, float], None] = lambda run, loss: None,
    stop: Callable[[], bool] = lambda: False,
    command: str | None = None,
    save_every: float = 120.0,
) -> Run:
    """Train a network, or resume the run in ``out``.

    The loss is the mean squared error of the network's prediction of eps (or v) at (sqrt(alpha_t)
    x0 + sqrt(1 - alpha_t) eps, t), t uniform over the 1000 timesteps (Ho et al. 2020, Eq. 14).
    Images are drawn with replacement. The averaged weights are saved to ``out/model.safetensors``
    during training. Files are replaced atomically, so the run may be killed at any time.

    Args:
        store: the training images.
        out: folder of the run, created if missing.
        settings: settings of the run.
        on_step: called after each step with the run and the step's loss.
        stop: called after each step; if it returns True, the run is saved and can be resumed.
        command: the command line, saved with the weights and those before it.
        save_every: seconds between saved states.

    Raises:
        ArgumentError: a setting outside its range or different from the run in ``out``, a folder
            that cannot be written, or a loss that is not finite (the last saved state remains).
        CheckpointError: the state in ``out`` is damaged.
    """
    settings.check()
    check_writable("out", out / STATE)
    # On the CPU, count thread time, which excludes other programs.
    on_cpu = torch.device(settings.device).type == "cpu"
    now = time.thread_time if on_cpu else time.perf_counter
    # Dropout uses torch's global generator, whose state is restored afterwards.
    devices = [torch.cuda.current_device()] if settings.device.startswith("cuda") else []
    with torch.random.fork_rng(devices):
        run = start(store, out, settings)
        if run.share >= 1:
            return run
        if command is not None and run.commands[-1:] != [command]:
            run.commands.append(command)
        examples = Examples(store, settings.device)
        # Compiling fuses the operations between convolutions, and takes most of a minute.
        network = torch.compile(run.network) if devices else run.network
        saved = time.monotonic()
        while run.share < 1 and not stop():
            begin = now()
            loss, rate = train_step(run, examples, network)
            run.record(loss, rate, now() - begin)
            on_step(run, loss)
            if time.monotonic() - saved > save_every:
                save(run, store, out)
                saved = time.monotonic()
        save(run, store, out)
        return run


class Examples:
    """A store's images and labels on a device.

    Attributes:
        n: number of images.
        images: a function from rows (B,) to images (B, C, H, W) in [-1, 1].
        labels: (n,) int64, or None.
    """

    def __init__(self, store: ImageStore, device: str) -> None:
        self.n = store.n
        self.images: Callable[[torch.Tensor], torch.Tensor] = store.images
        self.labels = None if store.labels is None else store.labels.to(device)
        if device != "cpu":
            on_device = DeviceStore(store, torch.device(device))
            self.images = lambda rows: on_device.values_on_device(rows).view(-1, *store.shape)


def train_step(run: Run, examples: Examples, network: Callable[..., Any]) -> tuple[float, float]:
    """One step of Adam; returns loss and learning rate. ``network``: the run's, maybe compiled."""
    s, device, number = run.settings, run.settings.device, run.step + 1
    draw: dict[str, Any] = {"generator": run.draws, "device": device}
    rows = torch.randint(examples.n, (s.batch,), **draw)
    x0 = examples.images(rows)
    t = torch.randint(TIMESTEPS, (s.batch,), **draw)
    eps = torch.randn(x0.shape, **draw)
    if s.flip:
        mirrored = torch.rand(s.batch, **draw) < 0.5
        x0 = torch.where(mirrored[:, None, None, None], x0.flip(-1), x0)
    labels = None
    if s.conditional:
        assert examples.labels is not None
        dropped = torch.rand(s.batch, **draw) < s.label_dropout
        labels = examples.labels[rows].masked_fill(dropped, run.network.config.classes)
    a = ddpm_alphas().to(device)[t].float()[:, None, None, None]
    x_t = a.sqrt() * x0 + (1 - a).sqrt() * eps

    rate = learning_rate(s, number, run.share)
    for group in run.optimiser.param_groups:
        group["lr"] = rate
    run.network.train()
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=in_bfloat16(s)):
        predicted = network(x_t, t, labels)
    target = eps if s.prediction == EPSILON else a.sqrt() * eps - (1 - a).sqrt() * x0
    errors = (predicted.float() - target).square().mean(dim=(1, 2, 3))
    run.optimiser.zero_grad(set_to_none=True)
    (level_weights(s.noise_weight).to(device)[t] * errors).mean().backward()
    loss = float(errors.detach().mean())
    if not math.isfinite(loss):
        raise ArgumentError(
            f"learning_rate: the loss is {loss} at step {number}; try less than {s.learning_rate:g}"
        )
    torch.nn.utils.clip_grad_norm_(run.network.parameters(), 1.0)
    run.optimiser.step()
    update_ema(run.average, run.network, number, s.average)
    return loss, rate


def ema_decay(step: int, decay: float) -> float:
    """min(decay, (1 + step) / (10 + step)), which keeps initial weights out of short runs."""
    return min(decay, (1 + step) / (10 + step))


@torch.no_grad()
def update_ema(average: nn.Module, network: nn.Module, step: int, decay: float) -> None:
    """Set average <- d * average + (1 - d) * network in place; d is ``ema_decay`` of step >= 1."""
    d = ema_decay(step, decay)
    pairs = zip(average.parameters(), network.parameters(), strict=True)
    means, values = zip(*[pair for pair in pairs if pair[1].requires_grad], strict=True)
    torch._foreach_lerp_(means, values, 1 - d)


def learning_rate(settings: TrainSettings, step: int, share: float) -> float:
    """Linear warm-up over ``warm_up`` steps, times a cosine decay over the last part of the run."""
    falling = max(0.0, min(share, 1.0) - (1 - settings.falling)) / max(settings.falling, 1e-9)
    cosine = 0.5 * (1 + math.cos(math.pi * falling))
    return settings.learning_rate * min(1.0, step / settings.warm_up) * cosine


def level_weights(power: float) -> torch.Tensor:
    """(1 + sigma^2)^power of each timestep, (1000,) float32, divided by their mean."""
    weights = ddpm_alphas() ** -power
    return (weights / weights.mean()).float()


def in_bfloat16(settings: TrainSettings) -> bool:
    """Whether matrix products use bfloat16.

    On one thread of a CPU with AVX-512 BF16 a step takes 0.61 s, against 0.93 s in float32 (32
    channels, 28 x 28, batch 64). Without these instructions bfloat16 is slower than float32.
    """
    if settings.precision is not None:
        return settings.precision == "bfloat16"
    if settings.device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    supported = settings.device == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return bool(supported) and "AVX512" in torch.backends.cpu.get_cpu_capability()
