"""The masked posterior on a GPU: distances, online softmax and sums in one kernel.

One program owns a tile of neighbouring outputs, one query and a part of the support. It walks over
its images a block at a time: gathers their stored pixels, converts and squares differences in
registers, multiplies by the mask's blocks on the matrix units, and folds the logits into a running
(max, sum, weighted sum). No array of (images, D) leaves the registers.

Equal to :mod:`golddiff.kernels.masked_torch`; tests hold it to that and to float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from golddiff.kernels.mask_blocks import MaskBlocks
from golddiff.kernels.masked_terms import Terms
from golddiff.kernels.partial import Partial
from golddiff.kernels.triton_support import parts_of


@triton.jit  # type: ignore[untyped-decorator]
def masked_kernel(  # type: ignore[no-untyped-def]
    pixels, rows, log_weights, first_root, second_root, unit, shift, gain, start, inputs, values,
    log_max, total, weighted, queries, k, width, row_stride, part_size,
    WEIGHTED: tl.constexpr, PARTS: tl.constexpr,
    IMAGES: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """(max, sum, weighted sum) of one tile of outputs, one query and one part of its support."""
    # Tiles run fastest: those at work together read the same images, through the cache.
    tile, query, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    scale, slope = tl.load(unit + query), tl.load(gain + query)
    centre = tl.load(shift + query)
    first_entry, last_entry = tl.load(start + tile), tl.load(start + tile + 1)
    within = tl.arange(0, OUTPUTS)[:, None] * INPUTS + tl.arange(0, INPUTS)[None, :]
    best = tl.full([OUTPUTS], float("-inf"), tl.float32)
    sums = tl.zeros([OUTPUTS], tl.float32)
    moments = tl.zeros([OUTPUTS], tl.float32)
    stop = tl.minimum((part + 1) * part_size, k)
    for begin in range(part * part_size, stop, IMAGES):
        i = begin + tl.arange(0, IMAGES)
        present = i < stop
        row = tl.load(rows + query * row_stride + i, mask=present, other=0).to(tl.int64) * width
        # Outputs lie along the first axis, so that a thread holds few of the running sums.
        logits = tl.zeros([OUTPUTS, IMAGES], tl.float32)
        for entry in range(first_entry, last_entry):
            n = tl.load(inputs + entry) * INPUTS + tl.arange(0, INPUTS)
            stored = tl.load(pixels + row[:, None] + n[None, :]).to(tl.float32) * scale + centre
            a = tl.load(first_root + query * width + n)
            b = tl.load(second_root + query * width + n)
            term = tl.trans((stored - a[None, :]) * (stored - b[None, :]))
            mask = tl.load(values + entry * (INPUTS * OUTPUTS) + within)
            high = term.to(tl.float16)
            logits = tl.dot(mask, high, logits)
            if PARTS == 2:
                logits = tl.dot(mask, (term - high.to(tl.float32)).to(tl.float16), logits)
        logits = logits * slope
        if WEIGHTED:
            prior = tl.load(log_weights + query * row_stride + i, mask=present, other=0.0)
            logits += prior[None, :]
        logits = tl.where(present[None, :], logits, float("-inf"))
        top = tl.maximum(best, tl.max(logits, axis=1))
        # -inf - -inf would be NaN: where no image counts yet any scale will do.
        safe = tl.where(top == float("-inf"), 0.0, top)
        shrink = tl.exp(best - safe)
        weights = tl.exp(logits - safe[:, None])
        here = tl.trans(tl.load(pixels + row[:, None] + q[None, :])).to(tl.float32)
        sums = sums * shrink + tl.sum(weights, axis=1)
        moments = moments * shrink + tl.sum(weights * here, axis=1)
        best = top
    out = (part * queries + query) * width + q
    tl.store(log_max + out, best)
    tl.store(total + out, sums)
    tl.store(weighted + out, moments)


def masked_partials(
    pixels: torch.Tensor,
    rows: torch.Tensor,
    log_weights: torch.Tensor | None,
    terms: Terms,
    mask: MaskBlocks,
    scale: float,
    offset: float,
    part_size: int | None = None,
) -> Partial:
    """Partial posteriors of consecutive parts of a support, with logits as in ``masked_terms``.

    Args:
        pixels: (N, width) stored values, uint8 or float32, contiguous; width is D rounded up to
            whole blocks of inputs and of outputs, see :func:`golddiff.device.order.padded_width`.
        rows: (b, k) int32 or int64 rows for each query, or (1, k) for all.
        log_weights: like ``rows``, float32, added to the logits; None for zeros; -inf leaves a
            place out.
        terms: of the queries.
        mask: of the noise level.
        scale: a stored value s stands for s * scale + offset.
        offset: see ``scale``.
        part_size: images a part; None for what fills the GPU.

    Returns:
        A partial posterior (parts, b, D) of every part.
    """
    tiling, d = mask.tiling, mask.d
    b = len(terms.first)
    shared, k = rows.shape
    width = pixels.shape[1]
    tiles = len(mask.start) - 1
    if width < max(-(-d // tiling.inputs) * tiling.inputs, tiles * tiling.outputs):
        raise ValueError(f"pixels: got rows of {width}, expected whole blocks of the mask's {d}")
    if part_size is None:
        parts, part_size = parts_of(k, tiling.images, tiles * b)
    else:
        parts = -(-k // part_size)
    padding = (0, width - d)
    first, second = (torch.nn.functional.pad(t, padding) for t in (terms.first, terms.second))
    log_max, total, weighted = (
        torch.empty((parts, b, width), dtype=torch.float32, device=pixels.device) for _ in range(3)
    )
    masked_kernel[(tiles, b, parts)](
        pixels, rows.contiguous(), rows if log_weights is None else log_weights.contiguous(),
        first, second, terms.unit, terms.shift, terms.gain, mask.start, mask.inputs, mask.values,
        log_max, total, weighted, b, k, width, k if shared > 1 else 0, part_size,
        WEIGHTED=log_weights is not None, PARTS=terms.parts, IMAGES=tiling.images,
        INPUTS=tiling.inputs, OUTPUTS=tiling.outputs, num_warps=tiling.warps, num_stages=3,
    )  # fmt: skip
    log_max, total, weighted = (t[..., :d] for t in (log_max, total, weighted))
    # Weighted sums of stored values become those of values.
    return Partial(log_max, total, weighted * scale + total * offset)
