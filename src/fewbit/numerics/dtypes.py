# SPDX-License-Identifier: Apache-2.0
"""The number types: what one element may be. Integers, small floats, and tables of values.

A type says its bits, its extremes and the torch dtype its codes are kept in. Codes are integers (their value), floats
that torch has (fp8, fp16, bf16, fp32), or bit patterns in a byte (fp6, fp4: sign, exponent, mantissa; nf4: an index).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, nonmember

import torch


@dataclass(frozen=True)
class Integer:
    """A two's complement or unsigned integer of `bits` bits."""

    bits: int
    signed: bool = True

    @property
    def lowest(self) -> int:
        """The smallest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """The largest code."""
        return (1 << (self.bits - self.signed)) - 1


@dataclass(frozen=True)
class Float:
    """A sign bit (unless unsigned), `exponent` bits and `mantissa` bits; saturates at `largest`, has subnormals."""

    exponent: int
    mantissa: int
    largest: float
    signed: bool = True

    @property
    def bits(self) -> int:
        """Width of one element."""
        return self.signed + self.exponent + self.mantissa

    @property
    def smallest_exponent(self) -> int:
        """The exponent of the smallest normal number: 1 - bias."""
        return 2 - (1 << (self.exponent - 1))

    @property
    def largest_exponent(self) -> int:
        """floor(log2(largest)): what a block format subtracts from the exponent of a block's maximum."""
        return math.frexp(self.largest)[1] - 1


@dataclass(frozen=True)
class Table:
    """Any ascending list of values in [-1, 1]; an element is an index into it."""

    bits: int
    values: tuple[float, ...]


# Quantiles of a standard normal, from the QLoRA paper (arXiv 2305.14314, appendix E).
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class Dtype(Enum):
    """Every number type by name.

    >>> Dtype.int4.bits, Dtype.int4.lowest, Dtype.int4.highest
    (4, -8, 7)
    >>> Dtype.fp8_e4m3.highest
    448.0
    """

    int2 = Integer(2)
    int3 = Integer(3)
    int4 = Integer(4)
    int5 = Integer(5)
    int6 = Integer(6)
    int7 = Integer(7)
    int8 = Integer(8)
    int9 = Integer(9)
    int10 = Integer(10)
    int11 = Integer(11)
    int12 = Integer(12)
    int13 = Integer(13)
    int14 = Integer(14)
    int15 = Integer(15)
    int16 = Integer(16)
    int32 = Integer(32)
    uint2 = Integer(2, signed=False)
    uint3 = Integer(3, signed=False)
    uint4 = Integer(4, signed=False)
    uint5 = Integer(5, signed=False)
    uint6 = Integer(6, signed=False)
    uint7 = Integer(7, signed=False)
    uint8 = Integer(8, signed=False)
    uint9 = Integer(9, signed=False)
    uint10 = Integer(10, signed=False)
    uint11 = Integer(11, signed=False)
    uint12 = Integer(12, signed=False)
    uint13 = Integer(13, signed=False)
    uint14 = Integer(14, signed=False)
    uint15 = Integer(15, signed=False)
    uint16 = Integer(16, signed=False)
    fp4 = Float(2, 1, 6.0)
    fp6_e2m3 = Float(2, 3, 7.5)
    fp6_e3m2 = Float(3, 2, 28.0)
    fp8_e4m3 = Float(4, 3, 448.0)
    fp8_e5m2 = Float(5, 2, 57344.0)
    float16 = Float(5, 10, 65504.0)
    bfloat16 = Float(8, 7, 3.3895313892515355e38)
    float32 = Float(8, 23, 3.4028234663852886e38)
    nf4 = Table(4, _NF4)
    # Block formats that other enums list among the types: no members here, only names for a scheme to expand.
    mx = nonmember("mx")
    bfp16 = nonmember("bfp16")

    @property
    def bits(self) -> int:
        """Width of one element in bits."""
        number: Integer | Float | Table = self.value
        return number.bits

    @property
    def is_integer(self) -> bool:
        """Whether codes are integers on an even grid."""
        return isinstance(self.value, Integer)

    @property
    def signed(self) -> bool:
        """Whether negative values exist."""
        return self.value.signed if isinstance(self.value, Integer | Float) else True

    @property
    def is_cast(self) -> bool:
        """Whether a tensor needs no scale for it: wide floats are only a change of type."""
        return isinstance(self.value, Float) and self.bits >= 16

    @property
    def has_nan(self) -> bool:
        """Whether there is a code for "not a number"."""
        return self.name in _NATIVE

    @property
    def lowest(self) -> float:
        """The smallest element before scaling."""
        if isinstance(self.value, Integer):
            return self.value.lowest
        return -self.highest if self.signed else 0.0

    @property
    def highest(self) -> float:
        """The largest element before scaling."""
        if isinstance(self.value, Integer):
            return self.value.highest
        return self.value.largest if isinstance(self.value, Float) else self.value.values[-1]

    @property
    def storage(self) -> torch.dtype:
        """The torch dtype one code is kept in before packing."""
        if isinstance(self.value, Integer):
            small, wide = _SIGNED if self.signed else _UNSIGNED
            return small if self.bits <= 8 else wide if self.bits <= 16 else torch.int32
        return _NATIVE.get(self.name, torch.uint8)


_SIGNED = (torch.int8, torch.int16)
_UNSIGNED = (torch.uint8, torch.uint16)
# Small floats that torch has; the others are kept as bit patterns.
_NATIVE = {
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
