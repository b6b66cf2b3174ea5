"""``golddiff restore``: fill holes, upscale, colour or deblur a picture from training images."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import golddiff
from golddiff.cli.command import argument, command, option
from golddiff.cli.first_use import create_with_bars, make_covariance
from golddiff.cli.options import JsonPath, Seed, Steps, TrainingImages, check_outputs
from golddiff.cli.terminal import counting, say, starting, summary, waiting, write_json
from golddiff.estimators.registry import DEFAULT_METHOD, MethodSettings, method_named
from golddiff.system.errors import ArgumentError
from golddiff.system.files import PICTURES

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from golddiff.denoiser import Denoiser
    from golddiff.estimators.measurement import LinearOperator

RESTORABLE = (DEFAULT_METHOD, "pca", "golddiff-pca")
GREY = slice(32, 224)  # grey values of 0 to 255: a mask has few, at soft edges; a photograph many
MAX_GREY = 0.5  # largest share of grey pixels in a mask
SECONDS = 4e-7  # per entry of a wide blur's matrix, step and restoration, at 64 x 64 RGB
WHITE_OR_BLACK = [0] * 128 + [255] * 128  # lookup table that rounds grey to white or black


@dataclass(frozen=True)
class _RestoreOptions:
    picture: Path = argument("The picture to restore.")
    images: TrainingImages = field(default_factory=TrainingImages)
    hole: tuple[int, ...] | None = option(
        "Fill this rectangle: left, top, width, height in pixels.", None, metavar="X,Y,W,H"
    )
    mask: Path | None = option("Fill the white area of this mask, of the picture's size.", None)
    upscale: int | None = option("Upscale the picture by this factor.", None, min=2, max=8)
    colours: bool = option("Colour a grey picture.", False)
    deblur: float | None = option(
        "Remove a Gaussian blur of this standard deviation, in pixels of the result.",
        None,
        min=0.01,
        max=100,
    )
    n: int = option("Number of restorations.", 4)
    noise: float | None = option(
        "Standard deviation of the picture's noise (white is 1, black -1); default: estimated "
        "from the picture.",
        None,
    )
    softness: float | None = option(
        "Allowed misfit of training images, for pixels from -1 to 1; larger mixes more of them. "
        "Default 0.07.",
        None,
    )
    method: str = option(
        "Method: " + ", ".join(RESTORABLE) + ".",
        DEFAULT_METHOD,
        callback=method_named,
        metavar="NAME",
    )
    steps: Steps = 10
    seed: Seed = 0
    out: Path = option(
        "Output: a .png, .jpg or .webp picture of the known part, the restorations, their mean and "
        "their differences; .npz for arrays; or a folder, one file per restoration.",
        Path("restored.png"),
    )
    explain: Path | None = option(
        "Write a web page with the sources of each restoration.", None, metavar="PATH.html"
    )
    json: JsonPath = None


@command
def restore(job: _RestoreOptions) -> None:
    """Restore a picture from your own images: fill holes, upscale, colour or deblur. No training.

    For example:

      golddiff restore damaged.png --data photos/ --size 64 --hole 20,20,16,16
      golddiff restore damaged.png --data photos/ --size 64 --mask missing.png --n 4
      golddiff restore tiny.png --data photos/ --size 64 --upscale 4 --explain why.html
      golddiff restore grey.png --data photos/ --size 64 --colours

    The transparent pixels of the picture are filled too.
    """
    _check(job)

    from golddiff.estimators.measurement import misfit
    from golddiff.estimators.operators import erased, known_of
    from golddiff.estimators.restoring import for_restoring
    from golddiff.evaluation.restored import SOFTNESS
    from golddiff.sources.picture import decode_picture, picture_bytes

    data = picture_bytes("picture", job.picture)
    image, missing = decode_picture("picture", data), _missing(job, data)
    lost = (missing, erased(image), job.upscale, job.deblur)
    if not job.colours and all(part is None for part in lost):
        raise ArgumentError(
            "hole: got nothing to restore, expected --hole, --mask, --upscale, --colours, --deblur "
            "or a picture with transparent pixels"
        )
    opened = job.images.open()
    y, operator, known = known_of(
        image, opened.shape, missing=missing, upscale=job.upscale or 1,
        colours=job.colours, blur=job.deblur,
    )  # fmt: skip
    if len(y) == 3 and (y == y[0]).all():
        grey = ", --channels 1 fills and keeps it grey" if job.images.data is not None else ""
        say(f"the picture is grey: --colours colours it{grey}")
    minutes = SECONDS * operator.matrix.nnz * job.n * job.steps / 60
    if minutes > 2:
        say(f"this takes about {minutes:.0f} minutes; a smaller --deblur, --n or --size is faster")
    noise = _estimated_noise(job, opened, operator, y, data) if job.noise is None else job.noise
    softness = SOFTNESS if job.softness is None else job.softness
    if noise == softness == 0:
        raise ArgumentError("softness: got 0 for a picture without noise, expected more than 0")
    denoiser: Denoiser
    if job.method == DEFAULT_METHOD:  # its masks and golden subsets do not suit restoration
        make_covariance(job.method, opened, MethodSettings())
        denoiser = for_restoring(opened)
    else:
        denoiser = create_with_bars(job.method, opened, MethodSettings(), job.seed)
    with counting(f"restoring {job.picture.name}", job.n * job.steps) as on_step:
        samples = golddiff.restore(
            denoiser, y[None], operator, noise, softness=softness, n=job.n, steps=job.steps,
            seed=job.seed, attribution=job.explain is not None, on_step=on_step,
        )  # fmt: skip
    if warning := misfit(samples.images, y, operator, noise):
        say(warning)
    if job.explain is not None:
        settings = {"restored": job.picture, "noise": noise, "softness": softness}
        with waiting("explaining the pictures"):
            golddiff.write_report(samples, denoiser, job.explain, settings=settings)
        say(f"{job.explain}: the sources of every restoration")
    say(f"{job.out}: {_write(job, samples, known)}")
    spread_and_novelty = _report(job, samples, opened.n)
    figures = {
        "golddiff": golddiff.__version__, "store": summary(opened), "picture": str(job.picture),
        "hole": job.hole, "mask": None if job.mask is None else str(job.mask),
        "upscale": job.upscale, "colours": job.colours, "deblur": job.deblur,
        "n": job.n, "steps": job.steps, "seed": job.seed,
        "method": job.method, "noise": noise, "softness": softness,
        "training_images": opened.n, **spread_and_novelty, "out": str(job.out),
    }  # fmt: skip
    write_json(job.json, figures)


def _estimated_noise(
    job: _RestoreOptions, opened: golddiff.ImageStore, operator: LinearOperator, y: torch.Tensor,
    data: bytes,
) -> float:  # fmt: skip
    """Estimate and print the noise of a picture, read from the file ``data``."""
    from golddiff.estimators.noise_level import noise_of_file

    with waiting("estimating the picture's noise"):
        noise, least = noise_of_file(
            opened, operator, y, upscale=job.upscale or 1, blur=job.deblur or 0, data=data
        )
    say(
        f"noise {noise:.2g}, estimated from the picture; give --noise if you know it"
        if noise
        else f"no noise found (under {least:.2g} looks like texture); give --noise if you know it"
    )
    return noise


def _write(job: _RestoreOptions, samples: golddiff.Samples, known: torch.Tensor) -> str:
    """Write the restorations; the returned text lists what was written."""
    import torch

    from golddiff.estimators.measurement import pictures_of
    from golddiff.system.pictures import save

    count = "one restoration" if job.n == 1 else f"{job.n} restorations"
    if job.out.suffix.lower() not in PICTURES:
        samples.save(job.out, "out")
        return count
    pictures = pictures_of(samples.images, known)
    shown = replace(samples, images=torch.stack(list(pictures.values())))
    save("out", shown.grid(columns=8), job.out, samples.about)  # with more they would be small
    return ", ".join(["what is known", count, *list(pictures)[job.n + 1 :]])


def _report(job: _RestoreOptions, samples: golddiff.Samples, n_training: int) -> dict[str, Any]:
    """Print the restorations' spread and novelty, and return both for JSON."""
    from golddiff.estimators.measurement import MIN_SPREAD

    spread = samples.images.std(dim=0, correction=0)
    most = float((samples.images.amax(dim=0) - samples.images.amin(dim=0)).max())
    if job.n > 1:
        say(
            f"the restorations are alike: few of {n_training:,} images fit, or little is missing"
            if spread.max() < MIN_SPREAD
            else f"the restorations differ by up to {most:.2f} (white to black is 2)"
        )
    figures = {"spread": float(spread.mean()), "copies": 0}
    if n_training == 1:
        return figures | dict.fromkeys(("novelty", "nearest", "nearest_files"))
    novelty, copies = samples.novelty, int(samples.novelty.copies.sum())
    say(novelty.about)
    if copies:
        say(
            f"copies are expected where one of {n_training:,} images fits far better than the "
            "others; more images or a higher --softness help"
        )
    return figures | {
        "copies": copies, "novelty": novelty.novelty.tolist(),
        "nearest": novelty.nearest.tolist(), "nearest_files": novelty.files,
    }  # fmt: skip


