# SPDX-License-Identifier: Apache-2.0
"""Scale types: which values a scale may take, and the bytes it is kept in."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from fewbit.numerics.dtypes import Dtype, Float
from fewbit.numerics.floats import power_below, round_to_float


class ScaleType(Enum):
    """The type a scale is kept in; computation is in float32, on the values the type has."""

    float32 = "float32"
    float = "float32"  # the name older scripts use
    float16 = "float16"
    bfloat16 = "bfloat16"
    pof2 = "pof2"  # a power of two, kept as its exponent
    float8_e8m0fnu = "float8_e8m0fnu"  # a power of two, chosen from the block's maximum as the MX formats do
    float8_e4m3fn = "float8_e4m3fn"  # on top of one float32 scale a tensor (NVFP4)
    float8_e5m3 = "float8_e5m3"  # unsigned


class ScaleMode(Enum):
    """How a block's maximum becomes the exponent of an e8m0 scale."""

    even = "even"  # of the maximum rounded to the element's mantissa
    floor = "floor"  # the specification's
    ceil = "ceil"  # nothing is clipped


_E5M3 = Float(5, 3, 122880.0, signed=False)
_SMALLEST = 2.0**-126  # powers of two are kept in float32 as normal numbers

_FLOATS = {
    ScaleType.float16: Dtype.float16.value,
    ScaleType.bfloat16: Dtype.bfloat16.value,
    ScaleType.float8_e4m3fn: Dtype.fp8_e4m3.value,
    ScaleType.float8_e5m3: _E5M3,
}


def is_power(kind: ScaleType) -> bool:
    """Whether the type has powers of two only."""
    return kind in (ScaleType.pof2, ScaleType.float8_e8m0fnu)


def round_scale(scale: Tensor, kind: ScaleType) -> Tensor:
    """Positive or negative scales on the nearest value of a type, never zero: a zero scale would divide by it."""
    if is_power(kind):
        # Nearest in the logarithm: the border between 2^k and 2^(k+1) is 2^(k + 1/2).
        low = power_below(scale).clamp_(_SMALLEST)
        return torch.where(scale.abs() > low * 2**0.5, low * 2, low).clamp_(max=2.0**127).copysign(scale)
    number = _FLOATS.get(kind)
    if number is None:
        return scale.sign() * scale.abs().clamp(min=torch.finfo(torch.float32).tiny)
    smallest = 2.0 ** (number.smallest_exponent - number.mantissa)
    return round_to_float(scale.abs(), number).clamp_(min=smallest).copysign(scale)


def power_from_maximum(amax: Tensor, dtype: Dtype, mode: ScaleMode) -> Tensor:
    """The power-of-two scale of an MX block from its largest magnitude (OCP MX v1.0, section 6.3, and its variants)."""
    number = dtype.value
    if isinstance(number, Float):
        mantissa, top = number.mantissa, number.largest_exponent
    else:
        mantissa, top = dtype.bits - 2, dtype.bits - 2  # an integer as 1.xxxxxx: MXINT8 counts in 64ths
    power = power_below(amax)
    if mode is ScaleMode.ceil:
        # The first power whose largest element is not below the maximum.
        power = torch.where(amax > power * (dtype.highest / 2.0**top), power * 2, power)
    elif mode is ScaleMode.even:
        bits = amax.contiguous().view(torch.int32) + (1 << (22 - mantissa))
        power = (bits & 0x7F800000).view(torch.float32)
    return (power * 2.0**-top).clamp(min=_SMALLEST, max=2.0**127)


def store_scale(scale: Tensor, kind: ScaleType) -> Tensor:
    """Scales that lie on a type's grid, in the bytes of the type; exact."""
    if kind is ScaleType.float32:
        return scale
    if is_power(kind):
        return ((scale.contiguous().view(torch.int32) >> 23) & 0xFF).to(torch.uint8)
    if kind is ScaleType.float8_e5m3:
        return (scale.half().view(torch.int16) >> 7).to(torch.uint8)  # float16 without its sign and last seven bits
    native = {ScaleType.float16: torch.float16, ScaleType.bfloat16: torch.bfloat16}
    return scale.to(native.get(kind, torch.float8_e4m3fn))


def load_scale(stored: Tensor, kind: ScaleType) -> Tensor:
    """The float32 values of stored scales."""
    if is_power(kind):
        return (stored.int() << 23).view(torch.float32)
    if kind is ScaleType.float8_e5m3:
        return (stored.to(torch.int16) << 7).view(torch.float16).float()
    return stored.float()
