# SPDX-License-Identifier: Apache-2.0
"""Rounding to small floats and tables, and their codes.

Rounding scales each number so that its last mantissa bit is the unit. Codes of types that torch lacks go through the
bits of a float16, whose fields hold theirs: a few shifts, the same on every device and in every graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fewbit.numerics.dtypes import Dtype, Float, Table
from fewbit.numerics.rounding import RoundType, round_, uniform

# Types whose cast in torch rounds to nearest even, as we do, and is faster than our own way.
_CASTS = {Dtype.float16.value: torch.float16, Dtype.bfloat16.value: torch.bfloat16}
_HALF: Float = Dtype.float16.value


def power_below(x: Tensor) -> Tensor:
    """2 ** floor(log2 |x|), exact, by keeping only the exponent bits of a float32; 0 for zero and subnormals."""
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32)


def round_to_float(x: Tensor, number: Float, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Tensor:
    """The values of `x` (float32) on the grid of a small float, saturating at its largest; NaN stays NaN.

    >>> round_to_float(torch.tensor([0.3, 5.1, 100.0]), Dtype.fp4.value)
    tensor([0.5000, 6.0000, 6.0000])
    """
    # Clamping comes first: the ends lie on the grid, so rounding cannot leave it, and infinities are gone.
    x = x.clamp(-number.largest if number.signed else 0.0, number.largest)
    if number in _CASTS and _cast_rounds(mode):
        return x.to(_CASTS[number]).float()
    # The unit in the last place: constant below the smallest normal, growing with the exponent above it.
    unit = power_below(x).clamp_(min=2.0**number.smallest_exponent).mul_(2.0**-number.mantissa)
    return round_(x.div_(unit), mode, seed=seed).mul_(unit)


def _cast_rounds(mode: RoundType) -> bool:
    """Whether a cast does the rounding; a compiler may leave casts there and back out, and the rounding with them."""
    return mode is RoundType.half_even and not torch.compiler.is_compiling()


def float_codes(x: Tensor, dtype: Dtype, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Tensor:
    """The codes of `x` (float32) in a small float: `encode(round_to_float(x))`, in one cast where torch has it."""
    if dtype.storage is not torch.uint8 and _cast_rounds(mode):
        return x.clamp(dtype.lowest, dtype.highest).to(dtype.storage)
    return encode(round_to_float(x, dtype.value, mode, seed=seed), dtype)


def round_to_table(x: Tensor, number: Table, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Tensor:
    """The index of the table's value that `x` (float32) is settled to; ties go to the even index or as `mode` says."""
    x = x + 0.0  # no negative zero: below, the sign bit says "less than"
    if mode is not RoundType.stochastic:
        # Counting the borders that lie above needs no table on the device; subtracting is faster than comparing.
        borders = _borders(number, mode)
        index = torch.full_like(x, len(borders), dtype=torch.int32)
        for border in borders:
            index += (x - border).view(torch.int32).bitwise_right_shift_(31)  # -1 where less
        return index.to(torch.uint8)
    chance = uniform(x.shape, seed, x.device)
    index = torch.zeros_like(x, dtype=torch.int32)
    for low, high in zip(number.values, number.values[1:]):
        index += (x > low + chance * (high - low)) | (x >= high)
    return index.to(torch.uint8)


def _borders(number: Table, mode: RoundType) -> list[float]:
    """For each value but the first, the smallest float32 that is settled to it or beyond."""
    if mode is RoundType.floor:
        return list(number.values[1:])
    borders = []
    for index, (low, high) in enumerate(zip(number.values, number.values[1:]), start=1):
        middle = (low + high) / 2  # exact in double precision
        tie_up = index % 2 == 0 if mode is RoundType.half_even else middle > 0
        fraction, exponent = math.frexp(middle)
        units = fraction * 2**24  # of float32's last place
        above = math.ceil(units) if tie_up else math.floor(units) + 1
        borders.append(math.ldexp(above, exponent - 24) if middle or tie_up else 2.0**-149)
    return borders


def encode(values: Tensor, dtype: Dtype) -> Tensor:
    """Values that already lie on a small float's grid, as its codes."""
    if dtype.storage is not torch.uint8:
        return values.to(dtype.storage)
    number: Float = dtype.value
    # Scaled so that the smallest normals meet, the fields of a float16 begin with those of the smaller type.
    bits = (values * 2.0 ** (_HALF.smallest_exponent - number.smallest_exponent)).half().view(torch.int16)
    sign = 1 << (number.exponent + number.mantissa)
    codes = (bits >> (_HALF.mantissa - number.mantissa)).bitwise_and_(sign - 1)
    if number.signed:
        codes |= (bits >> (_HALF.bits - number.bits)).bitwise_and_(sign)
    return codes.to(torch.uint8)


def decode(codes: Tensor, dtype: Dtype) -> Tensor:
    """The float32 values of codes of a small float or a table."""
    number = dtype.value
    if isinstance(number, Table):
        values = torch.tensor(number.values, device=codes.device)
        return values.index_select(0, codes.flatten().int()).reshape(codes.shape)
    if dtype.storage is torch.uint8 or (dtype.bits == 8 and codes.device.type == "cpu"):
        return _through_half(codes, number, nan=dtype is Dtype.fp8_e4m3)
    return codes.float()


def _through_half(codes: Tensor, number: Float, *, nan: bool) -> Tensor:
    """The inverse of `encode`; also for float8, where torch's own cast is not vectorised.

    Args:
        codes: of one byte.
        number: their type.
        nan: whether the code with all bits set is no number.
    """
    shift = _HALF.mantissa - number.mantissa
    code = codes.view(torch.uint8).to(torch.int16)
    bits = (code << shift).bitwise_and_(((1 << (number.exponent + number.mantissa)) - 1) << shift)
    if number.signed:
        bits |= (code << (_HALF.bits - number.bits)).bitwise_and_(-0x8000)
    if nan:
        bits |= (bits + (1 << shift)).bitwise_and_(0x4000)  # only all bits set carries into the top exponent bit
    return bits.view(torch.float16).float().mul_(2.0 ** (number.smallest_exponent - _HALF.smallest_exponent))
