# SPDX-License-Identifier: Apache-2.0
"""Rounding to small floats, by scaling each number so that its last mantissa bit is the unit."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.dtypes import Dtype, Float, Table, table
from fewbit.numerics.rounding import RoundType, round_to_integer, uniform


def power_below(x: Tensor) -> Tensor:
    """2 ** floor(log2 |x|), exact, by keeping only the exponent bits of a float32; 0 for zero and subnormals."""
    return (x.contiguous().view(torch.int32) & 0x7F800000).view(torch.float32)


def round_to_float(x: Tensor, number: Float, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Tensor:
    """The values of `x` (float32) on the grid of a small float, saturating at its largest.

    >>> round_to_float(torch.tensor([0.3, 5.1, 100.0]), Dtype.fp4.value)
    tensor([0.5000, 6.0000, 6.0000])
    """
    # The unit in the last place: constant below the smallest normal, growing with the exponent above it.
    unit = power_below(x).clamp_(min=2.0**number.smallest_exponent).mul_(2.0**-number.mantissa)
    rounded = round_to_integer(x / unit, mode, seed=seed).mul_(unit)
    return rounded.clamp_(-number.largest if number.signed else 0.0, number.largest)


def round_to_table(x: Tensor, number: Table, mode: RoundType = RoundType.half_even, *, seed: int = 0) -> Tensor:
    """The index of the value of a table that `x` is settled to; ties go to the even index, or as `mode` says."""
    values = torch.tensor(number.values, device=x.device)
    x = x.clamp(number.values[0], number.values[-1]).contiguous()
    above = torch.bucketize(x, values).clamp_(1, len(values) - 1)  # values[above - 1] < x <= values[above]
    low, high = values[above - 1], values[above]
    if mode is RoundType.floor:
        up = x >= high
    elif mode is RoundType.stochastic:
        up = uniform(x.shape, seed, x.device) < (x - low) / (high - low)
    else:
        to_low, to_high = x - low, high - x
        tie = above % 2 == 0 if mode is RoundType.half_even else x > 0
        up = (to_high < to_low) | ((to_high == to_low) & tie)
    return (above - 1 + up.long()).to(torch.uint8)


def encode(values: Tensor, dtype: Dtype) -> Tensor:
    """Values that already lie on a small float's grid, as its codes."""
    if dtype.storage is not torch.uint8:
        return values.to(dtype.storage)
    positive = table(dtype)[: 1 << (dtype.bits - dtype.signed)].to(values.device)
    codes = torch.bucketize(values.abs(), positive).to(torch.uint8)
    return codes | (values.signbit().to(torch.uint8) << (dtype.bits - 1)) if dtype.signed else codes


def decode(codes: Tensor, dtype: Dtype) -> Tensor:
    """The float32 values of codes of a small float or a table."""
    if dtype.storage is not torch.uint8:
        return codes.float()
    return table(dtype).to(codes.device)[codes.int()]
