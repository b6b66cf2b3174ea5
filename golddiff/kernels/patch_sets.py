"""Posterior means of overlapping patches: one softmax per patch over the images at its position.

A patch is any set of pixels with all their channels. As in :mod:`golddiff.kernels.pca_cpu`, images
are transposed in blocks, so that sums over a patch and over images add contiguous runs. A patch
skips blocks whose weights are negligible.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.gather import gather, padded_weights, positions_in, runs
from golddiff.kernels.lanes import (
    BLOCK,
    NEGLIGIBLE,
    any_above,
    empty_numbers,
    exp,
    largest,
    load_block,
    spread_block,
    store,
    sum_of,
)
from golddiff.kernels.roots import roots
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.support import Support
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.residency import ROWS_AT_ONCE


@dataclass(frozen=True)
class PatchSet:
    """The patches of one noise level; every pixel is in at least one."""

    masks: NDArray[np.bool_]  # (K, P) the pixels of each patch
    pixels: I64  # (entries,) the pixels of all patches, patch by patch, ascending within each
    stops: I64  # (K + 1,) offsets of the patches in ``pixels``
    width: int  # number of pixels of the largest patch
    entries: I64  # (entries,) flat index of each of ``pixels`` in a plane (width, K) of sums

    @classmethod
    def of(cls, masks: NDArray[np.bool_]) -> PatchSet:
        """From the pixels of each patch (K, P)."""
        (patch, pixels), counts = np.nonzero(masks), masks.sum(axis=1)
        stops = np.append(0, np.cumsum(counts))
        entries = (np.arange(len(pixels)) - stops[patch]) * len(masks) + patch
        return cls(masks, pixels, stops, int(counts.max()), entries)

    @cached_property
    def padded_pixels(self) -> I64:
        """(width, K) the pixels of each patch, padded with -1."""
        padded = np.full(self.width * len(self.masks), -1)
        padded[self.entries] = self.pixels
        return padded.reshape(self.width, -1)

    def composed(self, means: F64) -> F64:
        """Average the patches' means (n, C * width * K) at each pixel, giving (n, C * P)."""
        planes = means.reshape(-1, self.width * len(self.masks))[:, self.entries]
        count = self.masks.shape[1]
        sums = [np.bincount(self.pixels, plane, count) for plane in planes]
        return (np.array(sums) / self.masks.sum(axis=0)).reshape(len(means), -1)


@njit(nogil=True, cache=True)
def _patch_means(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, first_root, second_root, scale, offset, gain,
    pixels, stops, columns, column_of, positions, log_max, total, weighted,
):  # fmt: skip
    d = len(column_of)
    stored, terms = np.zeros(len(columns) * BLOCK, flat.dtype), empty_numbers(positions * BLOCK)
    zero = spread_block(np.float32(0.0))
    for first in range(0, len(rows), BLOCK):
        gather(flat, rows, first, columns, stored)
        for q in range(len(first_root)):
            for p in range(positions):
                term = zero
                for n in range(p, d, positions):
                    value = load_block(stored, column_of[n] * BLOCK) * scale
                    left, right = offset - first_root[q, n], offset - second_root[q, n]
                    term = term + (value + left) * (value + right)
                store(terms, p * BLOCK, term)
            for k in range(len(stops) - 1):
                logits = zero
                for entry in range(stops[k], stops[k + 1]):
                    logits = logits + load_block(terms, pixels[entry] * BLOCK)
                logits = logits * gain + load_block(log_weights, first)
                top, sums = log_max[q, k], weighted[q, k]
                if not any_above(logits, top - NEGLIGIBLE):
                    continue
                if any_above(logits, top):
                    best = largest(logits)
                    shrink = np.exp(np.float64(top) - np.float64(best))
                    total[q, k] *= shrink
                    # An operation on whole arrays would compile for seconds.
                    for channel in range(len(sums)):
                        for entry in range(stops[k + 1] - stops[k]):
                            sums[channel, entry] *= shrink
                    log_max[q, k] = best
                    top = best
                weights = exp(logits - top)
                total[q, k] += sum_of(weights)
                for channel in range(len(sums)):
                    for entry in range(stops[k], stops[k + 1]):
                        n = column_of[channel * positions + pixels[entry]]
                        values = load_block(stored, n * BLOCK)
                        sums[channel, entry - stops[k]] += sum_of(weights * values)


def patch_means(
    stored: Stored, images: Support, x: F32, sigma: float, patches: PatchSet
) -> Posterior:
    """Partial posterior of each patch k: logits -sum_{n in k} (x_n - x_in)^2 / (2 sigma^2).

    There are K locations, one per patch. Values are (C, width, K), with the j-th pixel of patch k
    in channel c at (c, j, k); entries past a patch's last pixel are undefined.
    """
    (b, d), (count, positions) = x.shape, patches.masks.shape
    columns = runs(np.arange(d), d)
    column_of = positions_in(columns, np.arange(d))
    log_max = np.full((b, count), -np.inf, np.float32)
    total = np.zeros((b, count))
    weighted = np.zeros((b, count, d // positions, patches.width))
    x_roots = roots(x, sigma)
    for part in images.split(ROWS_AT_ONCE):
        with stored.resident(part.rows) as (loaded, rows):
            _patch_means(
                loaded.flat, rows, padded_weights(part), *x_roots,
                *stored.scaling, np.float32(-precision(sigma)),
                patches.pixels, patches.stops, columns, column_of, positions,
                log_max, total, weighted,
            )  # fmt: skip
    # The kernel sums stored values; convert to pixel values.
    sums = weighted.transpose(0, 2, 3, 1) * stored.scale + stored.offset * total[:, None, None]
    return Posterior(log_max.astype(np.float64), total, sums.reshape(b, -1))
