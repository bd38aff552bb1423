# SPDX-License-Identifier: Apache-2.0
"""Scale types: which values a scale may take, and the bytes that store it."""

from __future__ import annotations

from enum import Enum

from fewbit.numerics.dtypes import CodebookFormat, Dtype, FloatFormat, IntegerFormat
from fewbit.numerics.floats import float_bits, float_values, power_below, round_to_float
from fewbit.numerics.ops import Array, bitcast, cast, like, namespace, quiet


class ScaleType(Enum):
    """The type that stores a scale; computation is in float32, on the values of the type."""

    float32 = "float32"
    float = "float32"  # noqa: PIE796  Quark's name
    float16 = "float16"
    bfloat16 = "bfloat16"
    pof2 = "pof2"  # a power of two, stored as its exponent
    float8_e8m0fnu = "float8_e8m0fnu"  # a power of two that follows from the block's maximum as in the MX formats
    float8_e4m3fn = "float8_e4m3fn"  # under one float32 scale per tensor (NVFP4)
    float8_e5m3 = "float8_e5m3"  # unsigned, up to 1.75 * 2^16; all bits set is NaN

    @property
    def is_power(self) -> bool:
        """Whether it has powers of two only."""
        return self in (ScaleType.pof2, ScaleType.float8_e8m0fnu)

    @property
    def signed(self) -> bool:
        """Whether it has negative scales."""
        return not self.is_power and self is not ScaleType.float8_e5m3


class ScaleMode(Enum):
    """How a block's maximum becomes the exponent of an e8m0 scale."""

    even = "even"  # of the maximum rounded to the element's mantissa
    floor = "floor"  # the specification's
    ceil = "ceil"  # nothing is clipped


SMALLEST_SCALE = 2.0**-126
"""Scales stay normal float32 numbers: devices that flush subnormals to zero would divide by it.

So the e8m0 byte 0, which is 2^-127, is read but never written.
"""
_LARGEST_POWER = 2.0**127
_LARGEST_FLOAT = 3.4028234663852886e38

_FLOATS: dict[ScaleType, FloatFormat] = {
    ScaleType.float16: Dtype.float16.value,
    ScaleType.bfloat16: Dtype.bfloat16.value,
    ScaleType.float8_e4m3fn: Dtype.fp8_e4m3.value,
    ScaleType.float8_e5m3: FloatFormat(5, 3, 114688.0, nan=0xFF, signed=False),
}


def round_scale(scale: Array, kind: ScaleType) -> Array:
    """Scales (float32) on the nearest value of a type, never zero; the sign is kept, and NaN stays NaN.

    Powers of two are nearest in the logarithm. A scale that is rounded down narrows the range: what lies outside is
    clipped.

    >>> import numpy as np
    >>> round_scale(np.array([0.0, 3.0, 1e9], np.float32), ScaleType.float16).tolist()
    [5.960464477539063e-08, 3.0, 65504.0]
    """
    xp = namespace(scale)
    with quiet(scale):
        size = xp.abs(scale)
        if kind.is_power:
            low = xp.clip(power_below(size), SMALLEST_SCALE, None)
            # The border between 2^k and 2^(k + 1) is 2^(k + 1/2).
            power = xp.clip(xp.where(size > low * 2**0.5, low * 2, low), None, _LARGEST_POWER)
            size = xp.where(xp.isnan(size), size, power)
        elif (number := _FLOATS.get(kind)) is not None:
            size = xp.clip(round_to_float(size, number), max(number.smallest, SMALLEST_SCALE), None)
        else:
            size = xp.clip(size, SMALLEST_SCALE, _LARGEST_FLOAT)
        return xp.copysign(size, scale)


def mx_scale(amax: Array, dtype: Dtype, mode: ScaleMode = ScaleMode.even) -> Array:
    """The power-of-two scale of an MX block from its largest magnitude (OCP MX v1.0, section 6.3, and its variants).

    The scale of an integer is that of one unit: MXINT8 counts in 64ths, so it is the specification's divided by 64.
    NaN stays NaN, for which e8m0 has a byte.

    >>> import numpy as np
    >>> mx_scale(np.array([3.0, 7.0], np.float32), Dtype.fp4, ScaleMode.floor).tolist()
    [0.5, 1.0]
    """
    xp, number = namespace(amax), dtype.format
    if isinstance(number, FloatFormat):
        mantissa, top = number.mantissa_bits, number.max_exponent
    elif isinstance(number, IntegerFormat):
        mantissa = top = number.bits - 2  # 1.xxxxxx in two's complement; unsigned integers have zero in the middle
    else:
        assert isinstance(number, CodebookFormat)
        mantissa = top = 0  # the largest value of a codebook is 1
    with quiet(amax):
        power = power_below(amax)
        if mode is ScaleMode.ceil:
            # The first power whose largest element is not below the maximum.
            power = xp.where(amax > power * (dtype.highest / 2.0**top), power * 2, power)
        elif mode is ScaleMode.even and mantissa < 23:
            # Adding half of the last mantissa bit carries into the exponent exactly if rounding the mantissa would.
            power = power_below(bitcast(bitcast(amax, "int32") + (1 << (22 - mantissa)), "float32"))
        # The lowest element of an integer is twice the power: it may not overflow.
        largest = _LARGEST_POWER / 2 if isinstance(number, IntegerFormat) else _LARGEST_POWER
        power = xp.clip(xp.clip(power, None, largest) * 2.0**-top, SMALLEST_SCALE, None)
        return xp.where(xp.isnan(amax), amax, power)


def store_scale(scale: Array, kind: ScaleType) -> Array:
    """Scales that are values of a type as its bytes: exact, NaN included.

    float32 stays float32; 16 bits are bit patterns in uint16, 8 bits in uint8.
    """
    if kind is ScaleType.float32:
        return scale
    if kind.is_power:
        return cast((bitcast(scale, "int32") >> 23) & 0xFF, "uint8")
    number = _FLOATS[kind]
    return float_bits(scale, number, "uint8" if number.bits == 8 else "uint16")


def load_scale(stored: Array, kind: ScaleType) -> Array:
    """The float32 values of stored scales.

    >>> import numpy as np
    >>> load_scale(store_scale(np.array([0.25], np.float32), ScaleType.pof2), ScaleType.pof2).tolist()
    [0.25]
    """
    if kind is ScaleType.float32:
        return stored
    if kind.is_power:
        xp = namespace(stored)
        value = bitcast(cast(stored, "int32") << 23, "float32")
        smallest, nan = like(2.0**-127, value), like(float("nan"), value)
        return xp.where(stored == 0, smallest, xp.where(stored == 255, nan, value))
    return float_values(stored, _FLOATS[kind])


def stored_dtype(kind: ScaleType) -> str:
    """The name of the dtype that torch and ml_dtypes have for the stored bytes; `uint8` where they have none.

    >>> stored_dtype(ScaleType.bfloat16), stored_dtype(ScaleType.pof2)
    ('bfloat16', 'uint8')
    """
    return "uint8" if kind in (ScaleType.pof2, ScaleType.float8_e5m3) else kind.value
