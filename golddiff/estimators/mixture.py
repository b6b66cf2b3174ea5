"""A mixture of Gaussians as the prior: exact posterior means at a cost independent of N."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from golddiff.estimators.gaussians import Gaussian, GaussianDenoiser
from golddiff.store.images import StoreOrPath
from golddiff.store.statistics import Axes
from golddiff.support import Prior, RandomSample
from golddiff.system.arguments import check_not_negative
from golddiff.system.numbers import F32, F64, I64, check_count, check_seed
from golddiff.system.parallel import single_threaded_blas

IMAGES_PER_COMPONENT = 100  # minimum on average; fewer determine a covariance poorly
MAX_IMAGES = 1_000_000  # images used for fitting, whose coordinates are in memory
CLUSTERING_RANK = 64  # leading principal components used for clustering
# Components with less weight are skipped: each changes outputs by at most this share of the range.
NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Components:
    """The mixture in the subspace of the leading r principal components."""

    log_weights: F64  # (K,) logs of the mixture weights, which sum to 1
    means: F64  # (K, r)
    variances: F64  # (K, r) eigenvalues of the covariances, >= 0
    axes: F64  # (K, r, r) their eigenvectors in columns


class GaussianMixture(GaussianDenoiser):
    """E[x0 | x] under p(x0) = sum_c w_c N(mu_c, C_c), fitted to the images once.

    x = x0 + sigma eps has density sum_c w_c N(x; mu_c, C_c + sigma^2 I), and given its component
    its posterior mean is Wiener's, so

        D(x) = sum_c r_c(x) [mu_c + C_c (C_c + sigma^2 I)^-1 (x - mu_c)],
        r_c(x) proportional to w_c N(x; mu_c, C_c + sigma^2 I).

    The components are k-means clusters that differ within the ``rank`` leading principal components
    of all images. On the remaining ones all share the Gaussian of all images, which cancels out of
    r_c and is filtered as in :class:`golddiff.estimators.wiener.Wiener`. A cluster's covariance is
    shrunk towards the pooled one, as if ``shrinkage`` additional images had that covariance.

    With ``labels`` the mixture is fitted to the class alone, within the same subspace.

    Fitting takes seconds and K * r^2 * 8 bytes (200 components of rank 300: 144 MB); a class is
    fitted at its first use. One component without shrinkage at full rank equals Wiener.

    At most a million images, drawn at random, are used. A sharded store
    (:class:`golddiff.cluster.ShardedStore`) sends their coordinates, not their pixels.

    Args:
        store: the training set.
        components: maximum K; smaller if clusters would average fewer than 100 images.
        rank: maximum r.
        shrinkage: a number of images, >= 0.
        seed: seed of the clustering.

    Raises:
        ArgumentError: an argument is out of range.
    """

    def __init__(
        self,
        store: StoreOrPath,
        components: int = 200,
        rank: int = 300,
        shrinkage: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__(store)
        self.components = check_count("components", components)
        self.rank = check_count("rank", rank)
        self.shrinkage = check_not_negative("shrinkage", shrinkage)
        self.seed = check_seed(seed)
        self._fitted: dict[Prior, Components] = {}

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Posterior means (b, D), computed in float64."""
        f = self.store.factor()
        return denoised(x, sigma, f.mean, f.eigenvalues, f.eigenvectors, self.fitted(prior))

    def gaussians(self, prior: Prior) -> Iterator[Gaussian]:
        """The components, including the principal components that all share."""
        factor, mixture = self.store.factor(), self.fitted(prior)
        r = mixture.means.shape[1]
        leading, rest = factor.eigenvectors[:, :r], factor.eigenvectors[:, r:]
        for log_weight, (mean, variances, axes) in zip(
            mixture.log_weights.tolist(), _components(mixture), strict=True
        ):
            values = np.concatenate([variances, factor.eigenvalues[r:]])
            vectors = np.concatenate([leading @ axes, rest], axis=1)
            yield Gaussian(log_weight, factor.mean + leading @ mean, values, vectors)

    def fitted(self, prior: Prior = None) -> Components:
        """The mixture of all images or of a class, fitted at the first call and cached."""
        if prior not in self._fitted:
            rows = self.store.rows_of(prior)
            drawn = RandomSample(MAX_IMAGES, (0,)).positions(len(rows))
            self._fitted[prior] = self.fitted_to(rows[drawn])
        return self._fitted[prior]

    def set_fitted(self, fitted: Components) -> None:
        """Set the mixture of all images instead of fitting it."""
        self._fitted[None] = fitted

    def fitted_to(self, rows: I64) -> Components:
        """The mixture of the images of some rows (n,)."""
        factor = self.store.factor()
        r = min(self.rank, len(factor.eigenvalues))
        axes = factor.eigenvectors[:, :r].astype(np.float32)
        z = self.store.values(rows, Axes(factor.mean.astype(np.float32), axes))
        clusters = min(self.components, max(1, len(rows) // IMAGES_PER_COMPONENT))
        return fit(z, cluster(z[:, :CLUSTERING_RANK], clusters, self.seed), self.shrinkage)


def cluster(z: F32, clusters: int, seed: int) -> I64:
    """The k-means cluster of each point (n, d), numbered 0 to K - 1 without gaps."""
    if clusters == 1 or z.shape[1] == 0:
        return np.zeros(len(z), np.int64)
    from sklearn.cluster import MiniBatchKMeans  # imports slowly

    seed %= 2**32  # scikit-learn takes no larger seed
    kmeans = MiniBatchKMeans(clusters, n_init=1, batch_size=2048, max_iter=30, random_state=seed)
    # In float64, so that rounding hardly ever decides which cluster is nearest, and on one thread,
    # so that the number of threads never does.
    with single_threaded_blas():
        members = kmeans.fit_predict(z.astype(np.float64))
    return np.unique(members, return_inverse=True)[1]


def fit(z: F32, member: I64, shrinkage: float) -> Components:
    """Weights, means and shrunk covariances of clusters of points (n, r).

    The pooled within-cluster covariance is added to each with the weight of ``shrinkage`` images.
    """
    counts = np.bincount(member)
    k, r = len(counts), z.shape[1]
    means = np.zeros((k, r))
    scatters = np.empty((k, r, r), np.float32)
    pooled = np.zeros((r, r))
    for c in range(k):
        points = z[member == c]
        means[c] = points.mean(axis=0, dtype=np.float64)
        centred = points - means[c].astype(np.float32)
        scatters[c] = centred.T @ centred
        pooled += scatters[c]
    pooled /= max(len(z) - k, 1)
    variances, axes = np.empty((k, r)), np.empty((k, r, r))
    for c in range(k):
        images = max(counts[c] - 1 + shrinkage, 1)
        covariance = (scatters[c] + shrinkage * pooled) / images
        variances[c], axes[c] = np.linalg.eigh(covariance)
    # Rounding leaves tiny negative eigenvalues in directions without variance.
    return Components(np.log(counts / len(z)), means, variances.clip(min=0), axes)


def denoised(
    x: F32, sigma: float, mean: F64, eigenvalues: F64, eigenvectors: F64, components: Components
) -> F32:
    """Posterior means of x (b, D): of the mixture on the first r axes, of one Gaussian on the rest.

    The Gaussian has a mean (D,) and eigenvalues (m,) and eigenvectors (D, m) of the covariance.
    """
    coefficients: F64 = (x - mean) @ eigenvectors
    r = components.means.shape[1]
    leading = coefficients[:, :r].copy()
    coefficients *= eigenvalues / (eigenvalues + sigma**2)
    coefficients[:, :r] = posterior_mean(components, leading, sigma)
    return (mean + coefficients @ eigenvectors.T).astype(x.dtype)


def posterior_mean(mixture: Components, z: F64, sigma: float) -> F64:
    """sum_c r_c(z) [mu_c + C_c (C_c + sigma^2 I)^-1 (z - mu_c)] for noisy points z (b, r)."""
    logits = np.empty((len(z), len(mixture.means)))
    for c, (mean, variance, axes) in enumerate(_components(mixture)):
        total = variance + sigma**2
        coords = (z - mean) @ axes
        logits[:, c] = mixture.log_weights[c] - 0.5 * (
            (coords**2 / total).sum(axis=1) + np.log(total).sum()
        )
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    out = np.zeros_like(z)
    for c, (mean, variance, axes) in enumerate(_components(mixture)):
        rows = np.flatnonzero(weights[:, c] > NEGLIGIBLE)
        if len(rows) == 0:
            continue
        gains = variance / (variance + sigma**2)
        filtered = mean + ((z[rows] - mean) @ axes * gains) @ axes.T
        out[rows] += weights[rows, c, None] * filtered
    return out


def _components(mixture: Components) -> Iterator[tuple[F64, F64, F64]]:
    return zip(mixture.means, mixture.variances, mixture.axes, strict=True)
