"""One golddiff-pca step, ours against the authors' released code, in one run.

    python benchmarks/release_step.py STORE --peer PATH_TO_RELEASE [--batch 4] [--threshold 0.03]

Both sides get the same noisy training images, the same noise levels (10-step DDIM), the same
golden-subset sizes k and the same number of threads; each runs in a process of its own, so that
its peak resident memory is its own. Every level is warmed up once and then timed ``--repeats``
times; the sides take turns, level by level, so that a busy machine slows both. Nothing of the
release is copied: it is imported from the checkout given by ``--peer``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import time
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from golddiff.denoisers.golddiff import GoldDiff
from golddiff.denoisers.pca import PCA
from golddiff.noise import alpha_of_sigma, ddim_scheduler, ddim_sigmas
from golddiff.schedules import PaperSchedule
from golddiff.store import ImageStore

Step = Callable[[torch.Tensor, float], torch.Tensor]


def our_step(store: ImageStore, options: argparse.Namespace) -> Step:
    """GoldDiff(PCA) with the schedule asked for."""
    return GoldDiff(PCA(store, options.threshold), PaperSchedule(variant=options.variant))


def release_step(store: ImageStore, options: argparse.Namespace) -> Step:
    """The release's ``OursDenoiser``, set as its configuration files set it."""
    _import_stubs()
    sys.path.insert(0, str(options.peer))
    from methods.ours import OursDenoiser

    class Bundle:
        name = "benchmark"
        resolution = store.shape[1]
        in_channels = store.shape[0]
        dataloader = store.images().split(256)

    n = store.n
    params = {
        "mask_threshold": options.threshold,
        "k_min": n // 20,
        "k_max": n // 10,
        "low_res_dim": 16,
    }
    model = OursDenoiser(Bundle, "cpu", 10, params=params)
    factor = store.factor()
    vectors = torch.from_numpy(factor.eigenvectors).float()
    eigenvalues = torch.from_numpy(factor.eigenvalues).float()
    mean = torch.from_numpy(factor.mean).float()
    # The same covariance as ours: its factoring is not part of a step.
    model._load_or_compute_wiener_svd = lambda *a, **k: (vectors, eigenvalues, vectors.T, mean)
    model.train(Bundle)
    del Bundle.dataloader
    timesteps = dict(zip(ddim_sigmas(10), ddim_scheduler(10, clip=True).timesteps, strict=True))

    def step(x: torch.Tensor, sigma: float) -> torch.Tensor:
        result: torch.Tensor = model.denoise(x * alpha_of_sigma(sigma) ** 0.5, timesteps[sigma])
        return result

    return step


def _import_stubs() -> None:
    """Stand-ins for modules that the release imports but that a step does not use."""
    for name, names in {
        "data_src": ["DatasetBundle"],
        "methods.baseline_unet": [],
        "methods.baseline_edm_unconditional": [],
        "methods.baseline_edm_conditional": [],
    }.items():
        module = types.ModuleType(name)
        for attribute in names:
            setattr(module, attribute, object)
        sys.modules[name] = module


SIDES = {"golddiff": our_step, "release": release_step}


def serve(side: str, options: argparse.Namespace, pipe: Connection) -> None:
    """Time the levels that the parent asks for; report peak memory at the end."""
    torch.set_num_threads(options.threads)
    store = ImageStore.open(options.store)
    step = SIDES[side](store, options)
    generator = torch.Generator().manual_seed(0)
    clean = store.images(torch.randint(store.n, (options.batch,), generator=generator))
    noise = torch.randn(clean.shape, generator=generator)
    pipe.send("ready")
    while (sigma := pipe.recv()) is not None:
        x = clean + sigma * noise
        start = time.perf_counter()
        step(x, sigma)
        pipe.send(time.perf_counter() - start)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    """Run both sides and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument(
        "--peer", type=Path, help="a checkout of the release; without it, ours alone"
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threshold", type=float, default=0.03)
    parser.add_argument("--variant", default="released", choices=["text", "released"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    sides: dict[str, tuple[Connection, Any]] = {}
    for side in SIDES if options.peer else ["golddiff"]:
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(side, options, there))
        process.start()
        here.recv()
        sides[side] = (here, process)

    def timed(side: str, sigma: float) -> float:
        sides[side][0].send(sigma)
        seconds: float = sides[side][0].recv()
        return seconds / options.batch

    rows = []
    print(f"seconds per image and step, batch {options.batch}, {options.threads} threads")
    for sigma in ddim_sigmas(10):
        for side in sides:
            timed(side, sigma)
        times = {
            side: statistics.median(times)
            for side, times in zip(
                sides,
                zip(
                    *([timed(s, sigma) for s in sides] for _ in range(options.repeats)), strict=True
                ),
                strict=True,
            )
        }
        rows.append({"sigma": sigma, **times})
        print(
            f"sigma {sigma:7.3f}  " + "  ".join(f"{s} {t:.4f}" for s, t in times.items()),
            flush=True,
        )
    result: dict[str, Any] = {"batch": options.batch, "variant": options.variant, "levels": rows}
    for side, (pipe, process) in sides.items():
        pipe.send(None)
        mean = statistics.mean(row[side] for row in rows)
        result[side] = {"seconds": mean, "peak_resident_bytes": pipe.recv()}
        process.join()
        print(
            f"{side}: {mean:.4f} s, "
            f"peak resident {result[side]['peak_resident_bytes'] / 1e9:.2f} GB"
        )
    if options.peer:
        result["ratio"] = result["release"]["seconds"] / result["golddiff"]["seconds"]
        print(f"release / golddiff: {result['ratio']:.1f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
