"""What is frozen: each method's outputs on digits and on 2,000 images of CIFAR-10."""

import io
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow.parquet
import torch
from PIL import Image

import golddiff
from golddiff.estimators.registry import MethodSettings, create
from golddiff.support import Support, TiledSupport

CIFAR_IMAGES = 2000
# Rows of the queries' clean images; the third image is mirrored.
ROWS = (3, 710, 1500)
COLUMNS, PROJECTIONS = 48, 8
TOLERANCE = 0.05  # tolerance of the adaptive methods
TOP = 8  # sources kept for each location
ATTRIBUTED = (1, 4, 6, 9)  # indices of noise levels with attributions
ADAPTED = (6,)  # indices of noise levels for adaptive PCA on CIFAR-10
LOCATIONS = 12


class RandomTiles:
    """A schedule with a separate random support of weighted images for each tile."""

    def __init__(self, side, tiles, images):
        self.side, self.tiles, self.images = side, tiles, images

    def budgets(self, sigma, n):
        return n, self.images

    def supports(self, store, x, sigma, label, seed):
        rows, generator = store.everything(label).rows, np.random.default_rng(seed)
        drawn = [
            np.sort(generator.choice(rows, self.images, replace=False)) for _ in range(self.tiles)
        ]
        supports = [Support(chosen, generator.uniform(0, 1, self.images)) for chosen in drawn]
        return [TiledSupport(self.side, supports)] * len(x)


def digits():
    """The built-in digits, as a source and labels."""
    return "digits", None


def cifar10(folder):
    """The first 2,000 images of CIFAR-10 and their classes, from its parquet file."""
    (file,) = sorted((folder / "cifar10").glob("*.parquet"))
    rows = pyarrow.parquet.read_table(file).slice(0, CIFAR_IMAGES).to_pylist()
    images = [np.asarray(Image.open(io.BytesIO(row["img"]["bytes"]))) for row in rows]
    return np.stack(images).transpose(0, 3, 1, 2).copy(), np.array([row["label"] for row in rows])


@dataclass(frozen=True)
class Problem:
    """A store with three queries at each of ten noise levels.

    Attributes:
        name: "digits" or "cifar10".
        store: the training images.
        levels: (10,) DDIM's noise levels, descending. Frozen, since their last digits vary
            with the kernels that compute them, and seed the released code's draws.
        seeds: (10, 3) seeds of the queries' noise.
    """

    name: str
    store: golddiff.ImageStore
    levels: np.ndarray
    seeds: np.ndarray

    @cached_property
    def labels(self):
        """The classes (3,) of the queries' clean images."""
        return torch.from_numpy(np.asarray(self.store.labels)[list(ROWS)].astype(np.int64))

    def query(self, level, i, seed=None):
        """Query ``i`` (1, *shape) at the noise level of index ``level``."""
        seed = int(self.seeds[level, i]) if seed is None else seed
        noise = np.random.default_rng([level, i, seed]).standard_normal(self.store.shape)
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

    def outputs(self, denoiser, labelled, places=range(10), queries=range(3)):
        """A denoiser's outputs (levels, queries, values of :meth:`sketch`)."""
        out = []
        for level in places:
            x = torch.cat([self.query(level, i) for i in queries])
            classes = self.labels[list(queries)] if labelled else None
            out.append(self.sketch(denoiser(x, float(self.levels[level]), classes)))
        return np.stack(out)


def _method(name, seed=0, labelled=(False, True), places=range(10), queries=range(3), **settings):
    def run(problem):
        denoiser = create(name, problem.store, MethodSettings(**settings), seed)
        return {
            "class" if by_class else "all": problem.outputs(denoiser, by_class, places, queries)
            for by_class in labelled
        }

    return run


def _built(build, labelled=(False, True), places=range(10)):
    def run(problem):
        denoiser = build(problem.store)
        return {
            "class" if by_class else "all": problem.outputs(denoiser, by_class, places)
            for by_class in labelled
        }

    return run


def _tiles(problem):
    small = problem.name == "digits"
    base = golddiff.PCA(problem.store, 0.02 if small else 0.03)
    schedule = RandomTiles(4, 4, 60) if small else RandomTiles(8, 16, 60)
    return _built(lambda store: golddiff.GoldDiff(base, schedule))(problem)


def _certified(schedule):
    def run(problem):
        denoiser = golddiff.GoldDiff(golddiff.Optimal(problem.store), schedule())
        out = {"mean": [], "bound": []}
        for level, sigma in enumerate(problem.levels.tolist()):
            x = torch.cat([problem.query(level, i) for i in range(3)])
            mean, bound = denoiser.certified(x, sigma)
            out["mean"].append(problem.sketch(mean))
            out["bound"].append(bound.numpy())
        return {name: np.stack(values) for name, values in out.items()}

    return run


