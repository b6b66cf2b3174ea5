"""Write the outputs with the code as it is: ``python -m tests.frozen.make``.

Later code must reproduce them. Write them again only if an output is meant to change, in a
separate commit that says so.
"""

import tempfile
from pathlib import Path

import numpy as np

import golddiff
from tests.frozen.cases import CASES, Problem


def freeze(file):
    """Write the outputs of every case, at the queries of the earlier file.

    Its seeds were chosen from 300 for each query, so that the distances at the edge of every golden
    subset differ by 2e-6 or more: rounding decides no subset.
    """
    with np.load(file) as earlier:
        out = {"levels": earlier["levels"], "seeds": earlier["seeds"]}
    with tempfile.TemporaryDirectory() as folder:
        store = golddiff.ImageStore.build("digits", Path(folder) / "store")
        problem = Problem(store, out["levels"], out["seeds"])
        for case, run in CASES.items():
            for part, values in run(problem).items():
                dtype = np.float64 if part == "sigmas" else np.float32
                out[f"{case}/{part}"] = values.astype(dtype)
    np.savez_compressed(file, **out)


if __name__ == "__main__":
    freeze(Path(__file__).parent / "digits.npz")
