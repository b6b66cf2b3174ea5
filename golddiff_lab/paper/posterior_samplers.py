"""Compare deepinv's posterior samplers, run on an exact denoiser, with the exact posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.fft import dct

from golddiff.denoiser import Denoiser
from golddiff.estimators.mixture import GaussianMixture
from golddiff.estimators.optimal import Optimal
from golddiff.store.closed_form import ExactPosterior
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff.system.markdown import markdown_table, number
from golddiff.system.pictures import draw_rows
from golddiff_lab.arguments import check_deepinv
from golddiff_lab.cells import Key, Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.likeness import packed, unpacked
from golddiff_lab.paper.page import Page

DRAWS = 8  # draws of each sampler per measurement
INTERVAL_DRAWS = 1000  # exact draws, whose quantiles give the interval
SHARE, NARROW = 0.9, 0.01  # probability of the interval; narrower intervals are ignored
STEPS = 100
FLAT = 1e6  # a noise level so high that the posterior equals the prior
SHOWN = 2  # measurements in the pictures
NOISES = {"mnist": (0.05, 0.5), "cifar10": (0.05, 1.0)}
EXACT, GIVEN = "exact draws", "denoiser given y"
WHOLE = ("truth", "measured", "exact mean")

NOTE = (
    "Each truth is drawn from the prior itself, so the exact posterior is right by construction. "
    f"Every sampler runs on the exact denoiser with deepinv's settings, {DRAWS} draws per "
    "measurement. **Error**: RMSE between the mean of the draws and the exact mean. "
    "**Spread**: root mean square of the draws' standard deviations. **Coverage**: fraction of the "
    f"draws' values within the exact {SHARE:.0%} interval, ignoring intervals below {NARROW}. "
    f'Images are in [-1, 1], noise in deepinv\'s range [0, 1]. "{EXACT}" is what {DRAWS} draws '
    f'can reach; "{GIVEN}" is deepinv\'s DDPM solver on the denoiser conditioned on the '
    "measurement."
)


def priors(name: str, store: ImageStore) -> dict[str, Denoiser]:
    """Denoisers with a known prior, by the name of the prior."""
    denoisers: dict[str, Denoiser] = {"the images": Optimal(store)}
    if name == "mnist":  # for larger images the covariances take minutes per step
        denoisers["a mixture of Gaussians"] = GaussianMixture(store, components=4)
    return denoisers


def tasks(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Operators with a singular value decomposition, which DDRM needs."""
    from deepinv import physics

    left = torch.ones(shape)
    left[..., shape[2] // 2 :] = 0
    blur = physics.functional.gaussian_blur(psf_size=(7, 7), sigma=(2.0, 2.0))
    return {
        "right half missing": partial(physics.Inpainting, shape, left),
        "4 x 4 pixels averaged": partial(averaged, shape),
        "blur of 2 pixels": partial(physics.BlurFFT, shape, blur),
    }


def averaged(shape: tuple[int, ...], side: int = 4) -> Any:
    """Average over squares; the singular vectors are cosine transforms of the squares."""
    from deepinv.physics import DecomposablePhysics

    channels, height, width = shape
    if height % side or width % side:
        raise ArgumentError(f"data: is of {height} x {width} pixels, expected multiples of {side}")
    basis = torch.from_numpy(dct(np.eye(side), axis=0, norm="ortho")).float()
    singular = torch.zeros(1, *shape)
    singular[..., ::side, ::side] = 1 / side

    def transformed(images: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        squares = images.reshape(-1, channels, height // side, side, width // side, side)
        matrix = matrix.to(images.dtype)
        return torch.einsum("bcipjq,kp,lq->bcikjl", squares, matrix, matrix).reshape(images.shape)

    def spread(y: torch.Tensor) -> torch.Tensor:
        out = y.new_zeros(len(y), *shape)
        out[..., ::side, ::side] = y
        return out

    return DecomposablePhysics(
        U=lambda z: z[..., ::side, ::side], U_adjoint=spread, mask=singular, img_size=shape,
        V_adjoint=lambda x: transformed(x, basis), V=lambda z: transformed(z, basis.T),
    )  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """Measurements of images drawn from a prior."""

    prior: Denoiser
    physics: Any
    noise: float
    n: int
    seed: int

    @cached_property
    def truth(self) -> torch.Tensor:
        """(n, C, H, W) in [-1, 1]."""
        blank = torch.zeros(1, *self.prior.store.shape)
        return self.prior.posterior(blank, FLAT).draw(self.n, self.seed)[:, 0]

    @cached_property
    def y(self) -> torch.Tensor:
        """(n, *measured) measurements in deepinv's range [0, 1]."""
        from deepinv.physics import GaussianNoise

        rng = torch.Generator().manual_seed(self.seed)
        self.physics.noise_model = GaussianNoise(self.noise, rng=rng)
        return self.physics((self.truth + 1) / 2)

    def given(self, times: int) -> Denoiser:
        """The denoiser conditioned on each measurement, repeated ``times`` times."""
        y = self.y.repeat_interleave(times, dim=0)
        return self.prior.given_measurement(lambda x: self.physics.A((x + 1) / 2), y, self.noise)

    @cached_property
    def exact(self) -> ExactPosterior:
        """The exact posterior of x0 given y."""
        return self.given(1).posterior(torch.zeros_like(self.truth), FLAT)

    @cached_property
    def interval(self) -> torch.Tensor:
        """(2, n, C, H, W): bounds of the exact posterior's interval of probability ``SHARE``."""
        ends = torch.tensor([(1 - SHARE) / 2, (1 + SHARE) / 2])
        by_image = self.exact.draw(INTERVAL_DRAWS, self.seed + 1).flatten(2).unbind(1)
        bounds = torch.stack([draws.quantile(ends, dim=0) for draws in by_image], dim=1)
        return bounds.reshape(2, *self.truth.shape)

    def drawn(self, sampler: str, steps: int) -> torch.Tensor:
        """Draws of a sampler, (DRAWS, n, C, H, W) in [-1, 1]."""
        if sampler == EXACT:
            return self.exact.draw(DRAWS, self.seed + 2)
        from golddiff.deepinv import AnalyticDenoiser

        denoiser = AnalyticDenoiser(self.given(DRAWS) if sampler == GIVEN else self.prior)
        draw = SAMPLERS[sampler](denoiser, steps)
        with torch.random.fork_rng(devices=[]):
            out = draw(self.y.repeat_interleave(DRAWS, dim=0), self.physics, seed=self.seed + 1)
        drawn: torch.Tensor = 2 * out.detach().float() - 1
        return drawn.reshape(self.n, DRAWS, *self.truth.shape[1:]).transpose(0, 1)


def ddpm(fidelity: str | None, denoiser: Any, steps: int) -> Any:
    """A posterior diffusion of deepinv, with one of its data fidelity terms or none."""
    from deepinv import sampling

    term = fidelity and getattr(sampling, fidelity)()
    solver = sampling.DDPMSolver(torch.linspace(1, 0, steps).double(), rng=torch.Generator())
    schedule = sampling.VariancePreservingDiffusion()
    return sampling.PosteriorDiffusion(term, denoiser, schedule, solver)


def dps(weight: float, denoiser: Any, steps: int) -> Any:
    """Chung et al. 2023; ``weight`` scales the gradient of ||y - A D(x)||."""
    from deepinv.sampling import DPS

    return DPS(denoiser, num_steps=steps, weight=weight, rng=torch.Generator())


def ddrm(denoiser: Any, steps: int) -> Any:
    """Kawar et al. 2022, down to a noise level just above 0."""
    from deepinv.sampling import DDRM

    return DDRM(denoiser, sigmas=np.linspace(1, 1e-3, steps))


def diffpir(denoiser: Any, steps: int) -> Any:
    """Zhu et al. 2023."""
    from deepinv.optim.data_fidelity import L2
    from deepinv.sampling import DiffPIR

    return DiffPIR(denoiser, L2(), max_iter=steps)


SAMPLERS: dict[str, Callable[[Any, int], Any]] = {
    GIVEN: partial(ddpm, None),
    "DPS": partial(dps, 1.0),
    "DPS, weight 100": partial(dps, 100.0),
    "PiGDM": partial(ddpm, "PiGDMDataFidelity"),
    "DDRM": ddrm,
    "DiffPIR": diffpir,
}


def scores(problem: Problem, drawn: torch.Tensor) -> Result:
    """Error of the mean, spread and coverage of draws (DRAWS, n, C, H, W), with pictures."""
    low, high = problem.interval
    wide = high - low > NARROW
    inside = ((drawn >= low) & (drawn <= high)).float().mean(dim=0)
    return {
        "error": float((drawn.mean(dim=0) - problem.exact.mean).square().mean().sqrt()),
        "spread": float(drawn.var(dim=0).mean().sqrt()),
        "exact_spread": float(problem.exact.variance.mean().sqrt()),
        "coverage": float(inside[wide].mean()) if wide.any() else None,
        "pictures": packed(drawn[0, :SHOWN]),
    }


def shown(problem: Problem) -> Result:
    """The first rows of the pictures: truth, measurement and exact mean."""
    y = 2 * problem.y[:SHOWN] - 1
    size = problem.truth.shape[2:]
    rows = problem.truth, torch.nn.functional.interpolate(y, size), problem.exact.mean
    return {name: packed(images[:SHOWN]) for name, images in zip(WHOLE, rows, strict=True)}


def run(context: Context) -> Page:
    """The page: one table per data set, prior and noise, and one picture per prior."""
    check_deepinv()
    page, steps = Page([NOTE]), context.steps(STEPS)
    for name, noises in NOISES.items():
        store = context.store(name)
        if store is None:
            page.lines += ["", f"{name}: no data here."]
            continue
        for title, prior in priors(name, store).items():
            blocks: dict[str, dict[str, Any]] = {}
            for noise in noises:
                results = {
                    task: _results(context, name, title, Problem(
                        prior, make(), noise, context.n, context.seed), task, steps)
                    for task, make in tasks(store.shape).items()
                }  # fmt: skip
                blocks |= {f"{task}, noise {noise:g}": cells for task, cells in results.items()}
                head = f"{name}, {store.n:,} images; prior: {title}; noise {noise:g}; "
                page.lines += ["", f"### {head}{context.n} measurements, {steps} steps", ""]
                page.lines += _table(results)
                page.rows += [
                    {"data": name, "images": store.n, "prior": title, "noise": noise, "task": task,
                     "sampler": sampler, "error": r["error"], "spread": r["spread"],
                     "exact_spread": r["exact_spread"], "coverage": r["coverage"]}
                    for task, cells in results.items()
                    for sampler, r in cells.items() if sampler not in WHOLE
                ]  # fmt: skip
            page.pictures[f"posterior-samplers-{name}-{title.split()[1]}"] = _draw(blocks)
    return page


def _results(
    context: Context, name: str, title: str, problem: Problem, task: str, steps: int
) -> dict[str, Any]:
    key: Key = {
        "kind": "posterior-samplers", "data": problem.prior.store.manifest.images_checksum,
        "prior": title, "task": task, "noise": problem.noise, "n": problem.n, "draws": DRAWS,
        "seed": problem.seed, "steps": steps,
    }  # fmt: skip
    cells: dict[str, Any] = dict(context.cells.get({**key, "sampler": ""}, lambda: shown(problem)))
    for sampler in (EXACT, *SAMPLERS):

        def compute(sampler: str = sampler) -> Result:
            context.say(f"{name}, {title}, {task}, noise {problem.noise:g}: {sampler} ...")
            return scores(problem, problem.drawn(sampler, steps))

        cells[sampler] = context.cells.get({**key, "sampler": sampler}, compute)
    return cells


def _table(results: dict[str, dict[str, Any]]) -> list[str]:
    header = ["sampler"]
    exact, rows = ["exact posterior"], [[sampler] for sampler in (EXACT, *SAMPLERS)]
    for task, cells in results.items():
        header += [f"{task}: error", "spread", "coverage"]
        exact += ["", number(cells[EXACT]["exact_spread"], ".3f"), ""]
        for row in rows:
            cell = cells[row[0]]
            row += [number(cell[key], ".3f") for key in ("error", "spread")]
            row.append(number(cell["coverage"], ".0%"))
    return markdown_table(header, [exact, *rows])


def _draw(blocks: dict[str, dict[str, Any]]) -> Figure:
    rows = [*WHOLE, EXACT, *SAMPLERS]
    figure = Figure(figsize=(1.6 + 1.5 * len(blocks), 0.8 * len(rows) + 0.6), layout="constrained")
    grid = figure.subplots(1, len(blocks), squeeze=False)[0]
    for axes, (title, cells) in zip(grid, blocks.items(), strict=True):
        texts = [cells[row] if row in WHOLE else cells[row]["pictures"] for row in rows]
        images = torch.cat([unpacked(text) for text in texts])
        draw_rows(axes, images, rows if axes is grid[0] else [""] * len(rows))
        axes.set_title(title.replace(", ", "\n"), fontsize=8)
    return figure
