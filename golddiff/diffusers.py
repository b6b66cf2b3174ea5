"""Analytical denoisers in diffusers' pipelines, in place of a trained ``UNet2DModel``.

A U-Net takes x_t = sqrt(alpha) x0 + sqrt(1 - alpha) eps at a timestep of a beta schedule; denoisers
take x = x_t / sqrt(alpha) at sigma = sqrt((1 - alpha) / alpha). Schedulers that keep x itself
(Euler, Heun) divide it by sqrt(1 + sigma^2) in ``scale_model_input``, which gives the same x_t.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from diffusers import ConfigMixin, ModelMixin, SchedulerMixin, __version__
from diffusers.models.unets.unet_2d import UNet2DOutput

from golddiff.denoiser import Denoiser
from golddiff.estimators.describe import build, describe
from golddiff.estimators.guided import Guided
from golddiff.noise import Labels, sigma_of_alpha
from golddiff.oracles.diffusers_unet import SCHEDULE, vp_alphas
from golddiff.oracles.parameterisations import EPSILON, PREDICTIONS, V, check_betas
from golddiff.store.images import StoreOrPath, opened
from golddiff.store.latents import decode, index_latents
from golddiff.system.arguments import SHOWN, as_dense_tensor, check_batch, path_of
from golddiff.system.errors import ArgumentError, GoldDiffError, StoreError, one_line
from golddiff.system.files import atomic_write
from golddiff.system.numbers import F64

__all__ = ["AnalyticUNet", "decode", "index_latents"]

# Alpha in place of 0, at the end of a schedule in pure noise, as in diffusers' own schedulers.
PURE_NOISE = 2.0**-24
# Bound of other alphas: sigma 1e-5 for schedules that start without noise.
MAX_ALPHA = 1 - 1e-10

ALPHAS = "alphas_cumprod"  # the attribute of schedulers that have betas
ROUNDED = 0.01  # by which a scheduler's own first and last noise level may be beyond the betas

# Settings of a schedule that every saved configuration has, and arguments of AnalyticUNet.
BETAS = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule")

# Scheduler options that space noise levels in log sigma; the default spacing is in sigma.
LOG_SPACED = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")


class AnalyticUNet(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """A denoiser with the call of diffusers' ``UNet2DModel``, for its pipelines and schedulers.

    Args:
        denoiser: any denoiser of images (C, H, W), pixels or latents; a guided one too.
        prediction_type: output of the call: "epsilon", "sample" (x0) or "v_prediction"; None: as in
            ``scheduler_config``, or "epsilon". The scheduler must have the same prediction type;
            see :attr:`scheduler_settings`.
        num_train_timesteps: number of timesteps of the beta schedule.
        beta_start: first beta.
        beta_end: last beta.
        beta_schedule: diffusers' name of the schedule's shape.
        scheduler_config: a diffusers scheduler or its configuration, which replaces these four.

    Raises:
        ArgumentError: the store holds points; the prediction type or the beta schedule is unknown;
            the scheduler has no betas (flow matching, EDM), its timesteps are not those of its
            betas, or they are not betas.
    """

    config_name = "config.json"

    def __init__(
        self,
        denoiser: Denoiser | Guided,
        prediction_type: str | None = None,
        num_train_timesteps: int = 1000,
        beta_start: float = 1e-4,
        beta_end: float = 0.02,
        beta_schedule: str = "linear",
        scheduler_config: Mapping[str, Any] | SchedulerMixin | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(denoiser, Denoiser | Guided):
            raise ArgumentError(f"denoiser: got {type(denoiser).__name__}, expected a Denoiser")
        shape = denoiser.store.shape
        if len(shape) != 3:
            raise ArgumentError(
                f"denoiser: its store holds data of shape {shape}, expected images (C, H, W)"
            )
        config = getattr(scheduler_config, "config", scheduler_config) or {}
        if not isinstance(config, Mapping):
            raise ArgumentError(
                f"scheduler_config: got {scheduler_config!r:.{SHOWN}}, expected a diffusers "
                "scheduler"
            )
        without_betas = "num_train_timesteps" in config and "beta_schedule" not in config
        is_other = config is not scheduler_config and not hasattr(scheduler_config, ALPHAS)
        if without_betas or (config and is_other):
            raise ArgumentError(
                "scheduler_config: got one without betas, as of flow matching or EDM, expected one "
                "such as DDIM's, Euler's or DPM-Solver's"
            )
        check_betas("scheduler_config", config)
        prediction = prediction_type or config.get("prediction_type", EPSILON)
        if not isinstance(prediction, str) or prediction not in PREDICTIONS:
            raise ArgumentError(
                f"prediction_type: got {prediction!r}, expected one of {', '.join(PREDICTIONS)}"
            )
        given = (num_train_timesteps, beta_start, beta_end, beta_schedule)
        schedule = dict(zip(BETAS, given, strict=True)) | {
            name: config[name]
            for name in SCHEDULE
            # Not all schedulers know rescale_betas_zero_snr, so its default False is left out.
            if config.get(name) is not None and config[name] is not False
        }
        self.denoiser = denoiser
        self._sigmas = _sigmas(schedule)
        log_spaced = any(config.get(name) for name in LOG_SPACED)
        lowest, highest = self._sigmas[0] * (1 - ROUNDED), self._sigmas[-1] * (1 + ROUNDED)
        for name in ("sigma_min", "sigma_max"):
            bound = config.get(name)
            if log_spaced and bound is not None and not lowest <= bound <= highest:
                raise ArgumentError(
                    f"scheduler_config: got one with {name}={bound}, expected a level of its "
                    f"betas, {lowest:.4g} to {highest:.4g}"
                )
        # Pipelines read device and dtype from a tensor of the model; there are no parameters.
        self.register_buffer("anchor", torch.zeros(()), persistent=False)
        self.register_to_config(
            sample_size=shape[1] if shape[1] == shape[2] else list(shape[1:]),
            in_channels=shape[0],
            out_channels=shape[0],
            prediction_type=prediction,
            schedule=schedule,
            log_spaced=log_spaced,
        )

    def extra_repr(self) -> str:
        """The denoiser, for ``print``."""
        return repr(self.denoiser)

    @property
    def scheduler_settings(self) -> dict[str, Any]:
        """Arguments for a matching scheduler: ``DDIMScheduler(**scheduler_settings)``."""
        return {**self.config.schedule, "prediction_type": self.config.prediction_type}

    def forward(
        self,
        sample: torch.Tensor,
        timestep: torch.Tensor | float,
        class_labels: Labels = None,
        return_dict: bool = True,
    ) -> UNet2DOutput | tuple[torch.Tensor]:
        """The prediction of a U-Net trained to optimality on the store.

        Args:
            sample: (B, C, H, W) x_t, any float type.
            timestep: one, or (B,); an integer, or a fraction between two integer timesteps.
            class_labels: class index, one for all or (B,).
            return_dict: return ``UNet2DOutput(sample=...)`` instead of a tuple.

        Returns:
            (B, C, H, W) with the dtype and device of ``sample``.

        Raises:
            ArgumentError: a sample of another shape or without a float type; a timestep outside
                the schedule; as in a call of the denoiser.
        """
        check_batch("sample", sample, self.denoiser.store.shape, "store")
        levels = self.sigma(timestep)
        if levels.ndim == 1 and len(levels) not in (1, len(sample)):
            raise ArgumentError(f"timestep: got {len(levels)} of them for {len(sample)} samples")
        sigma = torch.from_numpy(levels)
        level = sigma.reshape(-1, 1, 1, 1).to(sample.device)  # (B, 1, 1, 1), or one level
        noisy, scale = sample.double(), (1 + level**2).sqrt()  # 1 / sqrt(alpha)
        x0 = self.denoiser(noisy * scale, sigma, class_labels).double()
        epsilon = (noisy * scale - x0) / level
        outputs = {EPSILON: epsilon, "sample": x0, V: (epsilon - level * x0) / scale}
        predicted = outputs[self.config.prediction_type].to(sample.dtype)
        return UNet2DOutput(sample=predicted) if return_dict else (predicted,)

    def sigma(self, timestep: torch.Tensor | float) -> F64:
        """The noise level of each timestep, () or (B,); fractional timesteps are interpolated.

        Raises:
            ArgumentError: a timestep outside the schedule.
        """
        last = len(self._sigmas) - 1
        expected = f"one number, or one a sample, of 0 to {last}"
        times = as_dense_tensor("timestep", timestep, expected).double().numpy()
        if times.ndim > 1 or not np.all((times >= 0) & (times <= last)):
            raise ArgumentError(f"timestep: got {timestep}, expected {expected}")
        steps = np.arange(last + 1)
        if self.config.log_spaced:
            levels = np.exp(np.interp(times, steps, np.log(self._sigmas)))
        else:
            levels = np.interp(times, steps, self._sigmas)
        # Integer timesteps are exact: denoisers cache results by the bits of sigma.
        whole = np.rint(times)
        return np.asarray(np.where(times == whole, self._sigmas[whole.astype(int)], levels))

    def save_pretrained(self, save_directory: str | os.PathLike[str], **unused: Any) -> None:
        """Write ``config.json``: the method, its settings, and the path of its store.

        The path of a store inside ``save_directory`` is relative, so that both can move together.

        Args:
            save_directory: folder; created if it does not exist.
            unused: options of pipelines about weights, which this model does not have.

        Raises:
            ArgumentError: the denoiser has log weights, is guided, or is of a class that cannot be
                described; the folder cannot be written; ``push_to_hub`` is given.
        """
        if unused.get("push_to_hub"):
            raise ArgumentError(
                "push_to_hub: got True, expected none: only a configuration is saved, which needs "
                "the store on this machine"
            )
        if not isinstance(self.denoiser, Denoiser) or self.denoiser.priors:
            raise ArgumentError(
                "denoiser: has log weights (given) or is guided, which config.json cannot hold; "
                "save the denoiser that it was made of, and repeat the call when it is opened"
            )
        folder = path_of("save_directory", save_directory)
        store, parent = self.denoiser.store.path.resolve(), folder.resolve()
        inside = store.is_relative_to(parent)
        saved = {
            "_class_name": type(self).__name__,
            "_diffusers_version": __version__,
            **{k: v for k, v in self.config.items() if not k.startswith("_")},
            "denoiser": describe(self.denoiser),
            "store": store.relative_to(parent).as_posix() if inside else str(store),
        }
        text = json.dumps(saved, indent=2, default=lambda array: array.tolist()) + "\n"
        with atomic_write("save_directory", folder / self.config_name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        store: StoreOrPath | None = None,
        **given: Any,
    ) -> AnalyticUNet:
        """Load a model that :meth:`save_pretrained` wrote.

        Args:
            pretrained_model_name_or_path: the folder.
            store: the store or its path, if it has moved.
            given: ``subfolder`` and ``dtype`` or ``torch_dtype``; other options of pipelines
                concern weights and are ignored.

        Raises:
            ArgumentError: the folder has no configuration of an ``AnalyticUNet``, the store's
                images have another shape, or a saved setting is given.
            StoreError: the store is not at the configured path, or cannot be opened.
        """
        saved_settings = given.keys() & {"denoiser", "prediction_type", "scheduler_config", *BETAS}
        if saved_settings:
            raise ArgumentError(
                f"{min(saved_settings)}: got one, but the model has the saved one; to use another, "
                "make another AnalyticUNet of its denoiser"
            )
        name = "pretrained_model_name_or_path"
        folder = path_of(name, pretrained_model_name_or_path) / (given.get("subfolder") or "")
        path = folder / cls.config_name
        if not path.is_file():
            raise ArgumentError(f"{name}: {path} does not exist")
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            log_spaced = saved["log_spaced"]
            if not isinstance(log_spaced, bool):
                raise TypeError(f"log_spaced is {log_spaced!r}")
            try:
                images = opened(folder / saved["store"] if store is None else store)
            except StoreError as error:
                raise StoreError(f"{path}: {error}; give store= to say where it lies") from error
            size = saved["sample_size"]
            shape = (saved["in_channels"], *(size if isinstance(size, list) else (size, size)))
            if shape != images.shape:
                raise ArgumentError(
                    f"store: holds images of shape {images.shape}, expected {shape}, for which "
                    f"{path} was saved"
                )
            model = cls(
                build(saved["denoiser"], images),
                saved["prediction_type"],
                **{name: saved["schedule"][name] for name in BETAS},
                scheduler_config={**saved["schedule"], LOG_SPACED[0]: log_spaced},
            )
        except GoldDiffError:
            raise
        except Exception as error:
            # A damaged configuration can raise nearly any exception.
            raise ArgumentError(
                f"{name}: {path} is not the configuration of an "
                f"AnalyticUNet ({type(error).__name__}: {one_line(error, 200)})"
            ) from error
        dtype = given.get("dtype") or given.get("torch_dtype")
        if isinstance(dtype, torch.dtype):
            model.anchor = model.anchor.to(dtype)
        return model


def _sigmas(schedule: Mapping[str, Any]) -> F64:
    """The noise level of each timestep, ascending."""
    alphas = [float(alpha) or PURE_NOISE for alpha in vp_alphas(schedule)]
    return np.array([sigma_of_alpha(min(a, MAX_ALPHA)) for a in alphas])
