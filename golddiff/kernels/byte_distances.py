"""Squared distances of stored bytes to queries by integer products.

|z - b|^2 = |z|^2 - 2 z.b + |b|^2 takes half the operations of a sum of squared differences. In
float32 it suffers cancellation, and its result depends on the order of summation. So each query is
quantized to multiples of its own unit, and 16-bit products are summed in 32 bits. These sums are
exact on every processor, and most have an instruction that adds two products at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic
from numpy.typing import NDArray

from golddiff.kernels.lanes import LanesType
from golddiff.kernels.stored import Stored
from golddiff.system.numbers import F32, F64, I64

WIDTH = 32  # integers multiplied at a time
MIDDLE = 128  # the stored byte that represents 0
IMAGES, QUERIES = 2, 4  # images and queries of a pass, whose sums fit in registers
STRETCH = 2**16  # number of squared bytes whose sum fits in 32 bits
IMAGES_AT_ONCE = 64  # images that stay in a cache while all queries are compared

_INT16, _INT32 = (ir.VectorType(ir.IntType(bits), WIDTH) for bits in (16, 32))
_SUMS = ir.VectorType(ir.IntType(32), WIDTH // 2)
_sums_type = LanesType(ir.IntType(32), WIDTH // 2)


@intrinsic  # type: ignore[untyped-decorator]
def _zero_sums(typingctx: Any) -> Any:
    """Sums of 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(_SUMS, [0] * (WIDTH // 2))

    return _sums_type(), generate


@intrinsic  # type: ignore[untyped-decorator]
def _add_products(typingctx: Any, sums: Any, a: Any, i: Any, b: Any, j: Any) -> Any:
    """Add the products of WIDTH int16 numbers from a[i] and b[j] (unchecked)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def wide(array: int) -> Any:
            data = context.make_array(signature.args[array])(context, builder, args[array]).data
            pointer = builder.bitcast(builder.gep(data, [args[array + 1]]), _INT16.as_pointer())
            return builder.sext(builder.load(pointer, align=2), _INT32)

        def every_other(first: int) -> Any:
            order = ir.Constant(_SUMS, list(range(first, WIDTH, 2)))
            return builder.shuffle_vector(products, products, order)

        products = builder.mul(wide(1), wide(3))
        # The compiler recognises this pattern as one instruction.
        return builder.add(args[0], builder.add(every_other(0), every_other(1)))

    return _sums_type(_sums_type, a, types.intp, b, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _total(typingctx: Any, sums: Any) -> Any:
    """The total of the sums, int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [_SUMS])
        name = f"llvm.vector.reduce.add.v{WIDTH // 2}i32"
        return builder.call(get_or_insert_function(builder.module, kind, name), args)

    return types.int32(_sums_type), generate


@dataclass(frozen=True)
class QuantizedQueries:
    """Queries (Q, K) quantized to integer multiples of a unit per query."""

    whole: NDArray[np.int16]  # (Q, K) the integers
    units: F64  # (Q,) the units

    @classmethod
    def of(cls, z: F32) -> QuantizedQueries:
        """Quantize with the smallest units for which sums of products with bytes fit 32 bits."""
        steps = min(2**15 - 1, 2**31 // (MIDDLE * z.shape[1]) - 1)
        maximum = np.abs(z).max(axis=1).astype(np.float64)
        units = np.where(maximum > 0, maximum, 1.0) / steps
        return cls(np.rint(z / units[:, None]).astype(np.int16), units)

    @property
    def values(self) -> F64:
        """The quantized queries (Q, K), within half a unit of the originals."""
        return self.whole * self.units[:, None]


@njit(nogil=True, cache=True)
def _distances(flat, rows, whole, norm, cross, unit, out, begin):  # type: ignore[no-untyped-def]
    width = whole.shape[1]
    images, squares = np.zeros((IMAGES_AT_ONCE, width), np.int16), np.empty(IMAGES_AT_ONCE)
    products = np.empty((IMAGES, len(whole)), np.int32)
    a, b = images.ravel(), whole.ravel()
    for first in range(0, len(rows), IMAGES_AT_ONCE):
        count = min(IMAGES_AT_ONCE, len(rows) - first)
        for i in range(count):
            row, image = rows[first + i], images[i]
            for k in range(flat.shape[1]):
                image[k] = np.int16(flat[row, k]) - np.int16(MIDDLE)
            squares[i] = 0.0
            for start in range(0, width, STRETCH):
                c = _zero_sums()
                for k in range(start, min(start + STRETCH, width), WIDTH):
                    c = _add_products(c, image, k, image, k)
                squares[i] += _total(c)
        for i in range(0, count, IMAGES):
            at, after = i * width, (i + 1) * width
            for query in range(0, len(whole), QUERIES):
                o, p = query * width, (query + 1) * width
                q, r = (query + 2) * width, (query + 3) * width
                c = d = e = f = g = h = s = t = _zero_sums()
                for k in range(0, width, WIDTH):
                    m, n = at + k, after + k
                    c, d = _add_products(c, a, m, b, o + k), _add_products(d, a, m, b, p + k)
                    e, f = _add_products(e, a, m, b, q + k), _add_products(f, a, m, b, r + k)
                    g, h = _add_products(g, a, n, b, o + k), _add_products(h, a, n, b, p + k)
                    s, t = _add_products(s, a, n, b, q + k), _add_products(t, a, n, b, r + k)
                products[0, query], products[0, query + 1] = _total(c), _total(d)
                products[0, query + 2], products[0, query + 3] = _total(e), _total(f)
                products[1, query], products[1, query + 1] = _total(g), _total(h)
                products[1, query + 2], products[1, query + 3] = _total(s), _total(t)
            for j in range(i, min(i + IMAGES, count)):
                for query in range(len(out)):
                    square = norm[query] - cross[query] * products[j - i, query] + unit * squares[j]
                    out[query, begin + first + j] = max(square, 0.0)


def byte_distances(
    stored: Stored, rows: I64, queries: QuantizedQueries, out: F32, begin: int
) -> None:
    """Write ||z_q - scale (byte_i - 128)||^2 to out[q, begin + i], on one thread.

    ``stored`` holds (N, K) bytes in memory, ``rows`` (n,) the images i, ``queries`` (Q, K) the z.
    """
    q, k = queries.whole.shape
    whole = np.zeros((-(-q // QUERIES) * QUERIES, -(-k // WIDTH) * WIDTH), np.int16)
    whole[:q, :k] = queries.whole
    norm, cross = np.square(queries.values).sum(axis=1), 2 * queries.units * stored.scale
    _distances(stored.flat, rows, whole, norm, cross, stored.scale**2, out, begin)
