"""Kamb's patch posterior in plain torch, on any device: the twin of the Triton kernels.

Patches are gathered by the same tables; their distances are float32 differences, a chunk of images
and of positions at a time.
"""

from __future__ import annotations

import torch

from golddiff.kernels.partial import Partial
from golddiff.kernels.patch_tables import PatchTables
from golddiff.noise import precision

CHUNK_BYTES = 1 << 27


def patch_partials(
    pixels: torch.Tensor,
    rows: torch.Tensor,
    log_weights: torch.Tensor | None,
    x: torch.Tensor,
    sigma: float,
    tables: PatchTables,
    scale: float,
    offset: float,
) -> Partial:
    """As :func:`golddiff.kernels.kamb_triton.patch_partials`, in one part."""
    b, d = x.shape
    members, channels = tables.members.long(), len(tables.centres)
    patch, locations = members.shape
    gain = -min(precision(sigma), 1e18)
    same = tables.classes[:, None] == tables.classes[None, :]
    # Places outside an image, -1, find the value 0 in a last column.
    query = torch.nn.functional.pad(x, (0, 1))[:, members]  # (b, P, L)
    step = max(1, CHUNK_BYTES // (8 * b * locations * max(locations, patch)))
    done: Partial | None = None
    for i in range(0, rows.shape[1], step):
        stored = pixels[rows[:, i : i + step].long(), :d].to(torch.float32)
        values = torch.nn.functional.pad(stored * scale + offset, (0, 1))
        theirs = values[:, :, members].expand(b, -1, -1, -1)  # (b, c, P, L)
        distance = torch.zeros(b, theirs.shape[1], locations, locations, device=x.device)
        for n in range(patch):
            distance += (query[:, None, n, :, None] - theirs[:, :, n, None, :]).square()
        logits = distance * gain
        if log_weights is not None:
            logits += log_weights[:, i : i + step, None, None]
        logits = torch.where(same, logits, -torch.inf).permute(0, 2, 1, 3)  # (b, u, c, v)
        log_max = logits.amax(dim=(2, 3))
        safe = torch.where(torch.isneginf(log_max), torch.zeros_like(log_max), log_max)
        weights = torch.exp(logits - safe[:, :, None, None])
        centres = values[:, :, tables.centres.long()].expand(b, -1, -1, -1)  # (b, c, C, v)
        moments = torch.einsum("bucv,bcnv->bnu", weights, centres)
        part = Partial(log_max, weights.sum(dim=(2, 3)), moments.reshape(b, channels * locations))
        done = part if done is None else done.merge(part)
    if done is None:
        raise ZeroDivisionError("the posterior mean of no images is not defined")
    return Partial(done.log_max[None], done.total[None], done.weighted[None])
