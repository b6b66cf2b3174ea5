"""Fast code paths, each compared with a float64 reference of its equation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff import PCA, GaussianMixture, GoldDiff, Kamb, Optimal, PaperSchedule, Wiener
from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.masks import locality_mask
from golddiff.kernels.block_squares import block_of_each
from golddiff.store.device import DeviceStore
from golddiff.support import Support, TiledSupport
from golddiff.supports.certificate import certify
from golddiff.supports.index.blocks import MIDDLE
from golddiff.supports.index.distances import IndexedBlocks, TileBlocks
from golddiff.supports.index.image_index import Index
from golddiff.supports.index.search import NeighborSearch
from reliability import reference
from reliability.numbers.cases import Case
from reliability.reference import kamb

Array = reference.Array
# Names of paths with their errors, relative to the scale of the images.
Errors = Iterator[tuple[str, float]]
Path = Callable[[np.random.Generator, Case], Errors]

# Larger cases are skipped: the reference of Kamb loops over pixels and positions.
MAX_KAMB_TERMS = 80_000


def optimal(rng: np.random.Generator, case: Case) -> Errors:
    """Optimal with compiled and torch kernels, and its reconstruction by attribution."""
    expected = [reference.optimal(q, case.sigma, case.images) for q in case.queries]
    denoiser = Optimal(case.store)
    yield "optimal", relative_error(case, denoiser(case.x, case.sigma), expected)
    yield "optimal, torch kernels", relative_error(case, _on_device(case, denoiser), expected)
    yield "attribution of optimal", relative_error(case, _reconstructed(case, denoiser), expected)


def wiener(rng: np.random.Generator, case: Case) -> Errors:
    """Wiener."""
    expected = [reference.wiener(q, case.sigma, case.images) for q in case.queries]
    yield "wiener", relative_error(case, Wiener(case.store)(case.x, case.sigma), expected)


def pca(rng: np.random.Generator, case: Case) -> Errors:
    """PCA with both weightings, its masks, and its reconstruction by attribution."""
    threshold = float(rng.choice((0.0, 0.005, 0.02, 0.05, 0.3)))
    mask = locality_mask(case.store.factor(), case.sigma, threshold)
    yield "pca masks", _mask_error(case, mask, threshold)
    expected = [reference.pca(q, case.sigma, case.images, mask) for q in case.queries]
    denoiser = PCA(case.store, threshold)
    yield "pca ss", relative_error(case, denoiser(case.x, case.sigma), expected)
    yield "pca ss, torch kernels", relative_error(case, _on_device(case, denoiser), expected)
    yield "attribution of pca", relative_error(case, _reconstructed(case, denoiser), expected)
    size = int(rng.integers(1, case.store.n + 2))
    batches = PCA(case.store, threshold, weighting="wss", batch_size=size)
    wss = [reference.pca_wss(q, case.sigma, case.images, mask, size) for q in case.queries]
    yield "pca wss", relative_error(case, batches(case.x, case.sigma), wss)


def kamb_all(rng: np.random.Generator, case: Case) -> Errors:
    """Kamb with every boundary."""
    shape = case.store.shape
    if len(shape) != 3 or min(shape[1:]) < 3:
        return
    positions = shape[1] * shape[2]
    if positions * positions * case.store.n > MAX_KAMB_TERMS:
        return
    patch = int(rng.choice((1, 3, 5)))
    images = case.images.reshape(-1, *shape)
    for boundary in ("none", "circular", "zeros"):
        denoiser = Kamb(case.store, patch, boundary)
        got = denoiser(case.x[:1], case.sigma)
        expected = kamb(case.x[0].double().numpy(), case.sigma, images, patch, boundary)
        yield f"kamb {boundary}", relative_error(case, got, [expected.reshape(-1)])


def golden(rng: np.random.Generator, case: Case) -> Errors:
    """GoldDiff with both schedule variants and two estimators, on the supports it chooses."""
    for variant in ("text", "released"):
        schedule = PaperSchedule(0.2, 0.5, 0.4, 0.9, variant=variant)
        for name, base in (("optimal", Optimal(case.store)), ("pca", PCA(case.store, 0.02))):
            method = GoldDiff(base, schedule)
            mask = locality_mask(case.store.factor(), case.sigma, 0.02)
            supports = method.supports(case.x, case.sigma)
            expected = [
                _reference_over(q, case, support.rows, mask if name == "pca" else None)
                for q, support in zip(case.queries, supports, strict=True)
            ]
            got = method(case.x, case.sigma)
            yield f"golddiff {variant}, {name}", relative_error(case, got, expected)
            yield (
                f"golddiff {variant}, {name}, torch kernels",
                relative_error(case, _on_device(case, method), expected),
            )


def weighted(rng: np.random.Generator, case: Case) -> Errors:
    """Supports with importance weights, for whole images and for tiles, as adaptive ones have."""
    shape, n = case.store.shape, case.store.n
    base: Estimator = PCA(case.store, 0.02)
    mask = locality_mask(case.store.factor(), case.sigma, 0.02)
    flat = case.x.reshape(len(case.x), -1).numpy()
    support = _random_support(rng, n)
    got = base.denoise_over(flat, case.sigma, support)
    expected = [_weighted_reference(q, case, support, mask) for q in case.queries]
    yield "adaptive, one support", relative_error(case, torch.from_numpy(got), expected)
    if len(shape) != 3 or 4 not in base.tile_sides:
        return
    rows, columns = -(-shape[1] // 4), -(-shape[2] // 4)
    tiles = [_random_support(rng, n) for _ in range(rows * columns)]
    got = base.denoise_over(flat[:1], case.sigma, [TiledSupport(4, tiles)])
    image = np.empty(shape)
    for t, tile in enumerate(tiles):
        top, left = t // columns * 4, t % columns * 4
        part = _weighted_reference(case.queries[0], case, tile, mask).reshape(shape)
        image[:, top : top + 4, left : left + 4] = part[:, top : top + 4, left : left + 4]
    yield "adaptive, tiles", relative_error(case, torch.from_numpy(got), [image.reshape(-1)])


def full_covariances(
    mixture: GaussianMixture,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The (K, D) means and (K, D, D) covariances of a fitted mixture."""
    factor, fitted = mixture.store.factor(), mixture.fitted()
    u, r = factor.eigenvectors, fitted.means.shape[1]
    means, covariances = [], []
    for mean, variances, axes in zip(fitted.means, fitted.variances, fitted.axes, strict=True):
        inner = np.diag(factor.eigenvalues)
        inner[:r, :r] = axes.astype(np.float64) * variances @ axes.T.astype(np.float64)
        means.append(factor.mean + u[:, :r] @ mean)
        covariances.append(u @ inner @ u.T)
    return np.array(means), np.array(covariances)


