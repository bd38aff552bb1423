# SPDX-License-Identifier: Apache-2.0
"""Scale types: which values a scale may take, and the bytes it is kept in."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from fewbit.numerics.dtypes import Dtype, Float, Integer
from fewbit.numerics.floats import power_below, round_to_float


class ScaleType(Enum):
    """The type a scale is kept in; computation is in float32, on the values the type has."""

    float32 = "float32"
    float = "float32"  # noqa: PIE796  the name older scripts use
    float16 = "float16"
    bfloat16 = "bfloat16"
    pof2 = "pof2"  # a power of two, kept as its exponent
    float8_e8m0fnu = "float8_e8m0fnu"  # a power of two, chosen from the block's maximum as the MX formats do
    float8_e4m3fn = "float8_e4m3fn"  # on top of one float32 scale a tensor (NVFP4)
    float8_e5m3 = "float8_e5m3"  # unsigned, up to 1.75 * 2^16; all bits set is no number


class ScaleMode(Enum):
    """How a block's maximum becomes the exponent of an e8m0 scale."""

    even = "even"  # of the maximum rounded to the element's mantissa
    floor = "floor"  # the specification's
    ceil = "ceil"  # nothing is clipped


_E5M3 = Float(5, 3, 114688.0, signed=False)
# Scales stay normal float32 numbers: subnormal ones lose bits, and devices that flush them to zero would divide by it.
# So the e8m0 byte 0, which is 2^-127, is read but never written.
SMALLEST = 2.0**-126
_LARGEST_POWER = 2.0**127

_FLOATS: dict[ScaleType, Float] = {
    ScaleType.float16: Dtype.float16.value,
    ScaleType.bfloat16: Dtype.bfloat16.value,
    ScaleType.float8_e4m3fn: Dtype.fp8_e4m3.value,
    ScaleType.float8_e5m3: _E5M3,
}


def is_power(kind: ScaleType) -> bool:
    """Whether the type has powers of two only."""
    return kind in (ScaleType.pof2, ScaleType.float8_e8m0fnu)


def has_sign(kind: ScaleType) -> bool:
    """Whether the type has negative scales."""
    return not is_power(kind) and kind is not ScaleType.float8_e5m3


def round_scale(scale: Tensor, kind: ScaleType) -> Tensor:
    """Positive or negative scales on the nearest value of a type, never zero: a zero scale would divide by it.

    Rounding down makes the range a little narrower than was asked for; what falls out of it is clipped. Powers of two
    are nearest in the logarithm. NaN stays NaN in every type: a block that holds one must not come out as numbers.

    >>> round_scale(torch.tensor([0.0, 3.0, 1e9]), ScaleType.float16)
    tensor([5.9605e-08, 3.0000e+00, 6.5504e+04])
    """
    size = scale.abs()
    if is_power(kind):
        low = power_below(size).clamp_(min=SMALLEST)
        # The border between 2^k and 2^(k+1) is 2^(k + 1/2).
        power = torch.where(size > low * 2**0.5, low * 2, low).clamp_(max=_LARGEST_POWER)
        size = torch.where(size.isnan(), size, power)
    elif (number := _FLOATS.get(kind)) is not None:
        smallest = 2.0 ** (number.smallest_exponent - number.mantissa)
        size = round_to_float(size, number).clamp_(min=max(smallest, SMALLEST))
    else:
        size = size.clamp_(SMALLEST, torch.finfo(torch.float32).max)
    return size.copysign_(scale)


def power_from_maximum(amax: Tensor, dtype: Dtype, mode: ScaleMode) -> Tensor:
    """The power-of-two scale of an MX block from its largest magnitude (OCP MX v1.0, section 6.3, and its variants).

    An integer's scale is that of one unit: for MXINT8, whose elements are 64ths, the specification's divided by 64.
    NaN stays NaN, for which e8m0 has a code.

    >>> power_from_maximum(torch.tensor([3.0, 7.0]), Dtype.fp4, ScaleMode.floor)
    tensor([0.5000, 1.0000])
    """
    number = dtype.value
    if isinstance(number, Float):
        mantissa, top = number.mantissa, number.largest_exponent
    elif isinstance(number, Integer):
        mantissa = top = dtype.bits - 2  # 1.xxxxxx in two's complement; unsigned types have their zero in the middle
    else:
        mantissa = top = 0  # the largest value of a table is 1
    power = power_below(amax)
    if mode is ScaleMode.ceil:
        # The first power whose largest element is not below the maximum.
        power = torch.where(amax > power * (dtype.highest / 2.0**top), power * 2, power)
    elif mode is ScaleMode.even and mantissa < 23:
        # Adding half of the last kept bit carries into the exponent just if rounding the mantissa would.
        power = power_below((amax.view(torch.int32) + (1 << (22 - mantissa))).view(torch.float32))
    # An integer's lowest element is twice the power: it may not overflow.
    largest = _LARGEST_POWER / 2 if isinstance(number, Integer) else _LARGEST_POWER
    power = power.clamp(max=largest).mul_(2.0**-top).clamp_(min=SMALLEST)
    return torch.where(amax.isnan(), amax, power)


def store_scale(scale: Tensor, kind: ScaleType) -> Tensor:
    """Scales that lie on a type's grid, in the bytes of the type; exact, and NaN as the type's code for it."""
    if kind is ScaleType.float32:
        return scale
    if is_power(kind):
        return ((scale.view(torch.int32) >> 23) & 0xFF).to(torch.uint8)
    if kind is ScaleType.float8_e5m3:
        # Normal numbers have the bits of a float32 with another exponent bias; subnormal ones count in 2^-17.
        bits = (scale.view(torch.int32) >> (23 - _E5M3.mantissa)) - ((126 + _E5M3.smallest_exponent) << _E5M3.mantissa)
        units = scale * 2.0 ** (_E5M3.mantissa - _E5M3.smallest_exponent)
        code = torch.where(scale < 2.0**_E5M3.smallest_exponent, units, bits)
        return torch.where(scale.isnan(), 255, code).to(torch.uint8)
    return scale.to(_NATIVE[kind])


def load_scale(stored: Tensor, kind: ScaleType) -> Tensor:
    """The float32 values of stored scales; the codes that a type keeps for no number are NaN."""
    if is_power(kind):
        value = (stored.int() << 23).view(torch.float32)
        return torch.where(stored == 0, 2.0**-127, torch.where(stored == 255, torch.nan, value))
    if kind is ScaleType.float8_e5m3:
        code = stored.int()
        exponent, fraction = code >> _E5M3.mantissa, code & ((1 << _E5M3.mantissa) - 1)
        bits = ((exponent + 126 + _E5M3.smallest_exponent) << 23) | (fraction << (23 - _E5M3.mantissa))
        units = fraction.float() * 2.0 ** (_E5M3.smallest_exponent - _E5M3.mantissa)
        value = torch.where(exponent == 0, units, bits.view(torch.float32))
        return torch.where(code == 255, torch.nan, value)
    return stored.float()


_NATIVE = {
    ScaleType.float16: torch.float16,
    ScaleType.bfloat16: torch.bfloat16,
    ScaleType.float8_e4m3fn: torch.float8_e4m3fn,
}
