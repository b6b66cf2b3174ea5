"""The terms whose masked sums are the logits: which form, and in which units.

With u_in = (x_n - x_in)^2 the logit of image i at output q is -sum_n M_nq u_in / (2 sigma^2). The
kernels work in stored units, centred on the value 0 (a uint8 is exact in them, and a query loses
no digits to a shift), and split u into one or two float16: with
the mask's 0 and 1, also exact, a matrix product in float16 with float32 sums then loses nothing but
the split's own rounding, 2^-12 of a term with one part and 2^-23 with two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from golddiff.noise import precision

FLOAT16_ROOM = 60_000.0  # float16 ends at 65,504

# On CIFAR-10 one float16 a term changed the outputs by 5e-4 of their RMS or less from here on, and
# two by 4e-6 or less at every noise level (docs/gpu.md).
ONE_PART_FROM = 1.0


@dataclass(frozen=True)
class Terms:
    """u = (unit * s + shift - first)(unit * s + shift - second) and logit = gain * sum(u).

    s is a stored value.

    Attributes:
        first, second: (b, D) float32.
        unit: (b,) float32 powers of two by which stored values are scaled, so that no term leaves
            the range of float16.
        shift: (b,) float32, the centre times ``unit``.
        gain: (b,) float32, below 0.
        parts: how many float16 a term is split into, 1 or 2.
    """

    first: torch.Tensor
    second: torch.Tensor
    unit: torch.Tensor
    shift: torch.Tensor
    gain: torch.Tensor
    parts: int


def terms(
    x: torch.Tensor, sigma: float, scale: float, offset: float, largest: float, parts: int | None
) -> Terms:
    """The terms of queries (b, D) float32 at one noise level.

    Above sigma 1 the terms lack x^2, which all images share and which only costs digits.

    Args:
        x: (b, D) queries in units of x0.
        sigma: noise level.
        scale: a stored value s stands for s * scale + offset.
        offset: see ``scale``.
        largest: no centred stored value is larger than this in magnitude.
        parts: 1 or 2; None for what the noise level needs.
    """
    stored = x / scale
    reach = stored.abs().amax(dim=1)
    if sigma > 1:
        first, second = 2 * stored, torch.zeros_like(stored)
        bound = largest * (largest + 2 * reach)
    else:
        first, second = stored, stored
        bound = (largest + reach) ** 2
    unit = torch.exp2(torch.floor(0.5 * torch.log2(FLOAT16_ROOM / bound.clamp(min=1e-30))))
    gain = -precision(sigma) * scale**2 / unit.double() ** 2
    # Past this the nearest image has all the weight anyway, and logits would overflow.
    gain = gain.clamp(min=-1e37 / FLOAT16_ROOM / x.shape[1])
    if parts is None:
        parts = 1 if sigma >= ONE_PART_FROM else 2
    shift = unit * (offset / scale)
    return Terms(first * unit[:, None], second * unit[:, None], unit, shift, gain.float(), parts)
