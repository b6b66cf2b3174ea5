"""Settings of a training run, checked before it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff.cli.command import option
from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.oracles.unet import UNetConfig
    from golddiff.store.images import ImageStore

PRECISIONS = ("bfloat16", "float32")
PREDICTED = ("epsilon", "v_prediction")


_NETWORK, _TRAINING, _RUNNING = "Network", "Training", "Running"


@dataclass(frozen=True)
class TrainSettings:
    """Settings of :func:`golddiff_lab.training.train.train`, documented by their help texts.

    ``noise_weight`` does not change the minimum of the loss, but a short run does not reach the
    minimum, and x0 = x - sigma * eps multiplies errors of eps by sigma. A v_prediction, sqrt(alpha)
    eps - sqrt(1 - alpha) x0 (Salimans and Ho 2022), weighs squared errors of x0 by 1 + 1/sigma^2:
    its loss is EDM's for images of unit deviation. ``warm_up``: steps in which the rate rises.
    """

    channels: int = option("Width of the first level.", 64, panel=_NETWORK)
    multipliers: tuple[int, ...] = option(
        "Width of each level, in multiples of --channels.", (1, 2, 2), panel=_NETWORK
    )
    blocks: int = option("Residual blocks per level.", 2, panel=_NETWORK)
    dropout: float = option(
        "Dropout probability; the published networks, trained for long, use 0.15.",
        0.0,
        panel=_TRAINING,
    )
    groups: int | None = option(
        "Groups per group normalisation; default: up to 32, of at least 4 channels.",
        None,
        panel=_NETWORK,
    )
    conditional: bool = option("Condition the network on class labels.", False, panel=_NETWORK)
    label_dropout: float = option(
        "With --conditional: fraction of labels dropped, to train unconditionally.",
        0.2,
        panel=_NETWORK,
    )
    minutes: float | None = option(
        "Training time in minutes; default 60, unless --steps is given.", None
    )
    steps: int | None = option("Number of training steps.", None)
    batch: int = option("Images per step.", 64, panel=_TRAINING)
    learning_rate: float = option("Peak learning rate of Adam.", 2e-4, panel=_TRAINING)
    warm_up: int = 200
    falling: float = option(
        "Final fraction of the run in which the learning rate falls along a cosine to 0.",
        1.0,
        panel=_TRAINING,
    )
    average: float = option(
        "Decay per step of the averaged weights; 0.9999 suits runs of days.", 0.999, panel=_TRAINING
    )
    noise_weight: float = option(
        "Weight of the loss: (1 + sigma^2) to this power, 0 to 1.", 0.0, panel=_TRAINING
    )
    prediction: str = option(
        "Output of the network: v_prediction, or epsilon as in the published networks.",
        "v_prediction",
        panel=_TRAINING,
    )
    flip: bool = option("Mirror half of the images.", False, panel=_TRAINING)
    seed: int = option("Seed of the initial weights and of all random draws.", 0, panel=_TRAINING)
    weights: str | None = option(
        "Initial weights of the same network: a golddiff weight file or a run's folder.", None
    )
    precision: str | None = option(
        "bfloat16 or float32; default: bfloat16 if the device supports it.", None, panel=_RUNNING
    )
    device: str = option("cpu or cuda.", "cpu", panel=_RUNNING)

    def as_dict(self) -> dict[str, Any]:
        """The settings as a dictionary for JSON."""
        return {**asdict(self), "multipliers": list(self.multipliers)}

    def network(self, store: ImageStore) -> UNetConfig:
        """The network configuration for a store's images."""
        self.check()
        if len(store.shape) != 3 or store.shape[1] != store.shape[2]:
            raise ArgumentError(
                f"data: got examples of shape {store.shape}, expected square images"
            )
        if self.conditional and not store.classes:
            raise ArgumentError("conditional: the training set has no labels")
        config = self._config(store.shape[0], max(store.classes) + 1 if self.conditional else 0)
        if store.shape[1] % config.divisor:
            raise ArgumentError(
                f"multipliers: got {len(self.multipliers)} levels, so the side of the images must "
                f"be a multiple of {config.divisor}, and it is {store.shape[1]}"
            )
        return config

    def check(self) -> None:
        """Check everything that does not depend on the images."""
        from golddiff.system.arguments import check_device, check_positive
        from golddiff.system.numbers import check_count, check_seed

        for name in ("batch", "warm_up", *(["steps"] if self.steps is not None else [])):
            check_count(name, getattr(self, name))
        if self.minutes is not None:
            check_positive("minutes", self.minutes)
        check_positive("learning_rate", self.learning_rate)
        for name in ("noise_weight", "label_dropout", "falling", "average"):
            if not 0 <= getattr(self, name) <= 1:
                raise ArgumentError(f"{name}: got {getattr(self, name)}, expected 0 to 1")
        if self.conditional and not self.label_dropout:
            raise ArgumentError(
                "label_dropout: got 0, expected above 0, because networks also run without labels"
            )
        check_seed(self.seed)
        for name, allowed in (("precision", PRECISIONS), ("prediction", PREDICTED)):
            value = getattr(self, name)
            if value not in allowed and (name, value) != ("precision", None):
                raise ArgumentError(f"{name}: got {value!r}, expected {' or '.join(allowed)}")
        check_device(self.device)
        if self.weights is not None and not Path(self.weights).exists():
            raise ArgumentError(f"weights: {self.weights} does not exist")
        self._config()

    def _config(self, image_channels: int = 1, classes: int = 0) -> UNetConfig:
        # Imports torch, which the command's help does not need.
        from golddiff.oracles.unet import UNetConfig

        config = UNetConfig(
            channels=self.channels,
            multipliers=self.multipliers,
            blocks=self.blocks,
            image_channels=image_channels,
            classes=classes,
            dropout=self.dropout,
            groups=_groups(self.channels) if self.groups is None else self.groups,
        )
        config.check()
        return config


def _groups(channels: int) -> int:
    most = max(1, min(32, channels // 4))
    return next(g for g in range(most, 0, -1) if channels % g == 0)
