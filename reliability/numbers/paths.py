"""The fast paths, each beside the equation that it must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff import PCA, GaussianMixture, GoldDiff, Kamb, Optimal, PaperSchedule, Wiener
from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.masks import locality_mask
from golddiff.kernels.block_squares import block_of_each
from golddiff.support import Support, TiledSupport
from golddiff.supports.certificate import certify
from golddiff.supports.index.blocks import MIDDLE
from golddiff.supports.index.distances import IndexedBlocks, TileBlocks
from golddiff.supports.index.image_index import Index
from golddiff.supports.index.search import NeighborSearch
from golddiff_lab import reference as direct
from golddiff_lab.reference_kamb import kamb
from reliability.numbers.cases import Case

Array = direct.Array
# Name of the path, and its error as a share of the images' scale.
Measured = Iterator[tuple[str, float]]
Path = Callable[[np.random.Generator, Case], Measured]

# Kamb's reference is loops over pixels and positions.
MOST_KAMB = 4_000


def optimal(rng: np.random.Generator, case: Case) -> Measured:
    """Optimal, on the processor and by torch's kernels, and what attribution tells of it."""
    twin = [direct.optimal(q, case.sigma, case.images) for q in case.queries]
    denoiser = Optimal(case.store)
    yield "optimal", off(case, denoiser(case.x, case.sigma), twin)
    yield "optimal, torch kernels", off(case, _on_device(case, denoiser), twin)
    yield "attribution of optimal", off(case, _summed_again(case, denoiser), twin)


def wiener(rng: np.random.Generator, case: Case) -> Measured:
    """Wiener."""
    twin = [direct.wiener(q, case.sigma, case.images) for q in case.queries]
    yield "wiener", off(case, Wiener(case.store)(case.x, case.sigma), twin)


def pca(rng: np.random.Generator, case: Case) -> Measured:
    """PCA with both weightings, its masks, and attribution."""
    threshold = float(rng.choice((0.0, 0.005, 0.02, 0.05, 0.3)))
    mask = locality_mask(case.store.factor(), case.sigma, threshold)
    yield "pca masks", _mask_error(case, mask, threshold)
    twin = [direct.pca(q, case.sigma, case.images, mask) for q in case.queries]
    denoiser = PCA(case.store, threshold)
    yield "pca ss", off(case, denoiser(case.x, case.sigma), twin)
    yield "pca ss, torch kernels", off(case, _on_device(case, denoiser), twin)
    yield "attribution of pca", off(case, _summed_again(case, denoiser), twin)
    size = int(rng.integers(1, case.store.n + 2))
    batches = PCA(case.store, threshold, weighting="wss", batch_size=size)
    wss = [direct.pca_wss(q, case.sigma, case.images, mask, size) for q in case.queries]
    yield "pca wss", off(case, batches(case.x, case.sigma), wss)


def kamb_all(rng: np.random.Generator, case: Case) -> Measured:
    """Kamb with every border."""
    shape = case.store.shape
    if len(shape) != 3 or min(shape[1:]) < 3:
        return
    positions = shape[1] * shape[2]
    if positions * positions * case.store.n > 20 * MOST_KAMB:
        return
    patch = int(rng.choice((1, 3, 5)))
    images = case.images.reshape(-1, *shape)
    for boundary in ("none", "circular", "zeros"):
        denoiser = Kamb(case.store, patch, boundary)
        got = denoiser(case.x[:1], case.sigma)
        twin = kamb(case.x[0].double().numpy(), case.sigma, images, patch, boundary)
        yield f"kamb {boundary}", off(case, got, [twin.reshape(-1)])


def golden(rng: np.random.Generator, case: Case) -> Measured:
    """GoldDiff in both variants over two estimators: the equation over the support chosen."""
    for variant in ("text", "released"):
        schedule = PaperSchedule(0.2, 0.5, 0.4, 0.9, variant=variant)
        for name, base in (("optimal", Optimal(case.store)), ("pca", PCA(case.store, 0.02))):
            method = GoldDiff(base, schedule)
            mask = locality_mask(case.store.factor(), case.sigma, 0.02)
            supports = method.supports(case.x, case.sigma)
            twin = [
                _over(q, case, whole.rows, mask if name == "pca" else None)
                for q, whole in zip(case.queries, supports, strict=True)
            ]
            got = method(case.x, case.sigma)
            yield f"golddiff {variant}, {name}", off(case, got, twin)
            yield (
                f"golddiff {variant}, {name}, torch kernels",
                off(case, _on_device(case, method), twin),
            )


