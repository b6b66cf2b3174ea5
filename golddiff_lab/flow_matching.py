"""``python -m golddiff_lab.flow_matching STORE``: deepinv's flow-matching demo over all images.

deepinv's ``demo_flow_matching.py`` samples a digit, and inpaints one, with its closed-form
``MMSE`` over 1,000 digits. Here both tasks use all images of a store, with ``MMSE`` and with
``Optimal``. Inpainting is repeated with a denoiser conditioned on the measurement. Needs deepinv.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from golddiff.cli.terminal import say
from golddiff.estimators.optimal import Optimal
from golddiff.store.images import ImageStore
from golddiff.system.files import PICTURES, check_writable
from golddiff.system.markdown import markdown_table
from golddiff.system.pictures import draw_grid, save
from golddiff_lab.arguments import check_deepinv, check_side
from golddiff_lab.programs import program
from golddiff_lab.timing import in_turns, timed

NOISE = 0.1  # noise of the measurement, in deepinv's range [0, 1]
STEPS = 100
HOLE = slice(10, 20)  # rows and columns
DRAWN, INPAINTED, GIVEN = "drawn", "inpainted by DPS", "inpainted, denoiser given y"


def compared(store: ImageStore, repeats: int) -> tuple[torch.Tensor, dict[str, dict[str, Any]]]:
    """Truth and measurement (2, C, H, W); and by task and side, a timing with the result image."""
    from deepinv import physics
    from deepinv.models import MMSE
    from deepinv.sampling import DPSDataFidelity, EulerSolver, FlowMatching, PosteriorDiffusion

    from golddiff.deepinv import AnalyticDenoiser

    cpu, images, exact = torch.device("cpu"), (store.images() + 1) / 2, Optimal(store)
    mask = torch.ones(store.shape)
    mask[..., HOLE, HOLE] = 0
    generator = torch.Generator().manual_seed(0)
    y = mask * (images[:1] + NOISE * torch.randn(1, *store.shape, generator=generator))
    hole = physics.Inpainting(store.shape, mask=mask)
    hole.noise_model = physics.GaussianNoise(NOISE)

    def flow(denoiser: Any) -> Any:
        solver = EulerSolver(torch.linspace(0.99, 0.0, STEPS), rng=torch.Generator().manual_seed(5))
        return FlowMatching(denoiser=denoiser, solver=solver, device=cpu, dtype=torch.float32)

    def drawn(denoiser: Any) -> Any:
        return flow(denoiser)(x_init=(1, *store.shape), seed=0)

    def inpainted(denoiser: Any) -> Any:
        fidelity = DPSDataFidelity(denoiser=denoiser, weight=1.0)
        sampler = PosteriorDiffusion(fidelity, sde=flow(denoiser), dtype=torch.float32)
        return sampler(y, hole, x_init=None, seed=0)

    sides = {"MMSE": MMSE(images, cpu, torch.float32), "Optimal": AnalyticDenoiser(exact)}
    given = exact.given_measurement(lambda x: hole.A((x + 1) / 2), y, NOISE)
    tasks = {
        DRAWN: {n: partial(drawn, d) for n, d in sides.items()},
        INPAINTED: {n: partial(inpainted, d) for n, d in sides.items()},
        GIVEN: {"Optimal": partial(drawn, AnalyticDenoiser(given))},
    }
    timings = {
        task: in_turns({n: partial(timed, call) for n, call in calls.items()}, repeats)
        for task, calls in tasks.items()
    }
    return torch.cat([images[:1], y]), timings


def main(
    store: Annotated[Path, typer.Argument(help="A store of pixels.")],
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("flow-matching.png"),
    repeats: Annotated[int, typer.Option(help="Timed runs of each side.", min=1)] = 3,
) -> None:
    """Print the times; draw truth, measurement and the result of each task."""
    check_deepinv()
    check_writable("out", out, PICTURES)
    opened = ImageStore.open(store)
    check_side(opened, HOLE.stop)
    inputs, timings = compared(opened, repeats)
    rows, results = [], []
    for task, sides in timings.items():
        results.append(sides["Optimal"].out)
        apart = (sides["MMSE"].out - results[-1]).abs().max() if "MMSE" in sides else None
        times = [f"{sides[n].seconds:.1f}" if n in sides else "" for n in ("MMSE", "Optimal")]
        rows.append([task, *times, "" if apart is None else f"{apart:.1g}"])
    say(*markdown_table(["", "MMSE, s", "Optimal, s", "apart"], rows))
    images = 2 * torch.cat([inputs, *results]).clamp(0, 1) - 1
    save("out", draw_grid(images, columns=len(images)), out)


if __name__ == "__main__":
    sys.exit(program("flow_matching", main))
