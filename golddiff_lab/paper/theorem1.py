"""Theorem 1 on real data: the error of a posterior mean over the top k images, and its bound.

With logits sorted l_(1) >= ... >= l_(N), weights w_i = exp(l_i) / Z, Z = sum_j exp(l_j), and S the
first k, the two means differ by

    f_S - f_D = (Z_tail / Z) (f_S - f_tail),    Z_tail = sum over i outside S of exp(l_i),

where f_tail is the weighted mean of the omitted images. Both means lie in the ball of radius
R = max_i ||x_i||, so ||f_S - f_D|| <= 2 R Z_tail / Z (:func:`tail_bound`). Each of the N - k terms
of Z_tail is at most exp(l_(k+1)) and Z is at least exp(l_(1)), which gives the paper's looser
bound, 2 R (N - k) exp(-(l_(1) - l_(k+1))) (:func:`truncation_bound`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from golddiff.estimators.optimal import Optimal
from golddiff.figures.curves import Panel, Series
from golddiff.kernels.rows import squared_distances
from golddiff.noise import ddim_sigmas, precision
from golddiff.posterior import Posterior
from golddiff.samplers import initial_noise
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store
from golddiff.store.images import ImageStore
from golddiff.support import Support
from golddiff.system.markdown import markdown_table
from golddiff.system.numbers import F32, F64
from golddiff_lab.cells import Key, Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DATA_SETS
from golddiff_lab.paper.page import Page

QUERIES = 16
FRACTIONS = (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.3, 0.6)
VISIBLE = 1e-9  # smaller errors are not plotted
TOLD = 0.05  # k / N shown in the tables: the paper's k_min
TINY = float(np.finfo(np.float64).tiny)

NOTE = (
    "Queries are training images with noise. For each noise level and subset size k: the distance "
    "between the exact posterior mean and the mean over the k heaviest images, 2 R Z_tail / Z, and "
    "the theorem's 2 R (N - k) exp(-gap), in the units of ||x||, x in [-1, 1]. 2 R is a trivial "
    "bound, so the theorem is informative only where its bound is smaller."
)


def run(context: Context) -> Page:
    """The page, with the built-in digits and every available data set."""
    page = Page([NOTE])
    digits = cached_store("digits", SourceOptions(), say=context.say)
    stores = [("digits", "digits (8 x 8)", digits)]
    stores += [
        (name, data.title, store)
        for name, data in DATA_SETS.items()
        if (store := context.store(name)) is not None
    ]
    for name, title, store in stores:
        result = _measured(context, name, title, store)
        page.lines += ["", f"### {title}", "", *_tables(result)]
        page.rows.append({"data": name, **result})
        page.panels += _panels(title, result)
    broken = sum(row["violations"] for row in page.rows)
    checked = sum(row["checked"] for row in page.rows)
    page.lines += ["", f"The bound was checked {checked:,} times and broken {broken:,} times."]
    return page


def errors(store: ImageStore, x: F32, sigma: float, ks: list[int]) -> F64:
    """(error, 2 R Z_tail / Z, Theorem 1) for each k and one query (D,), as (len(ks), 3).

    The images between successive ks are summed once; partial posteriors merge exactly.
    """
    distances = squared_distances(store.stored, store.rows_of(None), x[None])
    logits = distances[0] * -precision(sigma)
    order = np.argsort(-logits, kind="stable")
    ordered, optimal = logits[order], Optimal(store)
    edges = [0, *ks, store.n]
    parts = [
        optimal.store.posterior(optimal, x[None], sigma, Support(np.sort(order[a:b])))
        for a, b in pairwise(edges)
        if b > a
    ]
    out = []
    for i, k in enumerate(ks):
        head, tail = (_merged(part, store) for part in (parts[: i + 1], parts[i + 1 :]))
        error = 0.0
        if k < store.n:
            log_head, log_tail = _log_total(head), _log_total(tail)
            share = np.exp(log_tail - np.logaddexp(log_head, log_tail))
            error = float(share * np.linalg.norm(head.mean() - tail.mean()))
        out.append([error, *(f(ordered, k, store.radius) for f in (tail_bound, truncation_bound))])
    return np.array(out)


def truncation_bound(logits: F64, k: int, radius: float) -> float:
    """The paper's Theorem 1: 2 R (N - k) exp(-Delta_k), Delta_k = l_(1) - l_(k+1).

    Args:
        logits: (N,) log weights up to a constant, largest first.
        k: number of images kept, 1 to N.
        radius: R, the largest Euclidean norm of an image.

    Returns:
        A bound on ||f_S - f_D||_2 in the units of ``radius``; 0 for k = N.
    """
    n = len(logits)
    return 0.0 if k == n else float(2 * radius * (n - k) * np.exp(logits[k] - logits[0]))


def tail_bound(logits: F64, k: int, radius: float) -> float:
    """The tighter bound 2 R Z_tail / Z, which depends on every logit.

    Arguments and result are those of :func:`truncation_bound`.
    """
    weights = np.exp(logits - logits[0])
    return float(2 * radius * weights[k:].sum() / weights.sum())


def _merged(parts: list[Posterior], store: ImageStore) -> Posterior:
    total = Posterior.empty(1, 1, store.d)
    for part in parts:
        total = total.merge(part)
    return total


def _log_total(posterior: Posterior) -> float:
    return float(posterior.log_max[0, 0] + np.log(posterior.total[0, 0]))


def _measured(context: Context, name: str, title: str, store: ImageStore) -> Result:
    sigmas = ddim_sigmas(10)
    queries = min(QUERIES, context.n)
    fractions = FRACTIONS[-4:-2] if context.quick else FRACTIONS
    ks = sorted({max(1, round(store.n * fraction)) for fraction in fractions})
    key: Key = {
        "kind": "theorem1", "data": name, "store": store.manifest.images_checksum,
        "queries": queries,
        "ks": ks, "sigmas": sigmas, "seed": context.seed,
    }  # fmt: skip

    def compute() -> Result:
        generator = torch.Generator().manual_seed(context.seed)
        images = store.images(torch.randint(store.n, (queries,), generator=generator))
        noise = initial_noise(queries, store.shape, context.seed)
        measured = np.empty((len(sigmas), queries, len(ks), 3))
        with context.watch(f"Theorem 1: {title}", len(sigmas) * queries) as on_step:
            for i, sigma in enumerate(sigmas):
                for j, x in enumerate((images + sigma * noise).flatten(1).numpy()):
                    measured[i, j] = errors(store, x, sigma, ks)
                    on_step(1)
        error, tail, bound = np.moveaxis(measured, -1, 0)
        return {
            "n": store.n, "radius": store.radius, "queries": queries, "ks": ks, "sigmas": sigmas,
            "checked": int(error.size),
            # Allow for rounding: images are float32, and numbers below TINY are denormal.
            "violations": int(np.sum(error > bound * (1 + 1e-5) + TINY)),
            "median": {
                name: np.median(values, axis=1).tolist()
                for name, values in (("error", error), ("tail", tail), ("bound", bound))
            },
        }  # fmt: skip

    return context.cells.get(key, compute)


def _tables(result: Result) -> list[str]:
    ks = result["ks"]
    j = int(np.abs(np.array(ks) - TOLD * result["n"]).argmin())
    median = result["median"]
    texts = [
        [f"{sigma:.3g}", *(f"{median[name][i][j]:.3g}" for name in ("error", "tail", "bound"))]
        for i, sigma in enumerate(result["sigmas"])
    ]
    head = (
        f"N = {result['n']:,}, R = {result['radius']:.4g}, {result['queries']} queries a level; "
        f"medians at k = {ks[j]:,}; broken {result['violations']} of {result['checked']:,} times."
    )
    return [head, "", *markdown_table(["σ", "error", "2 R Z_tail / Z", "Theorem 1"], texts)]


def _panels(title: str, result: Result) -> list[Panel]:
    """Plots at three noise levels: the highest, the lowest with a visible error, the middle."""
    visible = [i for i, errors in enumerate(result["median"]["error"]) if errors[0] > VISIBLE]
    chosen = sorted({visible[0], visible[len(visible) // 2], visible[-1]}) if visible else []
    titles: dict[str, str] = {"error": "error", "tail": "2 R Z_tail / Z", "bound": "Theorem 1"}

    def line(name: str, i: int) -> list[Any]:
        return [v if v > VISIBLE else None for v in result["median"][name][i]]

    panels = []
    for i in chosen:
        lines = [Series(text, result["ks"], line(name, i)) for name, text in titles.items()]
        trivial = [2 * result["radius"]] * 2
        lines.append(Series("2 R", [result["ks"][0], result["ks"][-1]], trivial, dashed=True))
        panels.append(
            Panel(f"{title}, σ = {result['sigmas'][i]:.2g}", "k", "distance", lines, "log", "log")
        )
    return panels
