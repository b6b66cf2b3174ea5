"""A SIMD vector type, ``Lanes``: 16 or 64 float32 numbers as one value in compiled functions.

Numba vectorises long plain loops. It fails where a branch follows every few numbers, because it
must assume that each store may change any array. A ``Lanes`` value lives in registers: the compiler
maps 16 numbers to one on AVX-512, two on AVX2, four on ARM. A block of 64 numbers has four
independent vectors, which hide each other's latency.

Inside a compiled function: ``load(array, i)`` and ``spread(number)`` give LANES numbers, and
``load_block`` and ``spread_block`` BLOCK numbers. Both have ``store(array, i, lanes)``, ``+ - *``
with lanes or a number, ``largest(lanes)``, ``larger(lanes, lanes)``, ``any_above(lanes, number)``,
``sum_of(lanes)`` and ``exp(lanes)``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, overload, register_model

from golddiff.system.numbers import F32

LANES = 16
BLOCK = 4 * LANES
# exp(-40) = 4e-18: images this many nats below the best are lost in float32 rounding.
NEGLIGIBLE = np.float32(40.0)
LINE = 64  # bytes of a cache line


class LanesType(types.Type):  # type: ignore[misc]
    """A vector of ``count`` numbers of an LLVM type."""

    def __init__(self, element: Any, count: int) -> None:
        super().__init__(name=f"Lanes({element}, {count})")
        self.element, self.count = element, count

    def of(self, element: Any) -> ir.VectorType:
        """The LLVM type of as many numbers of another type."""
        return ir.VectorType(element, self.count)


_LANES, _BLOCK = LanesType(ir.FloatType(), LANES), LanesType(ir.FloatType(), BLOCK)


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.of(kind.element))


def _address(context: Any, builder: Any, kind: Any, args: Any, vector: Any) -> Any:
    array, i, *_ = args
    if kind.layout != "C":  # addresses are computed without strides
        raise TypingError("lanes are read from and written to contiguous arrays alone")
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [i]), vector.as_pointer())


def _as_lanes(builder: Any, value: Any, lanes: LanesType) -> Any:
    """The value itself if it is lanes, or lanes that all hold the number."""
    if isinstance(value.type, ir.VectorType):
        return value
    undefined = ir.Constant(lanes.of(ir.FloatType()), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.IntType(32)(0))
    zeros = ir.Constant(lanes.of(ir.IntType(32)), [0] * lanes.count)
    return builder.shuffle_vector(first, first, zeros)


def _load_of(lanes: LanesType) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(typingctx: Any, array: Any, i: Any) -> Any:
        """Load numbers of a contiguous float32 or uint8 array from index i (unchecked)."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind, numbers = signature.args[0], lanes.of(ir.FloatType())
            if kind.dtype != types.uint8:
                return builder.load(_address(context, builder, kind, args, numbers), align=4)
            octets = _address(context, builder, kind, args, lanes.of(ir.IntType(8)))
            return builder.uitofp(builder.load(octets, align=1), numbers)

        return lanes(array, types.intp), generate

    return load


