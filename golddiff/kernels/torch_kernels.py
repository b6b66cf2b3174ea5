"""The estimators' posteriors in plain torch, for devices other than the CPU.

These functions compute the same sums as the compiled CPU loops and return them as :data:`Sums`.
At low noise distances are sums of squared differences: |a|^2 - 2ab + |b|^2 would lose all digits.

Shared arguments: ``values`` (m, D) float32 images in [-1, 1], ``x`` (b, D) float32 queries, all
compared with these images, ``log_weights`` (m,) log importance ((b, m) if queries differ) or None,
``gain`` 1 / (2 sigma^2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product

import torch
from torch.nn.functional import avg_pool2d, pad

from golddiff.kernels.roots import squares

aten = torch.ops.aten

# Of b queries: the largest logit (b, L), the sum of exp(logit - largest) (b, L) and the same sum
# weighted by the values (b, D), as in :class:`golddiff.posterior.Posterior`, in float32.
Sums = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def squared_distances(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """||x_q - values_i||^2, (b, m)."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x, values, compute_mode=exact).square()


def whole_images(
    values: torch.Tensor, log_weights: torch.Tensor | None, x: torch.Tensor, gain: float
) -> Sums:
    """One logit per image; see :class:`golddiff.estimators.optimal.Optimal`."""
    logits = squared_distances(values, x).T * -gain
    log_max, weights = _exponentials(logits, log_weights)
    return log_max[:, None], weights.sum(dim=0)[:, None], weights.T @ values


