"""What each training image contributes at each location: the parts that attribution is made of.

Every estimator is sum_i exp(l_i) v_i / sum_i exp(l_i) with a logit l_i at each location and a
value v_i at each output. The fast kernels only ever hold the sums; here are the terms, a few
images at a time, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.posterior import Float
from golddiff.store.images import ImageStore
from golddiff.system.residency import at_hand

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Ranking:
    """The highest scores met so far at each of L locations, in no order.

    Attributes:
        scores: (L, top) float64; -inf where fewer were met.
        rows: (L, top) rows of the training images that they belong to.
        positions: (L, top) pixel of that image (y * W + x), or None where a source has none.
    """

    scores: Float
    rows: Rows
    positions: Rows | None = None

    @classmethod
    def empty(cls, locations: int, top: int) -> Ranking:
        """The ranking of nothing."""
        return cls(np.full((locations, top), -np.inf), np.full((locations, top), -1))

    def offered(self, scores: Float, rows: Rows) -> Ranking:
        """The ranking after images (k,) with scores (L, k) came along."""
        if np.all(scores.max(axis=1) <= self.scores.min(axis=1)):
            return self
        return self.merge(Ranking(scores, np.broadcast_to(rows, scores.shape)))

    def merge(self, other: Ranking) -> Ranking:
        """The highest of both."""
        top = self.scores.shape[1]
        scores = np.concatenate([self.scores, other.scores], axis=1)
        kept = np.argpartition(-scores, top - 1, axis=1)[:, :top]
        rows = np.concatenate([self.rows, other.rows], axis=1)
        positions = None
        if other.positions is not None:
            mine = np.full_like(self.rows, -1) if self.positions is None else self.positions
            positions = np.take_along_axis(
                np.concatenate([mine, other.positions], axis=1), kept, axis=1
            )
        return Ranking(
            np.take_along_axis(scores, kept, axis=1),
            np.take_along_axis(rows, kept, axis=1),
            positions,
        )

    def descending(self) -> Ranking:
        """The same, highest first; of equal scores the lower row first."""
        order = np.lexsort((self.rows, -self.scores), axis=1)
        return Ranking(
            np.take_along_axis(self.scores, order, axis=1),
            np.take_along_axis(self.rows, order, axis=1),
            None if self.positions is None else np.take_along_axis(self.positions, order, axis=1),
        )


@dataclass(frozen=True)
class Contribution:
    """The terms of some images in one query's posterior.

    Attributes:
        rows: (k,) rows of the images.
        logits: (L, k) float64, log importance weights included. Where an image contributes at
            several positions (Kamb), the log of its sum over them.
        values: (k, V) what each image contributes at each output: its own value there, or its own
            posterior mean over positions (Kamb). V = C * (values a channel) as in
            :class:`golddiff.posterior.Posterior`.
        best: the highest (image, position) pairs among these images, where there are positions.
    """

    rows: Rows
    logits: Float
    values: NDArray[np.floating]
    best: Ranking | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the two large arrays."""
        return self.logits.nbytes + self.values.nbytes


def log_sum_exp(logits: Float) -> Float:
    """Log of the sum of exp over the last axis."""
    highest = logits.max(axis=-1)
    total: Float = highest + np.log(np.exp(logits - highest[..., None]).sum(axis=-1))
    return total


def values_at(store: ImageStore, rows: Rows, pixel: int | None) -> NDArray[np.float32]:
    """Images as float32 (k, D), or only their channels at one pixel (y * W + x), (k, C)."""
    if pixel is None:
        return store.values(rows)
    columns = outputs_at(store, pixel)
    with at_hand(store.flat, rows) as (flat, places):
        stored = flat[places[:, None], columns].astype(np.float32)
    return stored * np.float32(store.scale) + np.float32(store.offset)


def outputs_at(store: ImageStore, pixel: int) -> Rows:
    """The output values of one pixel, one a channel, (C,)."""
    channels, height, width = store.shape
    return np.arange(channels) * (height * width) + pixel
