"""A SIMD vector type, ``Lanes``: LANES float32 numbers as one value in compiled functions.

Numba vectorises long plain loops. It fails where a branch follows every few numbers, because it
must assume that each store may change any array. A ``Lanes`` value lives in registers: the compiler
maps it to one on AVX-512, two on AVX2, four on ARM.

Inside a compiled function: ``load(array, i)``, ``store(array, i, lanes)``, ``spread(number)``,
``+ - *`` between lanes, ``largest(lanes)``, ``larger(lanes, lanes)``, ``any_above(lanes, number)``,
``sum_of(lanes)`` and ``exp(lanes)``.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, overload, register_model

from golddiff.system.numbers import F32

LANES = 16
LINE = 64  # bytes of a cache line

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_OCTETS = ir.VectorType(ir.IntType(8), LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)


class _LanesType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=f"Lanes({LANES})")


_LANES = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _address(
    context: Any, builder: Any, kind: Any, array: Any, i: Any, lanes: Any = _VECTOR
) -> Any:
    if kind.layout != "C":  # addresses are computed without strides
        raise TypingError("lanes are read from and written to contiguous arrays alone")
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [i]), lanes.as_pointer())


def _spread(builder: Any, number: Any) -> Any:
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, ir.Constant(_INTEGERS, [0] * LANES))


@intrinsic  # type: ignore[untyped-decorator]
def load(typingctx: Any, array: Any, i: Any) -> Any:
    """Load LANES numbers of a contiguous float32 or uint8 array from index i (unchecked)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        if kind.dtype != types.uint8:
            return builder.load(_address(context, builder, kind, *args), align=4)
        stored = builder.load(_address(context, builder, kind, args[0], args[1], _OCTETS), align=1)
        return builder.uitofp(stored, _VECTOR)

    return _LANES(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(typingctx: Any, array: Any, i: Any, lanes: Any) -> Any:
    """Write lanes to a contiguous float32 array from index i (unchecked)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _address(context, builder, signature.args[0], *args[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


@intrinsic  # type: ignore[untyped-decorator]
def spread(typingctx: Any, number: Any) -> Any:
    """The same float32 number in every lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _spread(builder, args[0])

    return _LANES(types.float32), generate


def _define_arithmetic(symbol: Any, instruction: str) -> None:
    @intrinsic  # type: ignore[untyped-decorator]
    def lanewise(typingctx: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # "contract" permits fused multiply-add, but no reordering.
            return getattr(builder, instruction)(*args, flags=("contract",))

        return _LANES(_LANES, _LANES), generate

    @overload(symbol)  # type: ignore[untyped-decorator]
    def operation(a: Any, b: Any) -> Any:
        def compute(a: Any, b: Any) -> Any:
            return lanewise(a, b)

        return compute if a is _LANES and b is _LANES else None


_define_arithmetic(operator.add, "fadd")
_define_arithmetic(operator.sub, "fsub")
_define_arithmetic(operator.mul, "fmul")


@intrinsic  # type: ignore[untyped-decorator]
def any_above(typingctx: Any, lanes: Any, number: Any) -> Any:
    """Whether any lane is above the number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        above = builder.fcmp_ordered(">", args[0], _spread(builder, args[1]))
        bits = builder.bitcast(above, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.IntType(LANES)(0))

    return types.boolean(_LANES, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def larger(typingctx: Any, a: Any, b: Any) -> Any:
    """The elementwise maximum."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return _LANES(_LANES, _LANES), generate


@intrinsic  # type: ignore[untyped-decorator]
def largest(typingctx: Any, lanes: Any) -> Any:
    """The largest of the lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        best = args[0]
        for half in (8, 4, 2, 1):
            rotation = ir.Constant(_INTEGERS, [(k + half) % LANES for k in range(LANES)])
            rotated = builder.shuffle_vector(best, best, rotation)
            best = builder.select(builder.fcmp_ordered(">", best, rotated), best, rotated)
        return builder.extract_element(best, ir.IntType(32)(0))

    return types.float32(_LANES), generate


@intrinsic  # type: ignore[untyped-decorator]
def sum_of(typingctx: Any, lanes: Any) -> Any:
    """The sum of the lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total = args[0]
        for half in (8, 4, 2, 1):
            rotation = ir.Constant(_INTEGERS, [(k + half) % LANES for k in range(LANES)])
            total = builder.fadd(total, builder.shuffle_vector(total, total, rotation))
        return builder.extract_element(total, ir.IntType(32)(0))

    return types.float32(_LANES), generate


@intrinsic  # type: ignore[untyped-decorator]
def _rounded(typingctx: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name, kind = f"llvm.rint.v{LANES}f32", ir.FunctionType(_VECTOR, [_VECTOR])
        return builder.call(get_or_insert_function(builder.module, kind, name), args)

    return _LANES(_LANES), generate


@intrinsic  # type: ignore[untyped-decorator]
def _two_to_the(typingctx: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n = builder.fptosi(args[0], _INTEGERS)
        biased = builder.add(n, ir.Constant(_INTEGERS, [127] * LANES))
        bits = builder.shl(biased, ir.Constant(_INTEGERS, [23] * LANES))
        return builder.bitcast(bits, _VECTOR)

    return _LANES(_LANES), generate


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
    t = larger(t, spread(_LOWEST))
    n = _rounded(t * spread(_LOG2_E))
    r = (t - n * spread(_LOG2_HIGH)) - n * spread(_LOG2_LOW)
    q = spread(_C6) + r * spread(_C7)
    q = spread(_C5) + r * q
    q = spread(_C4) + r * q
    q = spread(_C3) + r * q
    q = spread(_C2) + r * q
    return (spread(_ONE) + (r + r * r * q)) * _two_to_the(n)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def empty_numbers(count: int) -> F32:
    """An uninitialized float32 array (count,) that starts at a cache line.

    NumPy aligns arrays to 16 bytes only; lanes then straddle two cache lines, and masked sums take
    7 % longer.
    """
    numbers = np.empty(count + LINE // 4, np.float32)
    skipped = (-numbers.ctypes.data) % LINE // 4
    return numbers[skipped : skipped + count]
