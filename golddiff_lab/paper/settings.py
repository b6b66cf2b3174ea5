"""The options of ``golddiff reproduce`` that experiments use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from golddiff.cli.command import option


@dataclass
class Settings:
    """Settings of an experiment, documented by their help texts on the command line."""

    n: int = option("Number of images compared; the paper uses 128.", 128)
    out: Path = option("Folder of the results.", Path("results"))
    seed: int = option("Seed of the noise and of random choices.", 0)
    batch: int = option("Images denoised together.", 16, names=("--batch-size", "--batch"))
    kamb_images: int | None = option(
        "Run Kamb's methods over this many random images, as noted in the tables; default: all, "
        "which takes long.",
        None,
    )
    most_steps: int | None = option(
        "Skip runs with more steps, which tables show as not run; default: skip none (ImageNet's "
        "have 100).",
        None,
    )
    quick: bool = option("A trial run with a few images and steps, not a result.", False)
