"""What a training run is asked to do, checked before it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.oracles.unet import UNetConfig
    from golddiff.store.images import ImageStore

PRECISIONS = ("bfloat16", "float32")
PREDICTED = ("epsilon", "v_prediction")


def _option(value: Any, text: str, panel: str | None = None, **more: Any) -> Any:
    """A setting with its help on the command line."""
    return field(default=value, metadata={"help": text, "panel": panel, **more})


_NETWORK, _TRAINING, _RUNNING = "Network", "Training", "Running"


@dataclass(frozen=True)
class TrainSettings:
    """Settings of :func:`golddiff_lab.training.train.train`; the help of each is its documentation.

    ``noise_weight`` leaves the minimum of the loss as it is, but x0 = x - sigma * eps multiplies an
    error of eps by sigma, and a short run does not come to the minimum. A v_prediction, sqrt(alpha)
    eps - sqrt(1 - alpha) x0 (Salimans and Ho 2022), leaves an error of x0 as it is at every level:
    its loss is EDM's, of images of unit deviation. ``warm_up``: steps in which the rate rises.
    """

    channels: int = _option(64, "Width of the first level.", _NETWORK)
    multipliers: tuple[int, ...] = _option(
        (1, 2, 2), "Width of each level, in multiples of --channels.", _NETWORK
    )
    blocks: int = _option(2, "Residual blocks a level.", _NETWORK)
    dropout: float = _option(
        0.0,
        "Share of features dropped; the published networks have 0.15, for long runs.",
        _TRAINING,
    )
    groups: int | None = _option(
        None, "Of its normalisation; default: of four channels or more, 32 at most.", _NETWORK
    )
    conditional: bool = _option(False, "Learn the classes too.", _NETWORK)
    label_dropout: float = _option(
        0.2, "With --conditional: share of labels left out, to learn the network without.", _NETWORK
    )
    minutes: float | None = _option(
        60.0, "Time to train; default 60, without --steps.", default=None
    )
    steps: int | None = _option(None, "Steps to train.")
    batch: int = _option(64, "Images a step.", _TRAINING)
    learning_rate: float = _option(2e-4, "Adam's, at its peak.", _TRAINING)
    warm_up: int = 200
    falling: float = _option(
        1.0,
        "The last share of the run, in which a cosine brings the rate to 0; before, it is at its "
        "peak.",
        _TRAINING,
    )
    average: float = _option(
        0.999, "Decay a step of the averaged weights; 0.9999 for runs of days.", _TRAINING
    )
    noise_weight: float = _option(
        0.0, "Weigh the loss by (1 + sigma^2) to this power, 0 to 1.", _TRAINING
    )
    prediction: str = _option(
        "v_prediction",
        "What it learns to return: v_prediction, or epsilon as the published networks.",
        _TRAINING,
    )
    flip: bool = _option(False, "Mirror half of the images.", _TRAINING)
    seed: int = _option(0, "Of the weights and all that is drawn.", _TRAINING)
    weights: str | None = _option(
        None, "A network of this shape to start from: a file of golddiff's, or a run's folder."
    )
    precision: str | None = _option(
        None, "bfloat16 or float32; default bfloat16 where the device has it.", _RUNNING
    )
    device: str = _option("cpu", "cpu or cuda.", _RUNNING)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "multipliers": list(self.multipliers)}

    def network(self, store: ImageStore) -> UNetConfig:
        """The network for a store's images.

        Raises:
            ArgumentError: a setting outside its range; a store of other than square images whose
                side divides by 2^(levels - 1); classes asked of a store that has none.
        """
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
        """Raise for what can be told without the images.

        Raises:
            ArgumentError: a setting outside its range.
        """
        from golddiff.oracles.oracle import checked_device
        from golddiff.system.arguments import check_positive
        from golddiff.system.numbers import check_count, check_seed

        for name in ("batch", "warm_up", *(["steps"] if self.steps is not None else [])):
            check_count(name, getattr(self, name))
        if self.minutes is None and self.steps is None:
            raise ArgumentError("minutes: give --minutes or --steps, or training has no end")
        if self.minutes is not None:
            check_positive("minutes", self.minutes)
        check_positive("learning_rate", self.learning_rate)
        for name in ("noise_weight", "label_dropout", "falling", "average"):
            if not 0 <= getattr(self, name) <= 1:
                raise ArgumentError(f"{name}: got {getattr(self, name)}, expected 0 to 1")
        check_seed(self.seed)
        for name, allowed in (("precision", PRECISIONS), ("prediction", PREDICTED)):
            value = getattr(self, name)
            if value not in allowed and (name, value) != ("precision", None):
                raise ArgumentError(f"{name}: got {value!r}, expected {' or '.join(allowed)}")
        checked_device(self.device)
        if self.weights is not None and not Path(self.weights).exists():
            raise ArgumentError(f"weights: {self.weights} does not exist")
        self._config()

    def _config(self, image_channels: int = 1, classes: int = 0) -> UNetConfig:
        # With torch, which the command's help has no use for.
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
