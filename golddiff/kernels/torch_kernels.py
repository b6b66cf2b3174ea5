"""What the estimators compute, in plain torch: for any device other than the processor.

The compiled loops of this folder are for the processor. Here the same sums are a few calls of
torch each, and a :class:`Partial` holds what they give. Differences are true differences, never
|a|^2 - 2ab + |b|^2: at low noise that would lose every digit.

Everywhere: ``values`` (m, D) float32 are images in [-1, 1], ``x`` (b, D) float32 queries that all
see these images, ``log_weights`` (m,) their log importance or None, ``gain`` 1 / (2 sigma^2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch.nn.functional import avg_pool2d, pad


@dataclass
class Partial:
    """The accumulator of :mod:`golddiff.posterior` on a device, float32."""

    log_max: torch.Tensor  # (b, L) largest logit seen
    total: torch.Tensor  # (b, L) sum of exp(logit - log_max)
    # (b, D) sum of exp(logit - log_max) * value, D a multiple of L: channel by channel
    weighted: torch.Tensor

    def merge(self, other: Partial) -> Partial:
        """The posterior over both parts together."""
        log_max = torch.maximum(self.log_max, other.log_max)
        mine, theirs = torch.exp(self.log_max - log_max), torch.exp(other.log_max - log_max)
        return Partial(
            log_max,
            self.total * mine + other.total * theirs,
            self.weighted * self._spread(mine) + other.weighted * self._spread(theirs),
        )

    def _spread(self, per_location: torch.Tensor) -> torch.Tensor:
        return per_location.repeat(1, self.weighted.shape[1] // per_location.shape[1])


def squared_distances(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """||x_q - values_i||^2, (b, m)."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x, values, compute_mode=exact).square()


def whole_images(
    values: torch.Tensor, log_weights: torch.Tensor | None, x: torch.Tensor, gain: float
) -> Partial:
    """One logit an image; see :class:`golddiff.estimators.optimal.Optimal`."""
    logits = squared_distances(values, x).T * -gain
    log_max, weights = _exponentials(logits, log_weights)
    return Partial(log_max[:, None], weights.sum(dim=0)[:, None], weights.T @ values)


def masked(
    values: torch.Tensor,
    log_weights: torch.Tensor | None,
    x: torch.Tensor,
    gain: float,
    mask: torch.Tensor,
) -> Partial:
    """One logit an output, over its column of ``mask`` (D, D); see ``estimators/pca.py``."""
    parts = []
    for query in x:
        logits = ((values - query).square() @ mask) * -gain
        log_max, weights = _exponentials(logits, log_weights)
        parts.append((log_max, weights.sum(dim=0), (weights * values).sum(dim=0)))
    return _stacked(parts)


def patches(
    values: torch.Tensor,
    log_weights: torch.Tensor | None,
    x: torch.Tensor,
    gain: float,
    shape: tuple[int, int, int],
    size: int,
    boundary: str,
) -> Partial:
    """One logit an output pixel, image and position; see :class:`golddiff.estimators.kamb.Kamb`.

    One offset between the two positions at a time: the distances of all patches of all images at
    that offset are the squared differences of shifted images, summed over squares of pixels.

    Images are of a shape (C, H, W), patches of ``size`` x ``size`` pixels, an odd number.
    ``boundary`` is "none", "circular" or "zeros"; "zeros" with patches as large as the shorter
    side is "none".
    """
    images = values.reshape(-1, *shape)
    parts = []
    for query in x.reshape(-1, *shape):
        best: Partial | None = None
        for shifted, here in offsets(images, size, boundary):
            logits = box_sums((query - shifted).square().sum(dim=1), size, boundary) * -gain
            log_max, weights = _exponentials(torch.where(here, logits, -torch.inf), log_weights)
            sums = torch.einsum("mhw,mchw->chw", weights, shifted)
            part = Partial(*(a.reshape(1, -1) for a in (log_max, weights.sum(dim=0), sums)))
            best = part if best is None else best.merge(part)
        assert best is not None
        parts.append((best.log_max[0], best.total[0], best.weighted[0]))
    return _stacked(parts)


