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

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]


def freeze(name, source, labels, file):
    """Write the outputs of every case of one data set, at the queries of the earlier file.

    Its seeds were chosen from 300 for each query, so that the distances at the edge of every golden
    subset differ by 2e-6 or more: rounding decides no subset.
    """
    with np.load(file) as earlier:
        levels, seeds = earlier["levels"], earlier["seeds"]
    with tempfile.TemporaryDirectory() as folder:
        store = golddiff.ImageStore.build(source, Path(folder) / "store", labels)
        problem = Problem(name, store, levels, seeds)
        out = {"levels": levels, "seeds": seeds, "labels": problem.labels.numpy()}
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
