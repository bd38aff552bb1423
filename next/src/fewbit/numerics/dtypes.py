# SPDX-License-Identifier: Apache-2.0
"""Number formats: what one element may be. Integers, small floats, and codebooks.

Quantized values are integers, or the bit patterns of small floats and the indices of codebooks in an unsigned integer.
`torch.float8_*` and ml_dtypes appear only where a file or a runtime wants them, as views of the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, nonmember
from functools import cache


@dataclass(frozen=True)
class IntegerFormat:
    """A two's complement or unsigned integer."""

    bits: int
    signed: bool = True

    @property
    def lowest(self) -> int:
        """The smallest integer."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """The largest integer."""
        return (1 << (self.bits - self.signed)) - 1


@dataclass(frozen=True)
class FloatFormat:
    """A sign bit, exponent and mantissa, with subnormals; conversion saturates at `highest`.

    Args:
        exponent_bits: width of the exponent.
        mantissa_bits: width of the mantissa.
        highest: the largest finite value.
        nan: the bit pattern of NaN without its sign, or `None` if there is none.
        signed: whether there is a sign bit.
    """

    exponent_bits: int
    mantissa_bits: int
    highest: float
    nan: int | None = None
    signed: bool = True

    @property
    def bits(self) -> int:
        """Width of one element."""
        return self.signed + self.exponent_bits + self.mantissa_bits

    @property
    def lowest(self) -> float:
        """The smallest finite value."""
        return -self.highest if self.signed else 0.0

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal number: 1 - bias."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def max_exponent(self) -> int:
        """floor(log2(highest)): what MX formats subtract from the exponent of a block's maximum."""
        return math.frexp(self.highest)[1] - 1

    @property
    def smallest(self) -> float:
        """The smallest positive value, a subnormal."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)


@dataclass(frozen=True)
class CodebookFormat:
    """An ascending list of values from -1 to 1; an element is an index into it."""

    bits: int
    values: tuple[float, ...]

    @property
    def lowest(self) -> float:
        """The first value."""
        return self.values[0]

    @property
    def highest(self) -> float:
        """The last value."""
        return self.values[-1]

    @property
    def signed(self) -> bool:
        """Whether negative values exist."""
        return self.values[0] < 0


NumberFormat = IntegerFormat | FloatFormat | CodebookFormat

# Quantiles of a standard normal distribution: QLoRA, arXiv 2305.14314, appendix E.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class Dtype(Enum):
    """Every element type by name.

    >>> Dtype.int4.bits, Dtype.int4.lowest, Dtype.int4.highest
    (4, -8, 7)
    >>> Dtype.fp8_e4m3.highest, Dtype.fp8_e4m3.storage
    (448.0, 'uint8')
    """

    int2 = IntegerFormat(2)
    int3 = IntegerFormat(3)
    int4 = IntegerFormat(4)
    int5 = IntegerFormat(5)
    int6 = IntegerFormat(6)
    int7 = IntegerFormat(7)
    int8 = IntegerFormat(8)
    int16 = IntegerFormat(16)
    int32 = IntegerFormat(32)
    uint2 = IntegerFormat(2, signed=False)
    uint3 = IntegerFormat(3, signed=False)
    uint4 = IntegerFormat(4, signed=False)
    uint5 = IntegerFormat(5, signed=False)
    uint6 = IntegerFormat(6, signed=False)
    uint7 = IntegerFormat(7, signed=False)
    uint8 = IntegerFormat(8, signed=False)
    uint16 = IntegerFormat(16, signed=False)
    fp4 = FloatFormat(2, 1, 6.0)
    fp6_e2m3 = FloatFormat(2, 3, 7.5)
    fp6_e3m2 = FloatFormat(3, 2, 28.0)
    fp8_e4m3 = FloatFormat(4, 3, 448.0, nan=0x7F)
    fp8_e5m2 = FloatFormat(5, 2, 57344.0, nan=0x7F)
    float16 = FloatFormat(5, 10, 65504.0, nan=0x7E00)
    bfloat16 = FloatFormat(8, 7, 3.3895313892515355e38, nan=0x7FC0)
    nf4 = CodebookFormat(4, _NF4)
    # Block formats that Quark lists among the types: names for a spec to expand.
    mx = nonmember("mx")
    bfp16 = nonmember("bfp16")

    @property
    def format(self) -> NumberFormat:
        """What its elements are."""
        number: NumberFormat = self.value
        return number

    @property
    def bits(self) -> int:
        """Width of one element."""
        return self.format.bits

    @property
    def lowest(self) -> float:
        """The smallest element before scaling."""
        return self.format.lowest

    @property
    def highest(self) -> float:
        """The largest element before scaling."""
        return self.format.highest

    @property
    def signed(self) -> bool:
        """Whether negative values exist without a zero point."""
        return self.format.signed

    @property
    def is_integer(self) -> bool:
        """Whether elements are evenly spaced integers."""
        return isinstance(self.value, IntegerFormat)

    @property
    def is_cast(self) -> bool:
        """Whether a tensor needs no scale: float16 and bfloat16 are only a change of type."""
        return isinstance(self.value, FloatFormat) and self.bits >= 16

    @property
    def has_nan(self) -> bool:
        """Whether there is a bit pattern for NaN."""
        return isinstance(self.value, FloatFormat) and self.value.nan is not None

    @property
    def storage(self) -> str:
        """The dtype of one quantized value before packing, by its name in numpy and torch."""
        width = 8 if self.bits <= 8 else self.bits
        return f"int{width}" if self.is_integer and self.signed else f"uint{width}"

    @property
    def native(self) -> str | None:
        """The name of the float dtype in torch and ml_dtypes with the same bytes, if there is one."""
        return _NATIVE.get(self.name)


_NATIVE = {
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "float16": "float16",
    "bfloat16": "bfloat16",
}


@cache
def value_table(number: FloatFormat | CodebookFormat) -> tuple[float, ...]:
    """The value of every bit pattern or index, of formats up to 8 bits.

    >>> value_table(Dtype.fp4.value)[:8]
    (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    """
    if isinstance(number, CodebookFormat):
        return number.values
    magnitudes = [_magnitude(pattern, number) for pattern in range(1 << (number.bits - number.signed))]
    return (*magnitudes, *(-value for value in magnitudes)) if number.signed else tuple(magnitudes)


def _magnitude(pattern: int, number: FloatFormat) -> float:
    exponent, fraction = divmod(pattern, 1 << number.mantissa_bits)
    normal = 1 << number.mantissa_bits if exponent else 0
    value = math.ldexp(normal + fraction, number.min_exponent - number.mantissa_bits + max(exponent - 1, 0))
    if value <= number.highest:
        return value
    return math.inf if fraction == 0 else math.nan  # of e5m2, whose last exponent is IEEE's; the others have only NaN
