"""Transpose stored rows, in registers, into blocks with images side by side.

The masked kernels process each value for a run of images at once, which needs transposed rows.
Sixteen rows of sixteen neighbouring values are loaded and interleaved four times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from golddiff.kernels.lanes import BLOCK, LANES
from golddiff.support import Support
from golddiff.system.numbers import F32, I64

EMPTY_SLOT = np.float32(-1e37)  # log weight of an empty slot in the last block

_LOW = [i // 2 + LANES * (i % 2) for i in range(LANES)]
_HIGH = [i + LANES // 2 for i in _LOW]


@intrinsic  # type: ignore[untyped-decorator]
def _transpose(typingctx: Any, flat: Any, rows: Any, i: Any, column: Any, out: Any, at: Any) -> Any:
    """out[at + n * BLOCK + j] = flat[rows[i + j], column + n] for n and j below LANES."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = ir.IntType(8) if signature.args[0].dtype == types.uint8 else ir.FloatType()
        vector = ir.VectorType(element, LANES)
        align = 1 if element == ir.IntType(8) else 4
        index = ir.IntType(64)

        def array(k: int) -> Any:
            return context.make_array(signature.args[k])(context, builder, args[k])

        def masked(numbers: list[int]) -> Any:
            return ir.Constant(ir.VectorType(ir.IntType(32), LANES), numbers)

        source, chosen, target = array(0), array(1), array(4)
        stride = builder.extract_value(source.shape, 1)
        vectors = []
        for j in range(LANES):
            row = builder.load(builder.gep(chosen.data, [builder.add(args[2], index(j))]))
            start = builder.add(builder.mul(row, stride), args[3])
            pointer = builder.bitcast(builder.gep(source.data, [start]), vector.as_pointer())
            vectors.append(builder.load(pointer, align=align))
        half = LANES // 2
        for _ in range(4):
            pairs = [(vectors[j], vectors[j + half]) for j in range(half)]
            vectors = [
                builder.shuffle_vector(a, b, masked(order))
                for a, b in pairs
                for order in (_LOW, _HIGH)
            ]
        for n in range(LANES):
            start = builder.add(args[5], index(n * BLOCK))
            pointer = builder.bitcast(builder.gep(target.data, [start]), vector.as_pointer())
            builder.store(vectors[n], pointer, align=align)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(flat, rows, intp, intp, out, intp), generate


@njit(nogil=True, cache=True)
def gather(flat, rows, first, columns, out):  # type: ignore[no-untyped-def]
    """out[p * BLOCK + j] = flat[rows[first + j], columns[p]] for j < BLOCK.

    Slots past the last row repeat it. ``columns`` must come from :func:`runs`, so that each group
    of LANES columns is contiguous.
    """
    block = np.empty(BLOCK, np.int64)
    for j in range(BLOCK):
        block[j] = rows[min(first + j, len(rows) - 1)]
    whole = len(columns) // LANES * LANES
    for p in range(0, whole, LANES):
        for i in range(0, BLOCK, LANES):
            _transpose(flat, block, i, columns[p], out, p * BLOCK + i)
    for p in range(whole, len(columns)):
        for j in range(BLOCK):
            out[p * BLOCK + j] = flat[block[j], columns[p]]


def runs(wanted: NDArray[np.integer[Any]], d: int) -> I64:
    """Cover the wanted columns of 0..d-1 by runs of LANES contiguous columns.

    If d < LANES, all columns form one run. A column may be in two runs.
    """
    if d < LANES:
        return np.arange(d)
    starts = []
    entry = 0
    while entry < len(wanted):
        start = min(int(wanted[entry]), d - LANES)
        starts.append(start)
        entry = int(np.searchsorted(wanted, start + LANES))
    return (np.array(starts, np.int64)[:, None] + np.arange(LANES)).ravel()


def positions_in(columns: I64, values: NDArray[np.integer[Any]]) -> I64:
    """A position in ``columns`` of each value; ``columns`` must contain every value."""
    order = np.argsort(columns, kind="stable")
    return order[np.searchsorted(columns, values, sorter=order)]


def padded(n: int) -> int:
    """``n`` rounded up to whole blocks of images."""
    return -(-n // BLOCK) * BLOCK


def padded_weights(images: Support) -> F32:
    """The log weights of images, and EMPTY_SLOT up to whole blocks of images."""
    weights = np.full(padded(len(images)), EMPTY_SLOT)
    weights[: len(images)] = images.log_importance()
    return weights