def masked(
    values: torch.Tensor,
    log_weights: torch.Tensor | None,
    x: torch.Tensor,
    gain: float,
    mask_product: Callable[[torch.Tensor], torch.Tensor],
    summands: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Sums:
    """One logit per location: an output, or a pixel; see ``estimators/pca.py`` and ``shared.py``.

    ``mask_product`` maps squared differences (m, D) to their masked sums (m, L), ``summands``
    images (m, D) to the values (m, V) to sum, by default themselves.
    """
    summed, parts = values if summands is None else summands(values), []
    for query in x:
        logits = mask_product(squares(values, query, gain)) * -gain
        log_max, weights = _exponentials(logits, log_weights)
        by_location = summed.reshape(len(values), -1, weights.shape[1])
        sums = (weights[:, None] * by_location).sum(dim=0)
        parts.append((log_max, weights.sum(dim=0), sums.flatten()))
    return _stacked(parts)


def mask_dtype(device: torch.device) -> torch.dtype:
    """The dtype of a mask for :func:`mask_sums`: bfloat16 on an NVIDIA GPU with tensor cores."""
    if device.type != "cuda" or torch.version.cuda is None or not hasattr(aten.mm, "dtype"):
        return torch.float32
    is_ampere = torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.bfloat16 if is_ampere else torch.float32


def mask_sums(terms: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``terms`` (m, D) times a mask (D, L) of zeros and ones, in float32.

    A float32 number is the sum of three bfloat16 numbers, so three products with a bfloat16 mask
    keep every digit, in a quarter of the time of a float32 product (docs/results/speed.md).
    """
    if mask.dtype == torch.float32:
        return terms @ mask
    high = terms.to(mask.dtype)
    rest = terms - high
    middle = rest.to(mask.dtype)
    low = (rest - middle).to(mask.dtype)
    total: torch.Tensor = aten.mm.dtype(high, mask, torch.float32)
    for part in (middle, low):
        total += aten.mm.dtype(part, mask, torch.float32)
    return total


def with_differences(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """As :meth:`golddiff.estimators.seamless.Seamless.summands`, in torch."""
    images = values.reshape(-1, *shape)
    down = pad(images[:, :, 1:] - images[:, :, :-1], (0, 0, 0, 1))
    right = pad(images[..., 1:] - images[..., :-1], (0, 1))
    return torch.stack([images, down, right], dim=1).flatten(1)


def patches(
    values: torch.Tensor,
    log_weights: torch.Tensor | None,
    x: torch.Tensor,
    gain: float,
    shape: tuple[int, ...],
    size: int,
    boundary: str,
) -> Sums:
    """One logit per output pixel, image and position; see :class:`golddiff.estimators.kamb.Kamb`.

    For each offset between positions, the distances of all patches of all images are the squared
    differences to shifted images, summed over squares of pixels.

    Images have a shape (C, H, W), patches ``size`` x ``size`` pixels, with odd ``size``.
    ``boundary`` is "none", "circular" or "zeros"; for patches as large as the shorter side, callers
    pass "none" instead of "zeros".
    """
    images = values.reshape(-1, *shape)

    def of_offsets(query: torch.Tensor) -> Iterator[Sums]:
        for shifted, compared in offsets(images, size, boundary):
            distances = box_sums(squares(shifted, query, gain).sum(dim=1), size, boundary)
            logits = distances * -gain
            log_max, weights = _exponentials(torch.where(compared, logits, -torch.inf), log_weights)
            yield log_max, weights.sum(dim=0), torch.einsum("mhw,mchw->chw", weights, shifted)

    merged = [reduce(_merged, of_offsets(query)) for query in x.reshape(-1, *shape)]
    return _stacked([tuple(sums.flatten() for sums in of_query) for of_query in merged])


def patch_sets(
    values: torch.Tensor,
    log_weights: torch.Tensor | None,
    x: torch.Tensor,
    gain: float,
    masks: torch.Tensor,
    padded_pixels: torch.Tensor,
) -> Sums:
    """One logit per patch; see :func:`golddiff.kernels.patch_sets.patch_means`.

    ``masks`` (K, P) float32 mark the patches' pixels; ``padded_pixels`` (width, K) are
    :attr:`golddiff.kernels.patch_sets.PatchSet.padded_pixels`.
    """
    pixels = masks.shape[1]
    parts = []
    for query in x:
        of_pixels = squares(values, query, gain).reshape(len(values), -1, pixels).sum(dim=1)
        log_max, weights = _exponentials((of_pixels @ masks.T) * -gain, log_weights)
        sums = (values.T @ weights).reshape(-1, pixels, len(masks))  # (C, P, K)
        index = padded_pixels.clamp(min=0).expand(len(sums), -1, -1)
        padded = sums.gather(1, index) * (padded_pixels >= 0)
        parts.append((log_max, weights.sum(dim=0), padded.flatten()))
    return _stacked(parts)


def lowest(distances: torch.Tensor, k: int) -> torch.Tensor:
    """Ascending indices (b, k) of the k lowest of each row (b, n); ties go to the lower index."""
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
    """Yield images (m, C, H, W) shifted by each offset, and the pixels (H, W) to compare there.

    The first offset is zero and compares every pixel, so that every pixel has a finite logit.
    """
    height, width = images.shape[2:]
    axes = [_axis(length, size, boundary) for length in (height, width)]
    for (dy, rows), (dx, columns) in product(*axes):
        compared = (rows[:, None] & columns[None, :]).to(images.device)
        if boundary == "circular":
            yield torch.roll(images, (-dy, -dx), (2, 3)), compared
        else:
            # Negative padding crops.
            yield pad(images, (-dx, dx, -dy, dy)), compared


def _axis(length: int, size: int, boundary: str) -> Iterator[tuple[int, torch.Tensor]]:
    """Offsets along one axis, zero first, and the positions (length,) to compare at each."""
    from golddiff.kernels.kamb_cpu import Axis  # its compiled kernels import slowly

    axis = Axis.of(length, size, boundary)
    for first, last, start in axis.runs.tolist():
        position = start + axis.reach
        compared = torch.zeros(length, dtype=torch.bool, device="cpu")
        compared[first:last] = True
        yield int(axis.image[position] - axis.query[position]), compared


def box_sums(terms: torch.Tensor, size: int, boundary: str) -> torch.Tensor:
    """Sums of (m, H, W) over the square of side ``size`` around each pixel."""
    edge = size // 2
    padded = pad(
        terms[:, None], (edge,) * 4, mode="circular" if boundary == "circular" else "constant"
    )
    rows = avg_pool2d(padded, (size, 1), stride=1, divisor_override=1)
    return avg_pool2d(rows, (1, size), stride=1, divisor_override=1)[:, 0]


def _exponentials(
    logits: torch.Tensor, log_weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logit over images (m, ...), and exp(logit - largest) computed in place.

    The exponentials are 0 at a location where all logits are -inf.
    """
    if log_weights is not None:
        shape = (-1, *[1] * (logits.ndim - 1))
        logits += log_weights.reshape(shape) if log_weights.ndim == 1 else log_weights.T
    log_max = logits.amax(dim=0)
    lowest_number = torch.finfo(torch.float32).min
    return log_max, logits.sub_(log_max.clamp(min=lowest_number)).exp_()


def _merged(one: Sums, other: Sums) -> Sums:
    """The sums over both parts together, of one query; locations are the last dimensions."""
    log_max = torch.maximum(one[0], other[0])
    scale, other_scale = torch.exp(one[0] - log_max), torch.exp(other[0] - log_max)
    total = one[1] * scale + other[1] * other_scale
    return log_max, total, one[2] * scale + other[2] * other_scale


def _stacked(parts: Sequence[tuple[torch.Tensor, ...]]) -> Sums:
    """The sums of all queries, from each one's largest logit, total and weighted sum."""
    log_max, total, weighted = map(torch.stack, zip(*parts, strict=True))
    return log_max, total, weighted