def _check(job: _RestoreOptions) -> None:
    """Check the options without opening or building a store."""
    job.images.check()
    if job.images.data is None and job.images.store is None:
        raise ArgumentError("data: got no training images, expected --data or --store")
    if job.hole is not None and job.mask is not None:
        raise ArgumentError("mask: give --hole or --mask, not both")
    if job.hole is not None and (len(job.hole) != 4 or min(job.hole) < 0 or 0 in job.hole[2:]):
        got = ",".join(map(str, job.hole))
        raise ArgumentError(f"hole: got {got}, expected left,top,width,height in pixels")
    if job.method not in RESTORABLE:
        raise ArgumentError(
            f"method: got {job.method}, expected a method with masks: {', '.join(RESTORABLE)}"
        )
    check_outputs(job.images, [job.picture, job.mask], job.out, job.json, job.explain)
    starting()
    from golddiff.samplers import check_settings
    from golddiff.system.arguments import check_not_negative

    check_settings(job.n, job.steps, "ddim", job.seed)
    for name, value in (("noise", job.noise), ("softness", job.softness)):
        check_not_negative(name, 0 if value is None else value)
    if job.noise == job.softness == 0:
        raise ArgumentError("softness: got 0 and --noise 0, expected one of them above 0")


def _missing(job: _RestoreOptions, data: bytes) -> Image.Image | None:
    """A mask of the picture's size, white in --hole or --mask; None without them."""
    from PIL import Image, ImageDraw

    from golddiff.sources.decode import read_header, with_channels
    from golddiff.sources.picture import read_picture

    width, height, _ = read_header(data)
    if job.mask is not None:
        mask = with_channels(read_picture("mask", job.mask), 1, background="black")
        across, down, _ = read_header(job.mask.read_bytes())
        if (across, down) != (width, height):
            raise ArgumentError(
                f"mask: has {across} x {down} pixels, expected the picture's {width} x {height}"
            )
        counts, rounded = mask.histogram(), mask.point(WHITE_OR_BLACK)
        grey, (darkest, lightest) = sum(counts[GREY]) / sum(counts), rounded.getextrema()
        if grey > MAX_GREY or darkest == lightest:
            one = "white" if darkest else "black"
            what = f"{grey:.0%} of it is grey" if grey > MAX_GREY else f"all of it is {one}"
            raise ArgumentError(
                f"mask: {what}, expected white where the picture is missing and black elsewhere"
            )
        return rounded
    if job.hole is None:
        return None
    left, top, across, down = job.hole
    inside = left + across <= width and top + down <= height
    if not inside or (across, down) == (width, height):
        relation = "all of" if inside else "not inside"
        raise ArgumentError(
            f"hole: got {','.join(map(str, job.hole))}, which is {relation} the picture's "
            f"{width} x {height} pixels"
        )
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).rectangle((left, top, left + across - 1, top + down - 1), fill=255)
    return mask
