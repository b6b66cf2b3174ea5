"""Write the outputs of every method with the code as it is: ``python -m tests.frozen.make``.

Later code must reproduce these files. Write them again only if an output is meant to change, in a
separate commit that says so.
"""

import os
import tempfile
from pathlib import Path

import numpy as np

import golddiff
from tests.frozen.cases import CASES, ROWS, Problem, cifar10, digits
from tests.frozen.names import levels

FOLDER = Path(__file__).parent
TRIED = 300  # seeds tried for each query
REPOSITORY = FOLDER.parents[1]


def pooled(images, side):
    """Images (n, C, H, W) averaged over squares: (n, C * side * side)."""
    n, c, h, w = images.shape
    return images.reshape(n, c, side, h // side, side, w // side).mean((3, 5)).reshape(n, -1)


def gaps(images, rows, x, k):
    """The k nearest rows, ascending, and the relative gap between distances k and k + 1."""
    distances = np.square(images[rows] - x).sum(axis=1)
    order = np.argsort(distances, kind="stable")
    if k >= len(rows):
        return rows, np.inf
    edge, following = distances[order[k - 1]], distances[order[k]]
    return np.sort(rows[order[:k]]), (following - edge) / following


def smallest_gap(x, proxies, sigma, chosen):
    """The smallest relative gap at the edge of any golden subset of a query, in float64.

    Args:
        x: (C, H, W).
        proxies: (pooled images, side) at full resolution, at a quarter of it, and at side 16.
        sigma: noise level.
        chosen: (rows, rows drawn by the released code) of all images and of one class.
    """
    smallest = np.inf
    (full, side), quarter, sixteenth = proxies
    queries = [pooled(x[None], s)[0] for s in (side, quarter[1], sixteenth[1])]
    for rows, drawn in chosen:
        for variant, (proxy, _), query, pool in (
            ("text", quarter, queries[1], rows),
            ("released", sixteenth, queries[2], drawn),
        ):
            schedule = golddiff.PaperSchedule(variant=variant)
            m, k = schedule.budgets(sigma, len(rows))
            kept = m if variant == "text" else max(k, int(len(rows) / 10 + 1e-9))
            nearest, gap = gaps(proxy, pool, query, kept)
            _, last = gaps(full, nearest, queries[0], k)
            smallest = min(smallest, gap, last)
    return smallest


def drawn_rows(rows, sigma, label):
    """The rows that the released code draws first, for seed 0."""
    m, _ = golddiff.PaperSchedule(variant="released").budgets(sigma, len(rows))
    bits = int(np.float64(sigma).view(np.uint64))
    stream = np.random.default_rng([0, bits, 0 if label is None else label + 1])
    return np.sort(stream.permutation(rows)[:m])


def stable_seeds(problem):
    """Seeds (10, 3) whose golden subsets do not depend on rounding, and their smallest gaps."""
    store = problem.store
    images = store.images(np.arange(store.n)).double().numpy()
    side = images.shape[-1]
    proxies = [(pooled(images, s), s) for s in (side, side // 4, min(16, side))]
    seeds, widest = np.zeros((10, 3), int), np.zeros((10, 3))
    for level, sigma in enumerate(problem.levels.tolist()):
        for i in range(3):
            label = int(problem.labels[i])
            of_class = np.flatnonzero(np.asarray(store.labels) == label)
            chosen = [
                (rows, drawn_rows(rows, sigma, drawn_label))
                for rows, drawn_label in ((np.arange(store.n), None), (of_class, label))
            ]
            for seed in range(TRIED):
                x = problem.query(level, i, seed)[0].double().numpy()
                gap = smallest_gap(x, proxies, sigma, chosen)
                if gap > widest[level, i]:
                    seeds[level, i], widest[level, i] = seed, gap
                if gap > 2e-6:
                    break
    return seeds, widest


def freeze(name, source, labels, file):
    """Write the outputs of every case of one data set."""
    with tempfile.TemporaryDirectory() as folder:
        store = golddiff.ImageStore.build(source, Path(folder) / "store", labels)
        sigmas = np.array(levels())
        seeds, widest = stable_seeds(Problem(name, store, sigmas, np.zeros((10, 3), int)))
        print(f"{name}: the narrowest edge is {widest.min():.1e} of a distance")
        problem = Problem(name, store, sigmas, seeds)
        out = {"levels": sigmas, "seeds": seeds.astype(np.int32), "labels": problem.labels.numpy()}
        out["images"] = store.images(list(ROWS)).numpy().reshape(len(ROWS), -1).mean(axis=1)
        for case, run in CASES[name].items():
            for part, values in run(problem).items():
                is_integer = values.dtype.kind in "iu"
                dtype = np.int32 if is_integer else np.float64 if part in EXACT else np.float32
                out[f"{case}/{part}"] = values.astype(dtype)
            print(f"  {case}", flush=True)
    np.savez_compressed(file, **out)


EXACT = ("bound", "sigmas")  # parts stored in float64

if __name__ == "__main__":
    data = Path(os.environ.get("GOLDDIFF_DATA") or REPOSITORY.parent / "shared" / "data")
    freeze("digits", *digits(), FOLDER / "digits.npz")
    freeze("cifar10", *cifar10(data), FOLDER / "cifar10.npz")