def mixtures(rng: np.random.Generator, case: Case) -> Errors:
    """The mixture of Gaussians."""
    store = case.store
    parts = int(rng.integers(1, 4))
    mixture = GaussianMixture(store, components=parts, rank=300, shrinkage=20)
    weights, moments = np.exp(mixture.fitted().log_weights), full_covariances(mixture)
    expected = [
        reference.gaussian_mixture(q, case.sigma, weights, *moments).reshape(-1)
        for q in case.queries
    ]
    yield "mixture of Gaussians", relative_error(case, mixture(case.x, case.sigma), expected)


def certificate(rng: np.random.Generator, case: Case) -> Errors:
    """The excess of errors over their certified bounds, 0 if they hold."""
    index = Index.build(case.store)
    query = case.queries[0].astype(np.float32)
    # The bound applies to the images in float32.
    images = case.store.values(np.arange(case.store.n)).astype(np.float64)
    exact = reference.optimal(query.astype(np.float64), case.sigma, images)
    rows = rng.choice(case.store.n, int(rng.integers(1, case.store.n + 1)), replace=False)
    for most in (np.inf, 0.1):
        proved = certify(index, query, case.sigma, rows, most=most)
        error = float(np.linalg.norm(proved.mean - exact))
        rounding = 1e-12 * (1 + float(np.linalg.norm(exact)))
        yield "certificate, passed by", max(0.0, error - proved.bound - rounding) / case.scale


