"""Pictures without seams: where an output's neighbours come from other images, edges do not.

Next to the value of each pixel that of its difference to the next one down and to the right is
estimated, under the same weights: m = E[x0] and g = E[grad x0]. Where sources change, the step
between two images is in m, and not in g. The output fits both by least squares,

    u = argmin  lambda ||u - m||^2 + ||grad u - g||^2 = (lambda + L)^-1 (lambda m + grad^T g),

with L = grad^T grad, which the cosine transform diagonalises (Perez, Gangnet & Blake 2003 join two
images so). Of one image alone g = grad m, and u = m.
"""

from __future__ import annotations

import numpy as np
from scipy.fft import dctn, idctn

from golddiff.system.numbers import F32, F64

LAMBDA = 0.02  # the larger, the nearer to m; 0.1 leaves a hint of seams


def with_differences(values: F32, shape: tuple[int, ...]) -> F32:
    """Images (k, D) and their differences down and right, 0 past the end: (k, 3 D)."""
    images = values.reshape(len(values), *shape)
    down, right = np.zeros_like(images), np.zeros_like(images)
    down[:, :, :-1] = np.diff(images, axis=2)
    right[..., :-1] = np.diff(images, axis=3)
    found: F32 = np.concatenate([a.reshape(len(values), -1) for a in (images, down, right)], axis=1)
    return found


def joined(means: F64, shape: tuple[int, ...]) -> F64:
    """The images u (b, D) that fit means of values and differences (b, 3 D)."""
    m, down, right = means.reshape(len(means), 3, *shape).swapaxes(0, 1)
    total = LAMBDA * m
    for axis, part in ((2, down), (3, right)):
        inner = np.delete(part, -1, axis)
        before = np.insert(inner, 0, 0, axis)  # grad^T
        after = np.concatenate([inner, np.zeros_like(np.take(part, [-1], axis))], axis)
        total = total + before - after
    return _solved(total).reshape(len(means), -1)


def spread(cotangents: F64, shape: tuple[int, ...]) -> F64:
    """The transpose of :func:`joined`: (b, D) to (b, 3 D)."""
    solved = _solved(cotangents.reshape(-1, *shape)).reshape(len(cotangents), -1)
    found = with_differences(solved, shape)  # type: ignore[arg-type]
    found[:, : solved.shape[1]] *= LAMBDA
    return found  # type: ignore[return-value]


def _solved(images: F64) -> F64:
    """(lambda + L)^-1 of images (b, C, H, W)."""
    eigenvalues = [2 - 2 * np.cos(np.pi * np.arange(n) / n) for n in images.shape[2:]]
    scale = LAMBDA + eigenvalues[0][:, None] + eigenvalues[1]
    found: F64 = idctn(dctn(images, axes=(2, 3), norm="ortho") / scale, axes=(2, 3), norm="ortho")
    return found
