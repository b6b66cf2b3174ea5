"""Plain float64 implementations of the equations, against which the fast paths are tested.

Each handles one query over all images at once and shares no code with the fast paths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax_mean(logits: Array, values: Array) -> Array:
    """sum_i softmax_i(logits) values_i over the first axis."""
    weights = np.exp(logits - logits.max(axis=0))
    mean: Array = (weights * values).sum(axis=0) / weights.sum(axis=0)
    return mean


def optimal(x: Array, sigma: float, images: Array) -> Array:
    """Paper Eq. 2 for one query x (D,) over images (N, D)."""
    logits = -((x - images) ** 2).sum(axis=1) / (2 * sigma**2)
    return softmax_mean(logits[:, None], images)


def wiener(x: Array, sigma: float, images: Array) -> Array:
    """Mu + C (C + sigma^2 I)^-1 (x - mu), C unbiased."""
    mean = images.mean(axis=0)
    covariance = (images - mean).T @ (images - mean) / max(len(images) - 1, 1)
    identity = np.eye(len(mean))
    filtered: Array = mean + covariance @ np.linalg.solve(
        covariance + sigma**2 * identity, x - mean
    )
    return filtered


def pca_mask(sigma: float, images: Array, threshold: float) -> NDArray[np.bool_]:
    """The binary mask [input n, output q] of Lukoianov et al.: ``golddiff.estimators.masks``."""
    covariance = np.cov(images.T, bias=False).reshape(images.shape[1], images.shape[1])
    w = covariance @ np.linalg.inv(covariance + sigma**2 * np.eye(len(covariance)))
    diagonal = np.where(np.abs(np.diag(w)) < 1e-6, 1.0, np.diag(w))
    m = np.abs(w / diagonal[:, None])
    mask: NDArray[np.bool_] = m >= threshold * m.max()
    return mask


def pca(x: Array, sigma: float, images: Array, mask: NDArray[np.bool_]) -> Array:
    """Logit of image i at output q: -sum_n M_nq (x_n - x_in)^2 / (2 sigma^2)."""
    logits = -((x - images) ** 2) @ mask / (2 * sigma**2)
    return softmax_mean(logits, images)


def pca_wss(
    x: Array, sigma: float, images: Array, mask: NDArray[np.bool_], batch_size: int
) -> Array:
    """The unweighted mean of the softmax means of consecutive batches."""
    batches = [images[i : i + batch_size] for i in range(0, len(images), batch_size)]
    mean: Array = np.mean([pca(x, sigma, batch, mask) for batch in batches], axis=0)
    return mean


def patch_composite(x: Array, sigma: float, images: Array, patches: NDArray[np.bool_]) -> Array:
    """Niedoba et al. 2024 for one query x (C, H, W): patches (K, H, W) over images (N, C, H, W)."""
    sums, counts = np.zeros_like(x), np.zeros(x.shape[1:])
    for patch in patches:
        patches_here = images[:, :, patch]
        logits = -((x[:, patch] - patches_here) ** 2).sum(axis=(1, 2)) / (2 * sigma**2)
        sums[:, patch] += softmax_mean(logits[:, None, None], patches_here)
        counts += patch
    mean: Array = sums / counts
    return mean


def gaussian_mixture(
    x: Array, sigma: float, weights: Array, means: Array, covariances: Array
) -> Array:
    """E[x0 | x] for one x (D,) under sum_c w_c N(mu_c, C_c): full (K, D, D) covariances."""
    noise = sigma**2 * np.eye(len(x))
    logits = np.empty(len(weights))
    filtered = np.empty_like(means)
    for c, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        whitened = np.linalg.solve(covariance + noise, x - mean)
        _, log_determinant = np.linalg.slogdet(covariance + noise)
        logits[c] = np.log(weights[c]) - 0.5 * ((x - mean) @ whitened + log_determinant)
        filtered[c] = mean + covariance @ whitened
    return softmax_mean(logits[:, None], filtered)


def kamb(x: Array, sigma: float, images: Array, patch: int, boundary: str) -> Array:
    """Kamb & Ganguli's denoiser by loops, for tiny inputs.

    D(x)[c, u] = sum over images i and positions v of softmax(l_iv) * images[i, c, v],
    l_iv = -||patch(x, u) - patch(images[i], v)||^2 / (2 sigma^2), v among :func:`compared` with u.

    Args:
        x: (C, H, W) query.
        sigma: noise level.
        images: (N, C, H, W).
        patch: odd side of a patch.
        boundary: "none", "circular" or "zeros".
    """
    _, height, width = x.shape
    if boundary == "circular":
        patch = min(patch, (min(height, width) - 1) // 2 * 2 + 1)  # no pixel twice in a patch
    elif patch >= min(height, width):
        boundary = "none"
    query = framed_by(patch // 2, x, boundary)
    framed = [framed_by(patch // 2, image, boundary) for image in images]
    out = np.empty_like(x)
    for row in range(height):
        for column in range(width):
            query_patch = query[:, row : row + patch, column : column + patch]
            logits, values = [], []
            for image, frame in zip(images, framed, strict=True):
                for r in compared(row, height, patch, boundary):
                    for c in compared(column, width, patch, boundary):
                        image_patch = frame[:, r : r + patch, c : c + patch]
                        logits.append(-np.sum((query_patch - image_patch) ** 2) / (2 * sigma**2))
                        values.append(image[:, r, c])
            weights = np.exp(np.array(logits) - max(logits))
            out[:, row, column] = weights @ np.array(values) / weights.sum()
    return out


def compared(position: int, length: int, patch: int, boundary: str) -> range:
    """Positions in a training image that one position is compared with, along one axis."""
    reach = patch // 2
    if boundary == "circular":
        return range(length)
    if boundary == "none" or position < reach or position >= length - reach:
        return range(position, position + 1)
    return range(reach, length - reach)


def framed_by(reach: int, image: Array, boundary: str) -> Array:
    """Pad the image: by wrapping for "circular", with zeros otherwise.

    In the padded image the patch around (row, column) starts at (row, column).
    """
    margins = ((0, 0), (reach, reach), (reach, reach))
    return np.pad(image, margins, mode="wrap" if boundary == "circular" else "constant")