def patch_sets(
    values: torch.Tensor,
    log_weights: torch.Tensor | None,
    x: torch.Tensor,
    gain: float,
    masks: torch.Tensor,
    places: torch.Tensor,
) -> Partial:
    """One logit a patch; see :func:`golddiff.kernels.patch_sets.patch_means`.

    ``masks`` (K, P) are the patches' pixels as float32, ``places`` (width, K) the same as
    :attr:`golddiff.kernels.patch_sets.PatchSet.places`.
    """
    pixels = masks.shape[1]
    parts = []
    for query in x:
        squares = (values - query).square().reshape(len(values), -1, pixels).sum(dim=1)
        log_max, weights = _exponentials((squares @ masks.T) * -gain, log_weights)
        sums = (values.T @ weights).reshape(-1, pixels, len(masks))  # (C, P, K)
        held = sums.gather(1, places.clamp(min=0).expand(len(sums), -1, -1)) * (places >= 0)
        parts.append((log_max, weights.sum(dim=0), held.flatten()))
    return _stacked(parts)


def lowest(distances: torch.Tensor, k: int) -> torch.Tensor:
    """Where the k lowest of each row (b, n) lie, ascending places (b, k); of equals the first."""
    if k >= distances.shape[1]:
        return torch.arange(distances.shape[1], device=distances.device).expand(len(distances), -1)
    limit = distances.kthvalue(k, dim=1, keepdim=True).values
    equal = distances == limit
    missing = k - (distances < limit).sum(dim=1, keepdim=True)
    taken = (distances < limit) | (equal & (equal.cumsum(dim=1) <= missing))
    return taken.nonzero()[:, 1].reshape(-1, k)


def offsets(
    images: torch.Tensor, size: int, boundary: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images (m, C, H, W) moved so that position v comes to u, and where (H, W) u may see that v.

    The first offset is none at all: after it every position has been compared with something.
    """
    height, width = images.shape[2:]
    axes = [_axis(length, size, boundary) for length in (height, width)]
    for (dy, rows), (dx, columns) in product(*axes):
        here = (rows[:, None] & columns[None, :]).to(images.device)
        if boundary == "circular":
            yield torch.roll(images, (-dy, -dx), (2, 3)), here
        else:
            # pad() takes what is added before and after; a negative number cuts.
            yield pad(images, (-dx, dx, -dy, dy)), here


def _axis(length: int, size: int, boundary: str) -> list[tuple[int, torch.Tensor]]:
    """Offsets along one axis, none first, and the positions (length,) that are compared at each."""
    place, edge = torch.arange(length), size // 2
    everywhere = torch.ones(length, dtype=torch.bool)
    if boundary == "none":
        return [(0, everywhere)]
    if boundary == "circular":
        return [(d, everywhere) for d in range(length)]
    inside = (place >= edge) & (place < length - edge)
    offsets = [(0, everywhere)]
    for d in range(1, length - 2 * edge):
        for step in (d, -d):
            there = place + step
            offsets.append((step, inside & (there >= edge) & (there < length - edge)))
    return offsets


def box_sums(squares: torch.Tensor, size: int, boundary: str) -> torch.Tensor:
    """Sums of (m, H, W) over the square of ``size`` pixels around each one."""
    edge = size // 2
    around = pad(
        squares[:, None], (edge,) * 4, mode="circular" if boundary == "circular" else "constant"
    )
    rows = avg_pool2d(around, (size, 1), stride=1, divisor_override=1)
    return avg_pool2d(rows, (1, size), stride=1, divisor_override=1)[:, 0]


def _exponentials(
    logits: torch.Tensor, log_weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of logits (m, ...) over images, and exp of the others less it, in their place.

    Of a location that no image reaches (-inf, all of them) 0.
    """
    if log_weights is not None:
        logits += log_weights.reshape(-1, *[1] * (logits.ndim - 1))
    log_max = logits.amax(dim=0)
    lowest_number = torch.finfo(torch.float32).min
    return log_max, logits.sub_(log_max.clamp(min=lowest_number)).exp_()


def _stacked(parts: Sequence[tuple[torch.Tensor, ...]]) -> Partial:
    """Of all queries, from the largest logit, total and weighted sum of each."""
    return Partial(*(torch.stack(column) for column in zip(*parts, strict=True)))
