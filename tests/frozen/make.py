"""Write the outputs of every method with the code as it is: ``python -m tests.frozen.make``.

They are what later code is held to. Made anew only where an output is meant to change, in a commit
of its own that says so.
"""

import os
import tempfile
from pathlib import Path

import numpy as np

import golddiff
from tests.frozen.cases import CASES, ROWS, Problem, cifar10, digits
from tests.frozen.names import levels

FOLDER = Path(__file__).parent
TRIED = 300  # seeds of each query
REPOSITORY = FOLDER.parents[1]


def pooled(images, side):
    """Images (n, C, H, W) averaged over squares, (n, C * side * side)."""
    n, c, h, w = images.shape
    return images.reshape(n, c, side, h // side, side, w // side).mean((3, 5)).reshape(n, -1)


def gaps(images, rows, x, k):
    """The k nearest of rows (ascending), and how far past the last the next is, as a share."""
    distances = np.square(images[rows] - x).sum(axis=1)
    order = np.argsort(distances, kind="stable")
    if k >= len(rows):
        return rows, np.inf
    edge, after = distances[order[k - 1]], distances[order[k]]
    return np.sort(rows[order[:k]]), (after - edge) / after


def narrowest(x, proxies, sigma, chosen):
    """The smallest gap at an edge of the paper's subsets of a query, in float64.

    Args:
        x: (C, H, W).
        proxies: of all images and their side: of all pixels first, of a quarter, of side 16.
        sigma: noise level.
        chosen: for each class, or all: rows, those drawn by the released code.
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
            near, gap = gaps(proxy, pool, query, kept)
            _, last = gaps(full, near, queries[0], k)
            smallest = min(smallest, gap, last)
    return smallest


def drawn_rows(rows, sigma, label):
    """What the released code draws first, for seed 0."""
    m, _ = golddiff.PaperSchedule(variant="released").budgets(sigma, len(rows))
    bits = int(np.float64(sigma).view(np.uint64))
    stream = np.random.default_rng([0, bits, 0 if label is None else label + 1])
    return np.sort(stream.permutation(rows)[:m])


def clear_seeds(problem):
    """Seeds (10, 3) of noise that leaves no golden subset's edge to rounding, and their gaps."""
    store = problem.store
    images = store.images(np.arange(store.n)).double().numpy()
    side = images.shape[-1]
    proxies = [(pooled(images, s), s) for s in (side, side // 4, min(16, side))]
    seeds, found = np.zeros((10, 3), int), np.zeros((10, 3))
    for level, sigma in enumerate(problem.levels.tolist()):
        for i in range(3):
            label = int(problem.labels[i])
            of_class = np.flatnonzero(np.asarray(store.labels) == label)
            chosen = [
                (rows, drawn_rows(rows, sigma, which))
                for rows, which in ((np.arange(store.n), None), (of_class, label))
            ]
            for seed in range(TRIED):
                x = problem.query(level, i, seed)[0].double().numpy()
                gap = narrowest(x, proxies, sigma, chosen)
                if gap > found[level, i]:
                    seeds[level, i], found[level, i] = seed, gap
                if gap > 2e-6:
                    break
    return seeds, found


def freeze(name, source, labels, file):
    """Write one data set's outputs."""
    with tempfile.TemporaryDirectory() as folder:
        store = golddiff.ImageStore.build(source, Path(folder) / "store", labels)
        sigmas = np.array(levels())
        seeds, found = clear_seeds(Problem(name, store, sigmas, np.zeros((10, 3), int)))
        print(f"{name}: the narrowest edge is {found.min():.1e} of a distance")
        problem = Problem(name, store, sigmas, seeds)
        out = {"levels": sigmas, "seeds": seeds.astype(np.int32), "labels": problem.labels.numpy()}
        out["images"] = store.images(list(ROWS)).numpy().reshape(len(ROWS), -1).mean(axis=1)
        for case, run in CASES[name].items():
            for part, values in run(problem).items():
                whole = values.dtype.kind in "iu"
                kept = np.int32 if whole else np.float64 if part in EXACT else np.float32
                out[f"{case}/{part}"] = values.astype(kept)
            print(f"  {case}", flush=True)
    np.savez_compressed(file, **out)


EXACT = ("bound", "sigmas")

if __name__ == "__main__":
    data = Path(os.environ.get("GOLDDIFF_DATA") or REPOSITORY.parent / "shared" / "data")
    freeze("digits", *digits(), FOLDER / "digits.npz")
    freeze("cifar10", *cifar10(data), FOLDER / "cifar10.npz")
