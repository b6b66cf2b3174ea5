"""What a training run is asked to do, checked before it starts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from golddiff.errors import ArgumentError
from golddiff.oracles.oracle import checked_device
from golddiff.oracles.parameterisations import EPSILON, V
from golddiff.oracles.unet import UNetConfig

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

PRECISIONS = ("bfloat16", "float32")


@dataclass(frozen=True)
class TrainSettings:
    """Settings of :func:`golddiff.oracles.train.train`.

    Attributes:
        channels, multipliers, blocks, dropout: sizes of the network (:class:`UNetConfig`).
        groups: of its normalisation; None for the most that divide ``channels``
            and leave four channels in each, up to 32.
        conditional: learn the store's classes too, and the network without them by leaving out a
            share ``label_dropout`` of the labels.
        minutes: time to train for; None for no limit. Time in which the process was stopped does
            not count.
        steps: steps to train for; None for no limit. With both, what comes first.
        batch: images a step.
        learning_rate: peak of Adam's, reached in ``warm_up`` steps; a cosine brings it to 0.
        noise_weight: the loss at a level is weighed by (1 + sigma^2)^noise_weight; 0: DDPM's. The
            minimum is the same, but x0 = x - sigma * eps multiplies an error of eps by sigma, and a
            short run does not come to the minimum.
        prediction: what the network learns to return: "v_prediction", sqrt(alpha) eps -
            sqrt(1 - alpha) x0 (Salimans and Ho 2022), which leaves an error of x0 as it is at every
            level; or "epsilon", as DDPM and the published networks, whose errors x0 = x - sigma *
            eps multiplies by sigma.
        flip: mirror half of the images left to right.
        seed: of the weights and of all that is drawn.
        precision: "bfloat16" (autocast) or "float32"; None for the device's default.
        device: "cpu", "cuda" or another of torch's.
    """

    channels: int = 64
    multipliers: tuple[int, ...] = (1, 2, 2)
    blocks: int = 2
    dropout: float = 0.0
    groups: int | None = None
    conditional: bool = False
    label_dropout: float = 0.2
    minutes: float | None = 60.0
    steps: int | None = None
    batch: int = 64
    learning_rate: float = 2e-4
    warm_up: int = 200
    noise_weight: float = 0.0
    prediction: str = V
    flip: bool = False
    seed: int = 0
    precision: str | None = None
    device: str = "cpu"

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
        config = UNetConfig(
            channels=self.channels,
            multipliers=self.multipliers,
            blocks=self.blocks,
            image_channels=store.shape[0],
            classes=max(store.classes) + 1 if self.conditional else 0,
            dropout=self.dropout,
            groups=_groups(self.channels) if self.groups is None else self.groups,
        )
        config.check()
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
        whole = {"batch": self.batch, "warm_up": self.warm_up}
        if self.steps is not None:
            whole["steps"] = self.steps
        for name, value in whole.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{name}: got {value!r}, expected an integer of 1 or more")
        if self.minutes is None and self.steps is None:
            raise ArgumentError("minutes: give --minutes or --steps, or training has no end")
        if self.minutes is not None and not (math.isfinite(self.minutes) and self.minutes > 0):
            raise ArgumentError(f"minutes: got {self.minutes}, expected a number above 0")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ArgumentError(f"learning_rate: got {self.learning_rate}, expected one above 0")
        if not 0 <= self.noise_weight <= 1:
            raise ArgumentError(f"noise_weight: got {self.noise_weight}, expected 0 to 1")
        if not 0 <= self.label_dropout <= 1:
            raise ArgumentError(f"label_dropout: got {self.label_dropout}, expected 0 to 1")
        if isinstance(self.seed, bool) or not 0 <= self.seed < 2**63:
            raise ArgumentError(f"seed: got {self.seed!r}, expected an integer from 0 to 2**63 - 1")
        if self.precision not in (None, *PRECISIONS):
            raise ArgumentError(
                f"precision: got {self.precision!r}, expected {' or '.join(PRECISIONS)}"
            )
        if self.prediction not in (EPSILON, V):
            raise ArgumentError(f"prediction: got {self.prediction!r}, expected {EPSILON} or {V}")
        checked_device(self.device)


def _groups(channels: int) -> int:
    most = max(1, min(32, channels // 4))
    return next(g for g in range(most, 0, -1) if channels % g == 0)