def _attribution(build, places=ATTRIBUTED):
    """Main sources and weights of the whole image and of some locations and pixels."""

    def run(problem):
        denoiser = build(problem.store)
        out = {}
        for level in places:
            sigma = float(problem.levels[level])
            (result,) = denoiser.attribute(problem.query(level, 1), sigma, top=TOP)
            locations = np.linspace(0, len(result.weights) - 1, LOCATIONS).astype(int)
            rows, weights = result.top_images(TOP)
            out |= {
                f"{level}.sources": result.sources[locations],
                f"{level}.weights": result.weights[locations],
                f"{level}.mass": result.mass[locations],
                f"{level}.effective": result.effective[locations],
                f"{level}.image_sources": rows[None],
                f"{level}.image_weights": weights[None],
                f"{level}.main_weights": result.main_weights.ravel()[:: result.main.size // 16],
                f"{level}.output": problem.sketch(result.reconstruct()[None]),
            }
            if result.positions is not None:
                out[f"{level}.positions"] = result.positions[locations]
        return out

    return run


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


def _paper(base, variant="text"):
    schedule = golddiff.PaperSchedule(variant=variant)
    return lambda store: golddiff.GoldDiff(base(store), schedule)


def _pca(store):
    return golddiff.PCA(store, 0.03)


def _kamb(store):
    return golddiff.Kamb(store, 3, "zeros")


SAMPLED = {
    "sample wiener ddim": _sampled(golddiff.Wiener, "ddim"),
    "sample wiener heun": _sampled(golddiff.Wiener, "heun"),
    "sample optimal ddim": _sampled(golddiff.Optimal, "ddim"),
}

# Cases of both data sets.
SHARED = {
    "optimal": _method("optimal"),
    "wiener": _method("wiener"),
    "pca": _method("pca"),
    "pca wss": _method("pca", weighting="wss"),
    "golddiff-optimal": _method("golddiff-optimal"),
    "golddiff-optimal text": _method("golddiff-optimal", variant="text"),
    "golddiff-pca": _method("golddiff-pca"),
    "golddiff-pca text": _method("golddiff-pca", variant="text"),
    "golddiff-pca wss": _method("golddiff-pca", weighting="wss"),
    "kamb none": _method("kamb", patch_size=5, boundary="none"),
    "one gaussian": _built(lambda store: golddiff.GaussianMixture(store, 1, shrinkage=0)),
    "tiles": _tiles,
    "certified text": _certified(golddiff.PaperSchedule),
    "certified released": _certified(lambda: golddiff.PaperSchedule(variant="released")),
    "attribution optimal": _attribution(golddiff.Optimal),
    "attribution pca": _attribution(_pca),
    "attribution golddiff-pca": _attribution(_paper(_pca)),
    "attribution kamb none": _attribution(lambda store: golddiff.Kamb(store, 5, "none")),
}

CASES = {
    "digits": SHARED
    | SAMPLED
    | {
        "network-like": _method("network-like"),
        "pca 0.005": _method("pca", mask_threshold=0.005),
        "golddiff-optimal seed": _method("golddiff-optimal", seed=5),
        "golddiff-optimal sizes": _method("golddiff-optimal", variant="text", k_max=90, m_max=0.5),
        "golddiff-kamb": _method("golddiff-kamb", patch_size=3),
        "golddiff-kamb text": _method("golddiff-kamb", patch_size=3, variant="text"),
        "kamb zeros": _method("kamb", patch_size=3),
        "kamb circular": _method("kamb", patch_size=3, boundary="circular"),
        "kamb measured": _method("kamb"),
        "mixture": _built(golddiff.GaussianMixture),
        "patches": _built(golddiff.PatchMixture),
        "attribution kamb zeros": _attribution(_kamb),
    },
    "cifar10": SHARED
    | {
        "golddiff-kamb": _method("golddiff-kamb", patch_size=5, labelled=(True,), queries=(0, 2)),
        "kamb zeros": _method("kamb", patch_size=5, labelled=(True,), queries=(1,)),
        "kamb circular": _method(
            "kamb", patch_size=5, boundary="circular", labelled=(True,), queries=(1,), places=(2, 6)
        ),
    },
}

# Adaptive methods with the full scan that they must match within their tolerance.
ADAPTIVE = {
    "digits": {
        "adaptive-optimal": ("optimal", _method("adaptive-optimal", tol=TOLERANCE)),
        "adaptive-pca": ("pca", _method("adaptive-pca", tol=TOLERANCE)),
        "adaptive-kamb": (
            "kamb zeros",
            _method("adaptive-kamb", patch_size=3, tol=TOLERANCE, labelled=(False,)),
        ),
    },
    "cifar10": {
        "adaptive-optimal": ("optimal", _method("adaptive-optimal", tol=TOLERANCE)),
        "adaptive-pca": (
            "pca",
            _method("adaptive-pca", tol=TOLERANCE, labelled=(False,), places=ADAPTED),
        ),
    },
}
