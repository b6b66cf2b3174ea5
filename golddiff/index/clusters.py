"""What is known of each cluster of a location: how many, where, how far around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.index.fitting import Fitted
from golddiff.index.layout import Arrays

IMAGES_AT_ONCE = 65_536
LONG = np.float32(1e30)  # the shortest of nothing


def order(cluster: NDArray[np.uint16], t: int) -> NDArray[np.int64]:
    """Images by cluster, at random within one: any run of a cluster is then a random sample."""
    shuffled = np.random.default_rng([1, t]).permutation(len(cluster))
    by_cluster: NDArray[np.int64] = shuffled[np.argsort(cluster[shuffled], kind="stable")]
    return by_cluster


def empty(fit: Fitted) -> Arrays:
    """Room for the numbers of a view's clusters.

    ``starts`` (T, C + 1): a cluster's first image, in the order by cluster; ``centres`` and
    ``spread`` (T, C, r): mean and variance of its coordinates as kept; ``rest`` (T, C): mean
    square of the rests; ``radius`` (T, C): no coordinates as kept are further from the centre;
    ``error`` (T, C): nor any from what is kept of them; ``shortest``, ``longest`` (T, C): of the
    rests as kept.
    """
    tiles, clusters = fit.centres.shape[:2]
    return {
        "starts": np.empty((tiles, clusters + 1), np.int64),
        "centres": np.empty_like(fit.centres),
        "spread": np.empty_like(fit.centres),
        "rest": np.empty((tiles, clusters), np.float32),
        "radius": np.empty((tiles, clusters), np.float32),
        "error": np.zeros((tiles, clusters), np.float32),
        "shortest": np.full((tiles, clusters), LONG, np.float32),
        "longest": np.zeros((tiles, clusters), np.float32),
    }


def summarise(fit: Fitted, lines: Arrays, t: int, into: Arrays) -> None:
    """Fill in one location's clusters from its images' numbers, in store order."""
    clusters = fit.centres.shape[1]
    counts = np.bincount(lines["cluster"], minlength=clusters)
    shared = np.maximum(counts, 1)[:, None]
    mean = _sums(fit, lines, t, clusters, lambda z, _: z) / shared
    into["starts"][t] = np.concatenate([[0], np.cumsum(counts)])
    into["centres"][t] = mean
    centres = into["centres"][t]
    into["spread"][t] = _sums(fit, lines, t, clusters, lambda z, c: (z - centres[c]) ** 2) / shared
    rest = lines["rest"].astype(np.float64) ** 2
    into["rest"][t] = np.bincount(lines["cluster"], rest, clusters) / shared[:, 0]
    radius = np.zeros(clusters)
    for z, cluster in _pieces(fit, lines, t):
        np.maximum.at(radius, cluster, np.linalg.norm(z - centres[cluster], axis=1))
    np.maximum.at(into["error"][t], lines["cluster"], lines["error"].astype(np.float32))
    np.maximum.at(into["longest"][t], lines["cluster"], lines["rest"].astype(np.float32))
    np.minimum.at(into["shortest"][t], lines["cluster"], lines["rest"].astype(np.float32))
    # Rounded up: it bounds distances.
    into["radius"][t] = np.nextafter((radius * (1 + 1e-6)).astype(np.float32), np.float32(np.inf))


def _sums(
    fit: Fitted,
    lines: Arrays,
    t: int,
    clusters: int,
    of: Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]],
) -> NDArray[np.float64]:
    total = np.zeros((clusters, fit.basis.shape[1]))
    for z, cluster in _pieces(fit, lines, t):
        total += np.stack([np.bincount(cluster, c, clusters) for c in of(z, cluster).T], 1)
    return total


def _pieces(
    fit: Fitted, lines: Arrays, t: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    for i in range(0, len(lines["cluster"]), IMAGES_AT_ONCE):
        part = slice(i, i + IMAGES_AT_ONCE)
        yield lines["coordinates"][part] * fit.scale[t], lines["cluster"][part].astype(np.int64)
