"""U-Nets of the diffusers library: a ``UNet2DModel``, alone or in a pipeline's folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from golddiff.oracles.parameterisations import PREDICTIONS, Steps, check_betas, ddpm_alphas
from golddiff.oracles.weights import (
    build_network,
    check_run,
    check_sizes,
    check_state_dict,
    read_safetensors,
    regular_file,
)
from golddiff.system.errors import ArgumentError, CheckpointError, one_line
from golddiff.system.files import readable
from golddiff.system.numbers import is_whole
from golddiff.system.torch_files import read_torch

CONFIG = "config.json"
SCHEDULER = "scheduler_config.json"
CLASS = "UNet2DModel"
NAME = "diffusion_pytorch_model"
# The settings of a scheduler that determine its noise levels.
SCHEDULE = (
    "num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas",
    "rescale_betas_zero_snr",
)  # fmt: skip
MAX_TIMESTEPS = 1_000_000  # far above any network in use
# diffusers imports its submodules lazily, and fails if two threads import at the same time.
LOADING = threading.Lock()


def load_diffusers(folder: Path, resolution: int | None) -> dict[str, Any]:
    """The arguments of an Oracle for a ``UNet2DModel`` in a folder, or in a pipeline's ``unet``.

    ``scheduler_config.json``, in the model's folder or the pipeline's ``scheduler`` folder, gives
    the prediction type and the noise levels; the defaults are epsilon and DDPM's steps. The
    weights must be in a single file: sharded weights are not supported.
    """
    home = folder if (folder / CONFIG).is_file() else folder / "unet"
    config = read_json(regular_file(home / CONFIG, folder))
    if config.get("_class_name") != CLASS:
        raise CheckpointError(
            f"{home / CONFIG} is of a {config.get('_class_name')!r}, expected a diffusers {CLASS}"
        )
    embedding = config.get("time_embedding_type", "positional")
    if embedding != "positional":  # "fourier" takes noise levels, "learned" only whole timesteps
        raise CheckpointError(
            f"{home}: time_embedding_type is {str(embedding)[:80]!r}, expected 'positional'"
        )
    network = _network(folder, home, config)
    schedule, prediction, note = _schedule_and_prediction(folder, home)
    shape, classes = _shape(network.config, resolution, home), network.config.num_class_embeds or 0
    check_run(f"{home}: its {CLASS}", lambda: type(network).from_config(config), shape, classes)
    return {
        "module": network, "parameterisation": prediction, "schedule": schedule,
        "shape": shape, "num_classes": classes, "kind": f"diffusers {CLASS}, {prediction}{note}",
    }  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    with readable(f"{path} cannot be read as JSON", CheckpointError):
        value = json.loads(path.read_text("utf-8"))
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, expected an object")
    return value


def _network(folder: Path, home: Path, config: dict[str, Any]) -> Any:
    files = [home / f"{NAME}.safetensors", home / f"{NAME}.bin"]
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        raise CheckpointError(
            f"{home} has no {NAME}.safetensors and no {NAME}.bin; weights must be in one file"
        )
    regular_file(path, folder)
    check_sizes(config, f"{home / CONFIG}:")
    with LOADING:
        from diffusers import UNet2DModel

    state = read_safetensors(path)[0] if path == files[0] else read_torch(path)
    tensors = check_state_dict(state, path)
    with readable(f"{home} cannot be loaded as a {CLASS}", CheckpointError):
        return build_network(lambda: UNet2DModel.from_config(config), tensors, path)


def _schedule_and_prediction(folder: Path, home: Path) -> tuple[Steps, str, str]:
    # The user may name a pipeline's unet folder; the scheduler folder is then its sibling.
    parent = home.absolute().parent  # absolute, because "." has no parent
    roots = {home: folder, home / "scheduler": folder, parent / "scheduler": parent}
    files = [(p / SCHEDULER, root) for p, root in roots.items() if (p / SCHEDULER).is_file()]
    if not files:
        return Steps(ddpm_alphas()), "epsilon", f" (assumed: no {SCHEDULER})"
    path, root = files[0]
    config = read_json(regular_file(path, root))
    if not {"beta_start", "trained_betas"} & config.keys():
        raise CheckpointError(f"{path} is of a {config.get('_class_name')!r} without VP's betas")
    prediction = config.get("prediction_type", "epsilon")
    if not isinstance(prediction, str) or prediction not in PREDICTIONS:
        raise CheckpointError(
            f"{path}: prediction_type is {str(prediction)[:80]!r}, expected one of "
            f"{', '.join(PREDICTIONS)}"
        )
    try:
        check_betas("scheduler", config)
        alphas = vp_alphas({name: config[name] for name in SCHEDULE if name in config})
        return Steps(alphas), prediction, ""
    except Exception as error:
        raise CheckpointError(f"{path} is no VP schedule: {one_line(error, 200)}") from error


def vp_alphas(schedule: Mapping[str, Any]) -> torch.Tensor:
    """Cumulative alphas (T,) of a diffusers scheduler with these :data:`SCHEDULE` settings.

    Raises:
        ArgumentError: a setting that the scheduler refuses, or betas outside 0 to 1.
    """
    with LOADING:
        from diffusers import DDPMScheduler

    count = schedule.get("num_train_timesteps", 1000)
    if not is_whole(count) or not 0 < count <= MAX_TIMESTEPS:
        raise ArgumentError(f"num_train_timesteps: got {count!r}, expected 1 to {MAX_TIMESTEPS:,}")
    try:
        scheduler = DDPMScheduler(**schedule)
    except (NotImplementedError, TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"betas: got {dict(schedule)}, but {one_line(error, 120)}") from error
    if not bool(((scheduler.betas >= 0) & (scheduler.betas <= 1)).all()):
        raise ArgumentError(f"betas: got {dict(schedule)}, expected betas from 0 to 1")
    return scheduler.alphas_cumprod


def _shape(config: Any, resolution: int | None, home: Path) -> tuple[int, int, int]:
    size = config.sample_size
    height, width = size if isinstance(size, list | tuple) and len(size) == 2 else (size, size)
    if not all(side is None or (type(side) is int and side > 0) for side in (height, width)):
        raise CheckpointError(f"{home}: sample_size is {str(size)[:80]!r}, no side of an image")
    if height is None or width is None:
        if resolution is None:
            raise ArgumentError(f"resolution: {home} does not record its image size, so give one")
        height = width = resolution
    return int(config.in_channels), int(height), int(width)
