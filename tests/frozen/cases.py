"""What is frozen: the outputs of methods that draw images or fit clusters, on digits.

Their seeds decide the outputs, so no equation does. Other outputs are compared with equations.
"""

from dataclasses import dataclass

import numpy as np
import torch

import golddiff
from golddiff.estimators.registry import MethodSettings, create

# Rows of the queries' clean images; the third image is mirrored.
ROWS = (3, 710, 1500)
COLUMNS, PROJECTIONS = 48, 8


@dataclass(frozen=True)
class Problem:
    """A store with three queries at each of ten noise levels.

    Attributes:
        store: the training images.
        levels: (10,) DDIM's noise levels, descending. Frozen, since their last digits vary
            with the kernels that compute them, and seed the released code's draws.
        seeds: (10, 3) seeds of the queries' noise.
    """

    store: golddiff.ImageStore
    levels: np.ndarray
    seeds: np.ndarray

    def query(self, level, i):
        """Query ``i`` (1, *shape) at the noise level of index ``level``."""
        generator = np.random.default_rng([level, i, int(self.seeds[level, i])])
        noise = generator.standard_normal(self.store.shape)
        image = self.store.images([ROWS[i]]).numpy()
        image = image[..., ::-1] if i == 2 else image
        return torch.from_numpy((image + self.levels[level] * noise).astype(np.float32))

    def sketch(self, x0):
        """Some values of images (b, *shape), and signed sums over all their values."""
        flat = x0.double().reshape(len(x0), -1).numpy()
        generator = np.random.default_rng(0)
        columns = generator.permutation(flat.shape[1])[:COLUMNS]
        signs = generator.choice([-1.0, 1.0], (flat.shape[1], PROJECTIONS))
        return np.hstack([flat[:, columns], flat @ signs / np.sqrt(flat.shape[1])])


def _outputs(build):
    def run(problem):
        denoiser, out = build(problem.store), {"all": [], "class": []}
        for level, sigma in enumerate(problem.levels.tolist()):
            x = torch.cat([problem.query(level, i) for i in range(3)])
            for part, labels in (("all", None), ("class", problem.store.labels[list(ROWS)])):
                out[part].append(problem.sketch(denoiser(x, sigma, labels)))
        return {part: np.stack(levels) for part, levels in out.items()}

    return run


def _method(name, seed=0, **settings):
    return _outputs(lambda store: create(name, store, MethodSettings(**settings), seed))


def _sampled(build, sampler):
    def run(problem):
        result = golddiff.sample(build(problem.store), 2, sampler=sampler, seed=7)
        return {
            "start": problem.sketch(result.x_init),
            "sigmas": np.array(result.sigmas),
            "images": problem.sketch(result.images),
            "trajectory": np.stack([problem.sketch(step) for step in result.trajectory]),
        }

    return run


CASES = {
    "golddiff-optimal": _method("golddiff-optimal"),
    "golddiff-optimal seed": _method("golddiff-optimal", seed=5),
    "golddiff-optimal sizes": _method("golddiff-optimal", variant="text", k_max=90, m_max=0.5),
    "golddiff-pca": _method("golddiff-pca"),
    "golddiff-pca wss": _method("golddiff-pca", weighting="wss"),
    "golddiff-kamb": _method("golddiff-kamb", patch_size=3),
    "kamb measured": _method("kamb"),
    "network-like": _method("network-like"),
    "mixture": _outputs(golddiff.GaussianMixture),
    "patches": _outputs(golddiff.PatchMixture),
    "sample wiener ddim": _sampled(golddiff.Wiener, "ddim"),
    "sample wiener heun": _sampled(golddiff.Wiener, "heun"),
    "sample optimal ddim": _sampled(golddiff.Optimal, "ddim"),
}
