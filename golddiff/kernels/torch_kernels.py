"""What the estimators compute, in plain torch: for any device other than the processor.

The compiled loops of this folder are for the processor. Here the same sums are a few calls of
torch each, and a :class:`Partial` holds what they give. Differences are true differences, never
|a|^2 - 2ab + |b|^2: at low noise that would lose every digit.

Everywhere: ``values`` (m, D) float32 are images in [-1, 1], ``x`` (b, D) float32 queries that all
see these images, ``log_weights`` (m,) their log importance or None, ``gain`` 1 / (2 sigma^2).
"""

from __future__ import annotations

from collections.abc import Iterator
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
    logits = _weighted(squared_distances(values, x) * -gain, log_weights)
    log_max = logits.amax(dim=1, keepdim=True)
    weights = torch.exp(logits - log_max)
    return Partial(log_max, weights.sum(dim=1, keepdim=True), weights @ values)


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
        if log_weights is not None:
            logits += log_weights[:, None]
        log_max = logits.amax(dim=0)
        weights = logits.sub_(log_max).exp_()
        parts.append((log_max, weights.sum(dim=0), (weights * values).sum(dim=0)))
    return Partial(*(torch.stack(column) for column in zip(*parts, strict=True)))


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
    done: Partial | None = None
    for query in x.reshape(-1, *shape):
        best: Partial | None = None
        for shifted, here in offsets(images, size, boundary):
            logits = box_sums((query - shifted).square().sum(dim=1), size, boundary)
            logits = logits * -gain
            if log_weights is not None:
                logits += log_weights[:, None, None]
            logits = torch.where(here, logits, -torch.inf)
            # (H, W): the largest over images; finite wherever some position is compared.
            log_max = logits.amax(dim=0)
            weights = torch.exp(logits - log_max.clamp(min=torch.finfo(torch.float32).min))
            sums = torch.einsum("mhw,mchw->chw", weights, shifted)
            part = Partial(*(a.reshape(1, -1) for a in (log_max, weights.sum(dim=0), sums)))
            best = part if best is None else best.merge(part)
        assert best is not None
        done = best if done is None else _stacked(done, best)
    assert done is not None
    return done


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
        logits = (squares @ masks.T) * -gain
        if log_weights is not None:
            logits += log_weights[:, None]
        log_max = logits.amax(dim=0)
        weights = logits.sub_(log_max).exp_()
        sums = (values.T @ weights).reshape(-1, pixels, len(masks))  # (C, P, K)
        held = sums.gather(1, places.clamp(min=0).expand(len(sums), -1, -1)) * (places >= 0)
        parts.append((log_max, weights.sum(dim=0), held.flatten()))
    return Partial(*(torch.stack(column) for column in zip(*parts, strict=True)))


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


def _weighted(logits: torch.Tensor, log_weights: torch.Tensor | None) -> torch.Tensor:
    return logits if log_weights is None else logits + log_weights


def _stacked(one: Partial, other: Partial) -> Partial:
    return Partial(
        torch.cat([one.log_max, other.log_max]),
        torch.cat([one.total, other.total]),
        torch.cat([one.weighted, other.weighted]),
    )
