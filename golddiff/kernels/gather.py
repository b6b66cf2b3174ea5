"""Stored rows to blocks of images side by side: a transpose in registers.

The masked kernels add whole runs of images, value by value, so stored rows must be turned. Sixteen
rows of sixteen neighbouring values are read and interleaved four times, which transposes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from golddiff.kernels.lanes import LANES
from golddiff.system.numbers import I64

BLOCK = 4 * LANES  # images a block: four registers of sums, none of which waits for another
ABSENT = np.float32(-1e37)  # log weight of a place in the last block that holds no image
# exp(-40) is 4e-18: a block of images so many nats below the best is lost in float32 rounding.
NEGLIGIBLE = np.float32(40.0)

_LOW = [i // 2 + LANES * (i % 2) for i in range(LANES)]
_HIGH = [i + LANES // 2 for i in _LOW]


@intrinsic  # type: ignore[untyped-decorator]
def _turn(typingctx: Any, flat: Any, rows: Any, i: Any, column: Any, out: Any, at: Any) -> Any:
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
        lines = []
        for j in range(LANES):
            row = builder.load(builder.gep(chosen.data, [builder.add(args[2], index(j))]))
            place = builder.add(builder.mul(row, stride), args[3])
            pointer = builder.bitcast(builder.gep(source.data, [place]), vector.as_pointer())
            lines.append(builder.load(pointer, align=align))
        half = LANES // 2
        for _ in range(4):
            pairs = [(lines[j], lines[j + half]) for j in range(half)]
            lines = [
                builder.shuffle_vector(a, b, masked(order))
                for a, b in pairs
                for order in (_LOW, _HIGH)
            ]
        for n in range(LANES):
            place = builder.add(args[5], index(n * BLOCK))
            pointer = builder.bitcast(builder.gep(target.data, [place]), vector.as_pointer())
            builder.store(lines[n], pointer, align=align)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(flat, rows, intp, intp, out, intp), generate


@njit(nogil=True, cache=True)
def gather(flat, rows, first, columns, out):  # type: ignore[no-untyped-def]
    """out[p * BLOCK + j] = flat[rows[first + j], columns[p]] for BLOCK rows, or those there are.

    Places past the last row repeat it. ``columns`` must be :func:`runs`: every LANES of them
    neighbours.
    """
    block = np.empty(BLOCK, np.int64)
    for j in range(BLOCK):
        block[j] = rows[min(first + j, len(rows) - 1)]
    whole = len(columns) // LANES * LANES
    for p in range(0, whole, LANES):
        for i in range(0, BLOCK, LANES):
            _turn(flat, block, i, columns[p], out, p * BLOCK + i)
    for p in range(whole, len(columns)):
        for j in range(BLOCK):
            out[p * BLOCK + j] = flat[block[j], columns[p]]


@njit(nogil=True, cache=True)
def gather_weights(log_weights, first, out):  # type: ignore[no-untyped-def]
    """The log weights of the same rows, (BLOCK,); ABSENT past the last."""
    for j in range(BLOCK):
        out[j] = log_weights[first + j] if first + j < len(log_weights) else ABSENT


def runs(wanted: NDArray[np.integer[Any]], d: int) -> I64:
    """Columns that cover the wanted ones of 0..d-1 by runs of LANES neighbours.

    Fewer than LANES columns in all (d small) are one run; a column may be in two runs.
    """
    if d < LANES:
        return np.arange(d)
    starts = []
    at = 0
    while at < len(wanted):
        start = min(int(wanted[at]), d - LANES)
        starts.append(start)
        at = int(np.searchsorted(wanted, start + LANES))
    return (np.array(starts, np.int64)[:, None] + np.arange(LANES)).ravel()


def places(columns: I64, values: NDArray[np.integer[Any]]) -> I64:
    """A place in ``columns`` of each value, all of which must be there."""
    order = np.argsort(columns, kind="stable")
    found: I64 = order[np.searchsorted(columns, values, sorter=order)]
    return found


def padded(n: int) -> int:
    """``n`` rounded up to whole blocks of images."""
    return -(-n // BLOCK) * BLOCK