def _spread_of(lanes: LanesType) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def spread(typingctx: Any, number: Any) -> Any:
        """The same float32 number in every lane."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _as_lanes(builder, args[0], lanes)

        return lanes(types.float32), generate

    return spread


load, load_block = _load_of(_LANES), _load_of(_BLOCK)
spread, spread_block = _spread_of(_LANES), _spread_of(_BLOCK)


@intrinsic  # type: ignore[untyped-decorator]
def store(typingctx: Any, array: Any, i: Any, lanes: Any) -> Any:
    """Write lanes to a contiguous float32 array from index i (unchecked)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args, args[2].type)
        builder.store(args[2], address, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


def _define_arithmetic(symbol: Any, instruction: str) -> None:
    @intrinsic  # type: ignore[untyped-decorator]
    def lanewise(typingctx: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            second = _as_lanes(builder, args[1], a)
            # "contract" permits fused multiply-add, but no reordering.
            return getattr(builder, instruction)(args[0], second, flags=("contract",))

        return a(a, b), generate

    @overload(symbol)  # type: ignore[untyped-decorator]
    def operation(a: Any, b: Any) -> Any:
        def compute(a: Any, b: Any) -> Any:
            return lanewise(a, b)

        return compute if isinstance(a, LanesType) and b in (a, types.float32) else None


_define_arithmetic(operator.add, "fadd")
_define_arithmetic(operator.sub, "fsub")
_define_arithmetic(operator.mul, "fmul")


def _folded(builder: Any, lanes: Any, combine: Callable[[Any, Any], Any], count: int) -> Any:
    """Combine the upper with the lower half until ``count`` numbers are left."""
    while lanes.type.count > count:
        half = lanes.type.count // 2
        positions = ir.VectorType(ir.IntType(32), half)
        low, high = (
            builder.shuffle_vector(lanes, lanes, ir.Constant(positions, list(range(k, k + half))))
            for k in (0, half)
        )
        lanes = combine(low, high)
    return lanes


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic  # type: ignore[untyped-decorator]
def any_above(typingctx: Any, lanes: Any, number: Any) -> Any:
    """Whether any lane is above the number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        highest = _folded(builder, args[0], partial(_larger, builder), LANES)
        above = builder.fcmp_ordered(">", highest, _as_lanes(builder, args[1], _LANES))
        bits = builder.bitcast(above, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.IntType(LANES)(0))

    return types.boolean(lanes, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def larger(typingctx: Any, a: Any, b: Any) -> Any:
    """The elementwise maximum of lanes and lanes, or a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _larger(builder, args[0], _as_lanes(builder, args[1], a))

    return a(a, b), generate


def _reduction_by(combine: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def reduced(typingctx: Any, lanes: Any) -> Any:
        """One number, from all lanes."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            one = _folded(builder, args[0], partial(combine, builder), 1)
            return builder.extract_element(one, ir.IntType(32)(0))

        return types.float32(lanes), generate

    return reduced


largest = _reduction_by(_larger)
sum_of = _reduction_by(lambda builder, a, b: builder.fadd(a, b))


@intrinsic  # type: ignore[untyped-decorator]
def _rounded(typingctx: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = args[0].type
        kind, name = ir.FunctionType(vector, [vector]), f"llvm.rint.v{lanes.count}f32"
        return builder.call(get_or_insert_function(builder.module, kind, name), args)

    return lanes(lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def _two_to_the(typingctx: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integers = lanes.of(ir.IntType(32))
        n = builder.fptosi(args[0], integers)
        biased = builder.add(n, ir.Constant(integers, [127] * lanes.count))
        bits = builder.shl(biased, ir.Constant(integers, [23] * lanes.count))
        return builder.bitcast(bits, args[0].type)

    return lanes(lanes), generate


_LOWEST = np.float32(-87.0)  # below it exp is denormal or zero
_LOG2_E = np.float32(1.4426950408889634)
# log(2) in two parts: n * _LOG2_HIGH is exact for |n| < 2^9, so r keeps all its digits.
_LOG2_HIGH, _LOG2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_ONE = np.float32(1.0)
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def exp(t: Any) -> Any:
    """The exponential of t <= 88, with relative error 2e-7; t below -87 counts as -87.

    With n the integer nearest to t log2(e) and r = t - n log(2), the result is 2^n times the Taylor
    polynomial of exp(r), |r| <= log(2) / 2.
    """
    t = larger(t, _LOWEST)
    n = _rounded(t * _LOG2_E)
    r = (t - n * _LOG2_HIGH) - n * _LOG2_LOW
    q = r * _C7 + _C6
    q = r * q + _C5
    q = r * q + _C4
    q = r * q + _C3
    q = r * q + _C2
    return (r + r * r * q + _ONE) * _two_to_the(n)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def empty_numbers(count: int) -> F32:
    """An uninitialized float32 array (count,) that starts at a cache line.

    NumPy aligns arrays to 16 bytes only; lanes then straddle two cache lines, and masked sums take
    7 % longer.
    """
    numbers = np.empty(count + LINE // 4, np.float32)
    skipped = (-numbers.ctypes.data) % LINE // 4
    return numbers[skipped : skipped + count]
