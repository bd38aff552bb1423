# SPDX-License-Identifier: Apache-2.0
"""Rounding to small floats and codebooks, and their bit patterns.

A small float has a unit in the last place that grows with the exponent: dividing by it makes rounding to a float the
rounding to an integer. Casts of the libraries do the same faster, where they exist.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from fewbit.numerics.dtypes import CodebookFormat, Dtype, FloatFormat, value_table
from fewbit.numerics.ops import (
    Array,
    bitcast,
    cast,
    is_compiling,
    is_numpy,
    like,
    namespace,
    on_cpu,
    quiet,
    take,
)  # fmt: skip
from fewbit.numerics.rounding import RoundType, round_to_integer, uniform


def power_below(x: Array) -> Array:
    """2 ** floor(log2 |x|), exact: the exponent bits of a float32; 0 for zero and subnormals."""
    return bitcast(bitcast(x, "int32") & 0x7F800000, "float32")


def round_to_float(x: Array, number: FloatFormat, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Array:
    """`x` (float32) on the values of a small float, saturating; NaN stays NaN.

    >>> round_to_float(np.array([0.3, 5.1, 100.0], np.float32), Dtype.fp4.value).tolist()
    [0.5, 6.0, 6.0]
    """
    xp = namespace(x)
    with quiet(x):
        # Clipping comes first: the ends are values of the format, so rounding cannot leave it.
        x = xp.clip(x, number.lowest, number.highest)
        unit = xp.clip(power_below(x), 2.0**number.min_exponent, None)
        unit *= 2.0**-number.mantissa_bits
        x /= unit
        x = round_to_integer(x, mode, seed=seed, in_place=not is_numpy(x) or x.ndim > 0)
        return x * unit


def quantize_to_float(x: Array, dtype: Dtype, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Array:
    """The bit patterns of `x` (float32) in a small float, in `dtype.storage`.

    >>> quantize_to_float(np.array([0.3, -100.0], np.float32), Dtype.fp4).tolist()
    [1, 15]
    """
    number: FloatFormat = dtype.value
    # A compiler may remove a cast there and back, and the rounding with it. numpy has float16 only.
    native = dtype.native is not None and (dtype is Dtype.float16 or not is_numpy(x)) and not is_compiling(x)
    if mode is RoundType.half_even and native:
        with quiet(x):
            return bitcast(cast(namespace(x).clip(x, number.lowest, number.highest), dtype.native), dtype.storage)
    if mode is RoundType.half_even and not dtype.is_cast:
        return _nearest_even_bits(x, number)
    return float_bits(round_to_float(x, number, mode, seed=seed), number, dtype.storage)


def _nearest_even_bits(x: Array, number: FloatFormat) -> Array:
    """Rounding and encoding at once, with additions and shifts only.

    A power of two whose last place is the unit of `x` is added to |x|: the sum is rounded to nearest even, and its last
    bits count the units.
    """
    xp, mantissa = namespace(x), number.mantissa_bits
    base, lift = (127 + number.min_exponent) << 23, (23 - mantissa) << 23
    with quiet(x):
        size = xp.clip(xp.abs(x), None, number.highest)
        power = xp.clip(bitcast(size, "int32") & 0x7F800000, base, None)
        rounded = bitcast(power + lift, "float32")
        rounded += size
        patterns = bitcast(rounded, "int32")
        patterns -= power
        power -= base
        power >>= 23 - mantissa  # the exponent field
        patterns += power
        patterns -= lift
        if number.nan is not None and _may_have_nan(x):
            patterns = xp.where(xp.isnan(x), like(number.nan, patterns, "int32"), patterns)
        patterns |= (bitcast(x, "int32") >> 31) & (1 << (number.bits - 1))
        return cast(patterns, "uint8")


def _may_have_nan(x: Array) -> bool:
    """A look at the minimum is cheap in numpy; while tracing there is nothing to look at."""
    return not is_numpy(x) or bool(np.isnan(x.min(initial=0.0)))


def float_bits(values: Array, number: FloatFormat, storage: str = "uint8") -> Array:
    """Values of a small float (float32, see `round_to_float`) as its bit patterns."""
    xp = namespace(values)
    with quiet(values):
        bits = bitcast(values, "int32")
        size = bits & 0x7FFFFFFF
        # Normal numbers have the bits of a float32 with another bias.
        patterns = (size >> (23 - number.mantissa_bits)) - ((126 + number.min_exponent) << number.mantissa_bits)
        if number.min_exponent > -126:  # bfloat16's subnormals are those of float32
            small = size < (127 + number.min_exponent) << 23
            units = xp.where(small, bitcast(size, "float32"), like(0.0, values)) * (1.0 / number.smallest)
            patterns = xp.where(small, cast(units, "int32"), patterns)
        if number.nan is not None:
            patterns = xp.where(size > 0x7F800000, like(number.nan, values, "int32"), patterns)
        if number.signed:
            patterns |= (bits >> 31) & (1 << (number.bits - 1))
        return cast(patterns, storage)


def float_values(patterns: Array, number: FloatFormat | CodebookFormat) -> Array:
    """The float32 values of bit patterns or codebook indices.

    >>> float_values(np.array([1, 15], np.uint8), Dtype.fp4.value).tolist()
    [0.5, -6.0]
    """
    if number.bits > 8:
        native = "float16" if number == Dtype.float16.value else None
        if native is None:  # bfloat16 is the upper half of a float32
            return bitcast(cast(patterns, "int32") << 16, "float32")
        return cast(bitcast(patterns, native), "float32")
    if is_numpy(patterns):
        return _numpy_table(number)[patterns]
    if isinstance(number, FloatFormat) and number.signed and on_cpu(patterns):
        return _through_half(patterns, number)
    table = like(value_table(number), patterns)
    return take(table, cast(patterns, "int32").reshape(-1), 0).reshape(patterns.shape)


@cache
def _numpy_table(number: FloatFormat | CodebookFormat) -> Array:
    return np.array(value_table(number), np.float32)


def _through_half(patterns: Array, number: FloatFormat) -> Array:
    """Small floats as the leading bits of a float16: torch vectorizes these few shifts, but not its float8 casts."""
    half: FloatFormat = Dtype.float16.value
    shift = half.mantissa_bits - number.mantissa_bits
    word = cast(patterns, "int16")
    bits = (word << shift) & (((1 << (number.bits - number.signed)) - 1) << shift)
    if number.signed:
        bits |= (word << (half.bits - number.bits)) & -0x8000
    if number.nan is not None and number.exponent_bits < half.exponent_bits:
        bits |= (bits + (1 << shift)) & 0x4000  # only all bits set carries into the top exponent bit
    return cast(bitcast(bits, "float16"), "float32") * 2.0 ** (number.min_exponent - half.min_exponent)


def quantize_to_codebook(
    x: Array, number: CodebookFormat, mode: RoundType = RoundType.half_even, *, seed: int = 0
) -> Array:
    """The index of the codebook's value that each element is rounded to, uint8; ties go to the even index."""
    x = x + 0.0  # no negative zero: below, a sign bit says "less than"
    if mode is RoundType.stochastic:
        chance = uniform(tuple(x.shape), seed, x)
        index = cast(x * 0, "uint8")
        for low, high in zip(number.values, number.values[1:]):
            above = x > like(low, x) + chance * like(high - low, x)
            index += cast(above | (x >= like(high, x)), "uint8")
        return index
    borders = _borders(number, mode)
    if is_numpy(x):
        index, above = np.zeros(x.shape, np.uint8), np.empty(x.shape, np.bool)
        for border in borders:
            index += np.greater_equal(x, np.float32(border), out=above).view(np.uint8)
        return index
    index = cast(x * 0, "int32") + len(borders)
    for border in borders:  # torch subtracts and shifts the sign down faster than it compares
        index += bitcast(x - border, "int32").bitwise_right_shift_(31)
    return cast(index, "uint8")


@cache
def _borders(number: CodebookFormat, mode: RoundType) -> tuple[float, ...]:
    """For each value but the first, the smallest float32 that is rounded to it or beyond."""
    if mode is RoundType.floor:
        return number.values[1:]
    borders = []
    for index, (low, high) in enumerate(zip(number.values, number.values[1:]), start=1):
        middle = (low + high) / 2  # exact in float64
        tie_up = index % 2 == 0 if mode is RoundType.half_even else middle > 0
        fraction, exponent = math.frexp(middle)
        units = fraction * 2**24  # of the last place of a float32
        above = math.ceil(units) if tie_up else math.floor(units) + 1
        borders.append(math.ldexp(above, exponent - 24) if middle or tie_up else 2.0**-149)
    return tuple(borders)
