"""``python -m reliability.within STORE``: how often ``AdaptiveSchedule`` is within its ``tol``.

At each of the ten levels of a DDIM run, the RMSE to the full scan of points that sampling passes
and of noised images that are not in the store. Neither are queries that supports were measured on.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from golddiff import PCA, AdaptiveSchedule, GoldDiff, ImageStore, Optimal, PaperSchedule
from golddiff.denoiser import Denoiser
from golddiff.noise import ddim_sigmas
from golddiff.system.parallel import use_threads
from golddiff_lab.queries import held_out, trajectory
from golddiff_lab.truth import full_scans

STEPS = 10
NO_LIMIT = 1e9  # seconds
METHODS = {"optimal": Optimal, "pca": PCA}


@dataclass(frozen=True)
class Kept:
    """One tolerance at one level.

    Attributes:
        tol: asked for.
        sigma: noise level.
        errors: each query's RMSE to the full scan.
        plan: how images were chosen.
    """

    tol: float
    sigma: float
    errors: list[float]
    plan: str

    def __str__(self) -> str:
        within = sum(error <= self.tol for error in self.errors)
        return (
            f"| {self.tol} | {self.sigma:.3g} | {within} of {len(self.errors)} | "
            f"{max(self.errors):.4f} | {self.plan} |"
        )


def queries(
    store: ImageStore, denoiser: Denoiser, others: torch.Tensor | None, count: int, seed: int
) -> list[torch.Tensor]:
    """A batch (count, *shape) a level: half points of a run, half images not in the store, noised.

    Args:
        store: the set.
        denoiser: whose run it is.
        others: (n, *shape) images that are not in the set; None: changed copies of some of it.
        count: queries a level.
        seed: of all that is random.
    """
    passed = trajectory(denoiser, ddim_sigmas(STEPS), count - count // 2, seed)
    generator = torch.Generator().manual_seed(seed)
    if others is None:
        clean = held_out(store, count // 2, seed)
    else:
        clean = others[torch.randperm(len(others), generator=generator)[: count // 2]]
    noise = torch.randn(clean.shape, generator=generator)
    return [
        torch.cat([run, clean + sigma * noise])
        for sigma, run in zip(ddim_sigmas(STEPS), passed, strict=True)
    ]


def main() -> None:
    """Arguments: the store, the method, tolerances, how many queries, and where figures go."""
    parser = argparse.ArgumentParser(prog="python -m reliability.within", description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--whole", type=Path, help="a store that begins with STORE's images")
    parser.add_argument("--method", choices=METHODS, default="optimal")
    parser.add_argument("--threshold", type=float, default=0.02, help="of PCA's masks")
    parser.add_argument("--tol", type=float, action="append", help="default 0.05, 0.02 and 0.01")
    parser.add_argument("--queries", type=int, default=40, help="at each level")
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("within.json"))
    asked = parser.parse_args()
    use_threads(asked.threads)
    store = ImageStore.open(asked.store)
    base = PCA(store, asked.threshold) if asked.method == "pca" else Optimal(store)
    others = None
    if asked.whole is not None:
        others = ImageStore.open(asked.whole).images(slice(store.n, None))
    made = queries(store, GoldDiff(base, PaperSchedule()), others, asked.queries, asked.seed)
    levels = list(zip(ddim_sigmas(STEPS), made, strict=True))
    exact = full_scans(base, levels, NO_LIMIT)
    kept: list[Kept] = []
    print("| tol | sigma | within | largest error | support |\n|---|---|---|---|---|", flush=True)
    for tol in asked.tol or [0.05, 0.02, 0.01]:
        golden = GoldDiff(base, AdaptiveSchedule(tol))
        for (sigma, x), scan in zip(levels, exact, strict=True):
            off = (golden(x, sigma) - scan).reshape(len(x), -1).double().square().mean(1).sqrt()
            kept.append(Kept(tol, sigma, off.tolist(), golden.describe_step(sigma)))
            print(kept[-1], flush=True)
            asked.out.write_text(json.dumps([asdict(k) for k in kept], indent=1) + "\n", "utf-8")
        errors = np.array([k.errors for k in kept if k.tol == tol])
        print(f"tol {tol}: {np.count_nonzero(errors <= tol)} of {errors.size} within", flush=True)


if __name__ == "__main__":
    main()