def compared(rng: np.random.Generator, case: Case) -> Errors:
    """Distances and nearest images of tiles by pixels and by an index."""
    store, index = case.store, Index.build(case.store)
    relevance = rng.random((int(rng.integers(1, 5)), store.d)).astype(np.float32)
    indexed = index.numbers.astype(np.float64) * index.blocks.unit - MIDDLE * index.blocks.unit
    of_pixel = block_of_each(store.shape)
    shares = [np.bincount(of_pixel, r) / np.bincount(of_pixel) for r in relevance]
    pixels = np.stack(shares)[:, of_pixel]
    of_number = np.repeat(np.arange(len(index.blocks.columns)), len(index.blocks.basis))
    blocks = relevance.astype(np.float64)[:, index.blocks.columns].mean(axis=2)[:, of_number]
    x = case.x.numpy().reshape(len(case.x), -1).astype(np.float32)
    k = int(rng.integers(1, store.n + 1))
    for name, metric, images, projected, weights in (
        ("pixels", TileBlocks.of(store.shape, relevance), case.images, x, pixels),
        ("index", IndexedBlocks.of(index, relevance), indexed, index.blocks.project(x), blocks),
    ):
        search = NeighborSearch(store, metric, x, store.rows_of(None), 0.5 / case.sigma**2)
        distances = metric.distances(store, x, store.rows_of(None))
        for q, query in enumerate(projected):
            exact = weights @ ((images - query.astype(np.float64)) ** 2).T
            largest = exact.max() + 1e-30
            yield f"compared by {name}", float(np.abs(distances[q] - exact).max() / largest)
            rings = search.rings(q, {t: (0, k) for t in range(len(relevance))})
            for t, rows in rings.items():
                excess = exact[t][rows].max() - np.sort(exact[t])[k - 1]
                missing = np.inf if len(rows) != k else 0.0
                yield f"nearest by {name}, further", missing + max(0.0, excess) / largest


# Each path with its probability of being run on a case; slow ones run less often.
PATHS: dict[str, tuple[Path, float]] = {
    "optimal": (optimal, 1.0),
    "wiener": (wiener, 1.0),
    "pca": (pca, 1.0),
    "kamb": (kamb_all, 0.25),
    "golden": (golden, 0.5),
    "weighted": (weighted, 1.0),
    "mixtures": (mixtures, 0.3),
    "certificate": (certificate, 0.1),
    "compared": (compared, 0.1),
}


def relative_error(case: Case, got: torch.Tensor, expected: list[Array]) -> float:
    """The largest difference relative to the scale of the images; infinite for NaN."""
    values = got.double().numpy().reshape(len(expected), -1)
    error = float(np.abs(values - np.stack([t.reshape(-1) for t in expected])).max()) / case.scale
    return error if np.isfinite(error) else np.inf


def _on_device(case: Case, denoiser: Denoiser) -> torch.Tensor:
    cpu, store = torch.device("cpu"), denoiser.store
    store.__dict__["_on_device"] = {cpu: DeviceStore(store, cpu)}  # torch code, as on a GPU
    return denoiser.to(cpu)(case.x, case.sigma)


def _reconstructed(case: Case, denoiser: Estimator) -> torch.Tensor:
    attributions = denoiser.attribute(case.x, case.sigma, top=3)
    return torch.stack([torch.as_tensor(a.reconstruct()) for a in attributions])


def _reference_over(q: Array, case: Case, rows: np.ndarray, mask: np.ndarray | None) -> Array:
    images = case.images[rows]
    if mask is None:
        return reference.optimal(q, case.sigma, images)
    return reference.pca(q, case.sigma, images, mask)


def _random_support(rng: np.random.Generator, n: int) -> Support:
    rows = np.sort(rng.choice(n, int(rng.integers(1, n + 1)), replace=False)).astype(np.int64)
    return Support(rows, rng.normal(0, 2, len(rows)))


def _weighted_reference(q: Array, case: Case, support: Support, mask: np.ndarray) -> Array:
    images = case.images[support.rows]
    logits = -((q - images) ** 2) @ mask / (2 * case.sigma**2)
    return reference.softmax_mean(logits + support.log_importance()[:, None], images)


def _mask_error(case: Case, mask: np.ndarray, threshold: float) -> float:
    """Share of entries that differ from the definition, except those that rounding decides."""
    images = case.images
    d = images.shape[1]
    single = len(images) < 2
    covariance = np.zeros((d, d)) if single else np.cov(images.T, bias=False).reshape(d, d)
    w = covariance @ np.linalg.inv(covariance + case.sigma**2 * np.eye(len(covariance)))
    diagonal = np.where(np.abs(np.diag(w)) < 1e-6, 1.0, np.diag(w))
    m = np.abs(w / diagonal[:, None])
    near = np.abs(m - threshold * m.max()) < 1e-6 * max(m.max(), 1e-300)
    near |= (np.abs(np.abs(np.diag(w)) - 1e-6) < 1e-9)[:, None]
    return float(((m >= threshold * m.max()) != mask)[~near].sum()) / mask.size
