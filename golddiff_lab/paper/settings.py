"""The options of ``golddiff reproduce`` that experiments read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from golddiff.cli.command import option


@dataclass
class Settings:
    """How an experiment is run; the help of each on the command line says what it is."""

    n: int = option("Images compared; the paper's 128.", 128)
    out: Path = option("The folder of results.", Path("results"))
    seed: int = option("Of the noise and the random picks.", 0)
    batch: int = option("Images denoised together.", 16, names=("--batch-size", "--batch"))
    kamb_images: int | None = option(
        "Kamb's methods over this many random images, and the tables say so; default: all, which "
        "takes long.",
        None,
    )
    most_steps: int | None = option(
        "Runs of more steps are left out, and stand as not run; default: none, ImageNet's have "
        "100.",
        None,
    )
    quick: bool = option("A few images and steps: a trial run, no result.", False)