def weighted(rng: np.random.Generator, case: Case) -> Measured:
    """Importance weights, for the whole image and tile by tile: what adaptive supports are."""
    shape, n = case.store.shape, case.store.n
    base: Estimator = PCA(case.store, 0.02)
    mask = locality_mask(case.store.factor(), case.sigma, 0.02)
    flat = case.x.reshape(len(case.x), -1).numpy()
    one = _drawn(rng, n)
    got = base.denoise_over(flat, case.sigma, one)
    twin = [_weighted(q, case, one, mask) for q in case.queries]
    yield "adaptive, one support", off(case, torch.from_numpy(got), twin)
    if len(shape) != 3 or 4 not in base.tile_sides:
        return
    rows, columns = -(-shape[1] // 4), -(-shape[2] // 4)
    tiles = [_drawn(rng, n) for _ in range(rows * columns)]
    got = base.denoise_over(flat[:1], case.sigma, [TiledSupport(4, tiles)])
    whole = np.empty(shape)
    for t, support in enumerate(tiles):
        top, left = t // columns * 4, t % columns * 4
        part = _weighted(case.queries[0], case, support, mask).reshape(shape)
        whole[:, top : top + 4, left : left + 4] = part[:, top : top + 4, left : left + 4]
    yield "adaptive, tiles", off(case, torch.from_numpy(got), [whole.reshape(-1)])


def full_covariances(
    mixture: GaussianMixture,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The (K, D) means and (K, D, D) covariances that a fitted mixture stands for."""
    factor, fitted = mixture.store.factor(), mixture.fitted()
    u, r = factor.eigenvectors, fitted.means.shape[1]
    means, covariances = [], []
    for mean, variances, axes in zip(fitted.means, fitted.variances, fitted.axes, strict=True):
        inner = np.diag(factor.eigenvalues)
        inner[:r, :r] = axes.astype(np.float64) * variances @ axes.T.astype(np.float64)
        means.append(factor.mean + u[:, :r] @ mean)
        covariances.append(u @ inner @ u.T)
    return np.array(means), np.array(covariances)


def mixtures(rng: np.random.Generator, case: Case) -> Measured:
    """The mixture of Gaussians."""
    store = case.store
    parts = int(rng.integers(1, 4))
    mixture = GaussianMixture(store, components=parts, rank=300, shrinkage=20)
    weights, stacked = np.exp(mixture.fitted().log_weights), full_covariances(mixture)
    twin = [
        direct.gaussian_mixture(q, case.sigma, weights, *stacked).reshape(-1) for q in case.queries
    ]
    yield "mixture of Gaussians", off(case, mixture(case.x, case.sigma), twin)


def certificate(rng: np.random.Generator, case: Case) -> Measured:
    """The proved bound: by how much an error passes it, 0 where it holds."""
    index = Index.build(case.store)
    query = case.queries[0].astype(np.float32)
    # Of the images as float32 holds them, which is what the bound is about.
    held = case.store.values(np.arange(case.store.n)).astype(np.float64)
    exact = direct.optimal(query.astype(np.float64), case.sigma, held)
    rows = rng.choice(case.store.n, int(rng.integers(1, case.store.n + 1)), replace=False)
    for most in (np.inf, 0.1):
        proved = certify(index, query, case.sigma, rows, most=most)
        error = float(np.linalg.norm(proved.mean - exact))
        rounding = 1e-12 * (1 + float(np.linalg.norm(exact)))
        yield "certificate, passed by", max(0.0, error - proved.bound - rounding) / case.scale


def compared(rng: np.random.Generator, case: Case) -> Measured:
    """Tiles' distances to all images by pixels and by an index; the nearest, and all drawn."""
    store, index = case.store, Index.build(case.store)
    relevance = rng.random((int(rng.integers(1, 5)), store.d)).astype(np.float32)
    kept = index.numbers.astype(np.float64) * index.blocks.unit - MIDDLE * index.blocks.unit
    of_pixel = block_of_each(store.shape)
    shares = [np.bincount(of_pixel, r) / np.bincount(of_pixel) for r in relevance]
    pixels = np.stack(shares)[:, of_pixel]
    of_number = np.repeat(np.arange(len(index.blocks.columns)), len(index.blocks.basis))
    blocks = relevance.astype(np.float64)[:, index.blocks.columns].mean(axis=2)[:, of_number]
    x = case.x.numpy().reshape(len(case.x), -1).astype(np.float32)
    k = int(rng.integers(1, store.n + 1))
    for name, metric, images, goals, weights in (
        ("pixels", TileBlocks.of(store.shape, relevance), case.images, x, pixels),
        ("index", IndexedBlocks.of(index, relevance), kept, index.blocks.project(x), blocks),
    ):
        search = NeighborSearch(store, metric, x, store.rows_of(None))
        found = metric.distances(store, x, store.rows_of(None))
        for q, query in enumerate(goals):
            exact = weights @ ((images - query.astype(np.float64)) ** 2).T
            largest = exact.max() + 1e-30
            yield f"compared by {name}", float(np.abs(found[q] - exact).max() / largest)
            rings = search.rings(q, {t: (0, k) for t in range(len(relevance))})
            for t, rows in rings.items():
                further = exact[t][rows].max() - np.sort(exact[t])[k - 1]
                short = np.inf if len(rows) != k else 0.0
                yield f"nearest by {name}, further", short + max(0.0, further) / largest


# How often each is tried on a store: those that build or loop much less often.
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


def off(case: Case, got: torch.Tensor, twin: list[Array]) -> float:
    """The largest difference, as a share of the images' scale; infinite where one is no number."""
    values = got.double().numpy().reshape(len(twin), -1)
    error = float(np.abs(values - np.stack([t.reshape(-1) for t in twin])).max()) / case.scale
    return error if np.isfinite(error) else np.inf


def _on_device(case: Case, denoiser: Denoiser) -> torch.Tensor:
    return denoiser.to(torch.device("cpu"))(case.x, case.sigma)


def _summed_again(case: Case, denoiser: Estimator) -> torch.Tensor:
    found = denoiser.attribute(case.x, case.sigma, top=3)
    return torch.stack([torch.as_tensor(one.reconstruct()) for one in found])


def _over(q: Array, case: Case, rows: np.ndarray, mask: np.ndarray | None) -> Array:
    images = case.images[rows]
    if mask is None:
        return direct.optimal(q, case.sigma, images)
    return direct.pca(q, case.sigma, images, mask)


def _drawn(rng: np.random.Generator, n: int) -> Support:
    rows = np.sort(rng.choice(n, int(rng.integers(1, n + 1)), replace=False)).astype(np.int64)
    return Support(rows, rng.normal(0, 2, len(rows)))


def _weighted(q: Array, case: Case, support: Support, mask: np.ndarray) -> Array:
    images = case.images[support.rows]
    logits = -((q - images) ** 2) @ mask / (2 * case.sigma**2)
    return direct.softmax_mean(logits + support.log_importance()[:, None], images)


def _mask_error(case: Case, mask: np.ndarray, threshold: float) -> float:
    """Share of entries that differ from the definition's, where rounding cannot decide them."""
    images = case.images
    d = images.shape[1]
    one = len(images) < 2
    covariance = np.zeros((d, d)) if one else np.cov(images.T, bias=False).reshape(d, d)
    w = covariance @ np.linalg.inv(covariance + case.sigma**2 * np.eye(len(covariance)))
    diagonal = np.where(np.abs(np.diag(w)) < 1e-6, 1.0, np.diag(w))
    m = np.abs(w / diagonal[:, None])
    near = np.abs(m - threshold * m.max()) < 1e-6 * max(m.max(), 1e-300)
    near |= (np.abs(np.abs(np.diag(w)) - 1e-6) < 1e-9)[:, None]
    return float(((m >= threshold * m.max()) != mask)[~near].sum()) / mask.size
